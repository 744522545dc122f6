"""What would have to end so that a pod fits: the fewest pods of one node, and of as many the smallest.

What is too little there narrows the choice, and each choice is tried. NVLink may join less where more has ended, since
the device plugin then chooses others: so it is the choices that are tried, and not what all of them come to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

import msgspec

from webhook.model.cluster_view import FreeResources
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod, pod_key
from webhook.model.quantity import NANO
from webhook.placement.devices import NodeDevices
from webhook.placement.nodes.device_plugin import largest_request
from webhook.placement.nodes.filtering import exclusion_reasons, filter_reasons
from webhook.placement.nodes.pod_requirements import MIB, PodRequirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nodes.stock_filters import (
    PODS_RESOURCE,
    Amounts,
    find_port_conflicts,
    host_ports,
    other_requests,
    stock_filter_reasons,
)
from webhook.placement.nvlink import gpu_mask, gpu_sets

MAX_CHOICES = 20_000
"""Choices that are looked at, of all nodes together; after that, what a shortcut finds."""

MAX_SHORTCUT_NODES = 16
"""Nodes of which the shortcut is taken, those first of which fewer pods may do."""

EvictedPods = tuple[Pod, ...]


class PreemptionPlan(msgspec.Struct, frozen=True):
    """Pods of one node without which the pod would fit there."""

    node: int
    pods: EvictedPods


class VictimCandidate(NamedTuple):
    """A pod that may end.

    Attributes:
        size: Units of the GPU resource that is wanted, and millicores.
        kind: What two pods share either of which may stand for the other.
        pod: The pod.
        gives: What of all that is too little would be free again.
    """

    size: tuple[int, int]
    kind: str
    pod: Pod
    releases: Amounts


class CandidateNode(NamedTuple):
    """A node that would let the pod in.

    Attributes:
        node: Its position.
        fits: Does the pod fit there once some have ended?
        needed: Pods that must end in any case: they have a port of the host that is asked for.
        short: How much too little is free there besides; of what is enough, nothing.
        holders: The others that may have to end, the smallest first.
    """

    node: int
    fits: Callable[[EvictedPods], bool]
    required_victims: EvictedPods
    shortages: Amounts
    candidates: Sequence[VictimCandidate]

    @property
    def min_victims(self) -> int:
        """No fewer pods than this will do; one more than there are where none will."""
        sizes = range(len(self.candidates) + 1)
        enough = (size for size in sizes if _can_cover_shortages(self.candidates, self.shortages, size))
        return len(self.required_victims) + next(enough, len(self.candidates) + 1)

    @property
    def max_victims(self) -> int:
        """How many may end."""
        return len(self.required_victims) + len(self.candidates)

    def victim_choices(self, size: int, steps: Iterator[int]) -> Iterator[EvictedPods]:
        """So many pods that hold enough of all that is short."""
        for more in _victim_choices(self.candidates, self.shortages, size - len(self.required_victims), steps):
            yield (*self.required_victims, *more)


def find_preemption(
    cluster: SchedulingSnapshot, requirements: PodRequirements, pods: Iterable[Pod], pod: Pod, free: Sequence[Amounts]
) -> PreemptionPlan | None:
    """The node where the fewest pods would have to end, and of equal ones those that hold least.

    Pods of DaemonSets and static pods are not thought away: they would come back.

    Args:
        cluster: The nodes, none of which takes the pod.
        requirements: What the pod wants of GPUs, CPU and memory.
        pods: Who runs where.
        pod: The pod.
        free: What is free on each node of resources that are neither CPU, memory nor GPUs.
    """
    places = [
        place
        for place in _candidate_nodes(cluster, requirements, pods, pod, free)
        if place.min_victims <= place.max_victims
    ]
    steps = iter(range(MAX_CHOICES))
    least = [place.min_victims for place in places]
    for size in range(max(1, min(least, default=1)), max((place.max_victims for place in places), default=0) + 1):
        near = (place for place, at_least in zip(places, least, strict=True) if at_least <= size)
        found = [
            (_victims_size(gone, requirements), place, gone)
            for place in near
            for gone in place.victim_choices(size, steps)
        ]
        found.sort(key=lambda each: each[0])
        fitting = next((PreemptionPlan(place.node, gone) for _, place, gone in found if place.fits(gone)), None)
        if fitting:
            return fitting
    return _plan_by_elimination(places, requirements)


def _candidate_nodes(
    cluster: SchedulingSnapshot, requirements: PodRequirements, pods: Iterable[Pod], pod: Pod, free: Sequence[Amounts]
) -> Iterator[CandidateNode]:
    there = _pods_by_node(pods)
    for node, known in enumerate(cluster.fleet.nodes):
        some = there.get(known.name, ())
        if (
            some
            and not any(exclusion_reasons(cluster, requirements, node))
            and _may_join_gpus(cluster, requirements, node)
        ):
            yield from _candidate_node(cluster, requirements, node, some, pod, free[node])


def _pods_by_node(pods: Iterable[Pod]) -> Mapping[str, Sequence[Pod]]:
    found: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        found[pod.spec.node_name].append(pod)
    return found


def _may_join_gpus(cluster: SchedulingSnapshot, requirements: PodRequirements, node: int) -> bool:
    """Could NVLink join as many GPUs as are wanted, were all of them free?"""
    devices = cluster.devices[node]
    if not requirements.nvlink_required or devices.free is None:
        return True
    well = ((1 << devices.topology.gpu_count) - 1) & ~devices.unhealthy
    return gpu_sets(devices.topology).largest_island(well) >= largest_request(requirements.container_requests)


def _candidate_node(
    cluster: SchedulingSnapshot, requirements: PodRequirements, node: int, there: Sequence[Pod], pod: Pod, free: Amounts
) -> Iterator[CandidateNode]:
    """The node; nothing where it refuses the pod whoever ends."""
    known, requested = cluster.fleet.nodes[node], host_ports(pod)
    needed = tuple(each for each in there if requested and find_port_conflicts(requested, host_ports(each)))
    if pod.spec.node_name not in ("", known.name) or any(map(_is_recreated, needed)):
        return

    def fits(gone: EvictedPods) -> bool:
        left = [each for each in there if each not in gone]
        ports = {known.name: {port for each in left for port in host_ports(each)}} if requested else {}
        room_for_one = not known.pods or len(left) < known.pods
        others = stock_filter_reasons(pod, (known,), (_free_after_eviction(free, gone),), ports)
        return (
            room_for_one
            and not others
            and not filter_reasons(_snapshot_without_pods(cluster, node, gone), requirements, node)
        )

    short = _node_shortages(cluster, requirements, node, len(there), pod, free)
    for each in needed:
        short = _shortages_without_pod(short, each)
    holders = (
        _victim_candidate(each, requirements, short) for each in there if each not in needed and not _is_recreated(each)
    )
    yield CandidateNode(
        node, fits, needed, short, sorted((each for each in holders if each), key=lambda each: each[:2])
    )


def _is_recreated(pod: Pod) -> bool:
    """A pod of a DaemonSet, or of the node itself."""
    return any(owner.kind in ("DaemonSet", "Node") for owner in pod.metadata.owner_references)


def _free_after_eviction(free: Amounts, gone: EvictedPods) -> Amounts:
    """What is free once some have ended, of what the node has at all."""
    held = [effective_requests(each) for each in gone]
    return {name: amount + sum(each.get(name, 0) for each in held) for name, amount in free.items()}


def _node_shortages(
    cluster: SchedulingSnapshot, requirements: PodRequirements, node: int, pods: int, pod: Pod, free: Amounts
) -> Amounts:
    """What a node has too little of, by resource, and by how much, as `_held_units` counts."""
    room, most = cluster.free[node], cluster.fleet.nodes[node].pods
    short = {
        "cpu": requirements.cpu_milli - room.cpu_milli if requirements.cpu_milli else 0,
        "memory": requirements.memory_mib * MIB - room.memory if requirements.memory_mib else 0,
        PODS_RESOURCE: pods + 1 - most if most else 0,
        **{name: units - room.units(name) for name, units in requirements.gpu_resources},
        **{name: amount - free.get(name, 0) for name, amount in other_requests(pod).items() if amount > 0},
    }
    return {name: amount for name, amount in short.items() if amount > 0}


def _shortages_without_pod(short: Amounts, pod: Pod) -> Amounts:
    """What is still too little once a pod has ended."""
    held = effective_requests(pod)
    left = {name: amount - _held_units(name, held) for name, amount in short.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _held_units(name: str, held: Amounts) -> int:
    """What a pod holds of a resource: CPU in millicores, memory in bytes, GPUs in units, others in nano-units."""
    if name == PODS_RESOURCE:
        return 1
    if name == "cpu":
        return held.get(name, 0) * 1000 // NANO
    return held.get(name, 0) // (NANO if name == "memory" or parse_gpu_resource(name) else 1)


def _victim_candidate(pod: Pod, requirements: PodRequirements, short: Amounts) -> VictimCandidate | None:
    """A pod that may end; None where that is of no use.

    Where GPUs are to be joined it counts which ones a pod holds, so none that holds any stands for another.
    """
    held = effective_requests(pod)
    gives = {name: units for name in short if (units := _held_units(name, held)) > 0}
    own = pod_key(pod) if requirements.nvlink_required and held.get(WHOLE_GPU) else ""
    return VictimCandidate(_victims_size((pod,), requirements), f"{gives} {own}", pod, gives) if gives or own else None


def _victims_size(gone: EvictedPods, requirements: PodRequirements) -> tuple[int, int]:
    """Units of the GPU resource that is wanted, and millicores, that pods hold."""
    held = [effective_requests(pod) for pod in gone]
    units = sum(_held_units(requirements.resource, each) for each in held) if requirements.resource else 0
    return units, sum(_held_units("cpu", each) for each in held)


def _victim_choices(
    holders: Sequence[VictimCandidate], short: Amounts, size: int, steps: Iterator[int]
) -> Iterator[EvictedPods]:
    """Every choice of so many that gives enough, but one of those alike; fewer once the steps have been used up."""
    if size <= 0:
        yield from [()] if size == 0 and not any(amount > 0 for amount in short.values()) else []
        return
    tried = None
    for place, one in enumerate(holders):
        if one[:2] == tried or not _can_cover_shortages(holders[place:], short, size):
            continue
        if next(steps, None) is None:
            return
        tried = one[:2]
        left = {name: amount - one.releases.get(name, 0) for name, amount in short.items()}
        for more in _victim_choices(holders[place + 1 :], left, size - 1, steps):
            yield (one.pod, *more)


def _can_cover_shortages(holders: Sequence[VictimCandidate], short: Amounts, size: int) -> bool:
    """Could so many of them give enough? Each resource by itself."""
    most = {name: nlargest(size, (each.releases.get(name, 0) for each in holders)) for name in short}
    return len(holders) >= size and all(sum(most[name]) >= amount for name, amount in short.items())


def _plan_by_elimination(places: Sequence[CandidateNode], requirements: PodRequirements) -> PreemptionPlan | None:
    """All that may end but those that need not, the smallest first: enough, and perhaps more than that."""
    ended = ((place, (*place.required_victims, *(each.pod for each in place.candidates))) for place in places)
    fitting = [(place, gone) for place, gone in ended if place.fits(gone)]
    near = sorted(fitting, key=lambda each: each[0].min_victims)[:MAX_SHORTCUT_NODES]
    found = [PreemptionPlan(place.node, _minimal_victims(gone, place.fits)) for place, gone in near]
    return min(found, key=lambda freed: (len(freed.pods), _victims_size(freed.pods, requirements)), default=None)


def _minimal_victims(gone: EvictedPods, fits: Callable[[EvictedPods], bool]) -> EvictedPods:
    """Without those that need not end after all, the smallest of them first."""
    needed = gone
    for pod in gone:
        rest = tuple(each for each in needed if each is not pod)
        needed = rest if fits(rest) else needed
    return needed


def _snapshot_without_pods(cluster: SchedulingSnapshot, node: int, pods: Iterable[Pod]) -> SchedulingSnapshot:
    """The cluster with pods gone from a node, and the GPUs that nobody else holds free."""
    room = cluster.free[node]
    cpu, memory, gpus = room.cpu_milli, room.memory, {name: room.units(name) for name in room.gpus}
    for pod in pods:
        held = effective_requests(pod)
        cpu, memory = cpu + _held_units("cpu", held), memory + _held_units("memory", held)
        gpus = {name: units + _held_units(name, held) for name, units in gpus.items()}
    return cluster.with_free(node, FreeResources(cpu, memory, gpus), _devices_without_pods(cluster.devices[node], pods))


def _devices_without_pods(devices: NodeDevices, pods: Iterable[Pod]) -> NodeDevices:
    """The devices of a node after pods have ended, without those that are ill."""
    if devices.free is None:
        return devices
    gone = {pod_key(pod) for pod in pods}
    left = gpu_mask([gpu for gpu, who in devices.holders.items() if gone.issuperset(who)])
    free = devices.free | left & devices.whole_gpus & ~devices.withdrawn
    return msgspec.structs.replace(devices, free=free & ~devices.unhealthy)
