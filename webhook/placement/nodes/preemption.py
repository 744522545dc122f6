"""Find the fewest pods of one node that would have to be evicted so that a pod fits; of equal plans, the smallest pods.

Shortages of a node narrow the combinations of victims, and each combination is checked. More victims may connect fewer
GPUs, because the device plugin then chooses others, so combinations cannot be pruned by their union.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from typing import NamedTuple

import msgspec

from webhook.model.filters.node_ports import find_port_conflicts, host_ports
from webhook.model.filters.node_resources_fit import PODS_RESOURCE, Amounts, other_requests
from webhook.model.filters.pod_ties import ClusterPods
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod, pod_key
from webhook.model.quantity import NANO
from webhook.placement.devices import NodeDevices
from webhook.placement.nodes.device_plugin import largest_request
from webhook.placement.nodes.filtering import (
    filter_reasons,
    pod_tie_reasons,
    static_filter_reasons,
    stock_filter_reasons,
)
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_mask, gpu_sets

MAX_CHOICES = 20_000
"""Combinations that are checked over all nodes; after that, a plan found by elimination."""

MAX_SHORTCUT_NODES = 16
"""Nodes for which elimination is tried, those first that may need the fewest victims."""

EvictedPods = tuple[Pod, ...]

TieTest = Callable[[int, EvictedPods], bool]
"""Tests whether affinity or spread between pods excludes the pod from a node without some evicted pods."""


class PreemptionPlan(msgspec.Struct, frozen=True):
    """Pods of one node to evict."""

    node: int
    pods: EvictedPods


class VictimCandidate(NamedTuple):
    """A pod that may be evicted.

    Attributes:
        size: Units of the GPU resource that is requested, and millicores.
        kind: Equal for interchangeable pods.
        releases: Amounts of what is short that it would release.
    """

    size: tuple[int, int]
    kind: str
    pod: Pod
    releases: Amounts


class CandidateNode(NamedTuple):
    """A node that would accept the pod if some of its pods were evicted.

    Attributes:
        node: Its position.
        fits: Whether the pod fits after evicting some pods.
        required_victims: Pods that must be evicted in any case: they hold a requested host port.
        shortages: Amounts that are short besides, by resource.
        candidates: Other pods that may be evicted, the smallest first.
    """

    node: int
    fits: Callable[[EvictedPods], bool]
    required_victims: EvictedPods
    shortages: Amounts
    candidates: Sequence[VictimCandidate]

    @property
    def min_victims(self) -> int:
        """A lower bound for the number of victims; one more than there are if no number is enough."""
        sizes = range(len(self.candidates) + 1)
        enough = (size for size in sizes if _can_cover_shortages(self.candidates, self.shortages, size))
        return len(self.required_victims) + next(enough, len(self.candidates) + 1)

    @property
    def max_victims(self) -> int:
        """Number of pods that may be evicted."""
        return len(self.required_victims) + len(self.candidates)

    def victim_choices(self, size: int, budget: Iterator[int]) -> Iterator[EvictedPods]:
        """Yield combinations of `size` pods that cover all shortages."""
        for more in _victim_choices(self.candidates, self.shortages, size - len(self.required_victims), budget):
            yield (*self.required_victims, *more)


def find_preemption(
    snapshot: SchedulingSnapshot,
    requirements: PodRequirements,
    pods: Sequence[Pod],
    pod: Pod,
    free: Sequence[Amounts],
    tied_pods: ClusterPods,
) -> PreemptionPlan | None:
    """Return the plan with the fewest victims, and of equal ones those that hold least, for a pod that fits on no node.

    Pods of DaemonSets and static pods are never victims: they would be recreated. `free`: free amounts of other
    resources than CPU, memory and GPUs, by node. `tied_pods`: the pods as affinity and spread see them.
    """

    def is_tied_elsewhere(node: int, evicted: EvictedPods) -> bool:
        remaining = (each for each in pods if each not in evicted)
        after = tied_pods.without_pods(evicted, remaining, snapshot.fleet)
        return node in pod_tie_reasons(pod, after, snapshot.fleet)

    candidates = _candidate_nodes(snapshot, requirements, pods, pod, free, is_tied_elsewhere)
    bounded = [(each, low) for each in candidates if (low := each.min_victims) <= each.max_victims]
    smallest = max(1, min((low for _, low in bounded), default=1))
    largest = max((each.max_victims for each, _ in bounded), default=0)
    budget = iter(range(MAX_CHOICES))
    for size in range(smallest, largest + 1):
        found = [
            (_victims_size(evicted, requirements), candidate, evicted)
            for candidate, low in bounded
            if low <= size
            for evicted in candidate.victim_choices(size, budget)
        ]
        found.sort(key=lambda each: each[0])
        for _, candidate, evicted in found:
            if candidate.fits(evicted):
                return PreemptionPlan(candidate.node, evicted)
    return _plan_by_elimination([candidate for candidate, _ in bounded], requirements)


def _candidate_nodes(
    snapshot: SchedulingSnapshot,
    requirements: PodRequirements,
    pods: Iterable[Pod],
    pod: Pod,
    free: Sequence[Amounts],
    is_tied_elsewhere: TieTest,
) -> Iterator[CandidateNode]:
    running: defaultdict[str, list[Pod]] = defaultdict(list)
    for each in pods:
        running[each.spec.node_name].append(each)
    for node, known in enumerate(snapshot.fleet.nodes):
        on_node = running.get(known.name, ())
        if not on_node or any(static_filter_reasons(snapshot, requirements, node)):
            continue
        if _may_connect_gpus(snapshot, requirements, node):
            yield from _candidate_node(snapshot, requirements, node, on_node, pod, free[node], is_tied_elsewhere)


def _may_connect_gpus(snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int) -> bool:
    """Return whether NVLink could connect enough GPUs if all of them were free."""
    devices = snapshot.devices[node]
    if not requirements.nvlink_required or devices.free is None:
        return True
    healthy = ((1 << devices.topology.gpu_count) - 1) & ~devices.unhealthy
    return gpu_sets(devices.topology).largest_island(healthy) >= largest_request(requirements.container_requests)


def _candidate_node(
    snapshot: SchedulingSnapshot,
    requirements: PodRequirements,
    node: int,
    running: Sequence[Pod],
    pod: Pod,
    free: Amounts,
    is_tied_elsewhere: TieTest,
) -> Iterator[CandidateNode]:
    """Yield the node, or nothing if it rejects the pod whatever is evicted."""
    known, requested = snapshot.fleet.nodes[node], host_ports(pod)
    needed = tuple(each for each in running if requested and find_port_conflicts(requested, host_ports(each)))
    if pod.spec.node_name not in ("", known.name) or any(map(_is_recreated, needed)):
        return

    def fits(evicted: EvictedPods) -> bool:
        remaining = [each for each in running if each not in evicted]
        if known.pods and len(remaining) >= known.pods:
            return False
        ports = {known.name: {port for each in remaining for port in host_ports(each)}} if requested else {}
        held = [effective_requests(each) for each in evicted]
        after = {name: amount + sum(each.get(name, 0) for each in held) for name, amount in free.items()}
        if stock_filter_reasons(pod, (known,), (after,), ports) or is_tied_elsewhere(node, evicted):
            return False
        return not filter_reasons(_snapshot_without_pods(snapshot, node, evicted), requirements, node)

    shortages = _node_shortages(snapshot, requirements, node, len(running), pod, free)
    for each in needed:
        held = effective_requests(each)
        shortages = {name: amount - _held_units(name, held) for name, amount in shortages.items()}
    shortages = {name: amount for name, amount in shortages.items() if amount > 0}
    evictable = [each for each in running if each not in needed and not _is_recreated(each)]
    victims = filter(None, [_victim_candidate(each, requirements, shortages) for each in evictable])
    yield CandidateNode(node, fits, needed, shortages, sorted(victims, key=lambda each: each[:2]))


def _is_recreated(pod: Pod) -> bool:
    """Return whether it is a pod of a DaemonSet, or a static pod."""
    return any(owner.kind in ("DaemonSet", "Node") for owner in pod.metadata.owner_references)


def _node_shortages(
    snapshot: SchedulingSnapshot, requirements: PodRequirements, node: int, pods: int, pod: Pod, free: Amounts
) -> Amounts:
    """Return what the node has too little of, by resource, in the units of `_held_units`."""
    node_free, pod_limit = snapshot.free[node], snapshot.fleet.nodes[node].pods
    shortages = {
        "cpu": requirements.cpu_milli - node_free.cpu_milli if requirements.cpu_milli else 0,
        "memory": requirements.memory - node_free.memory if requirements.memory else 0,
        PODS_RESOURCE: pods + 1 - pod_limit if pod_limit else 0,
        **{name: units - node_free.units(name) for name, units in requirements.gpu_resources},
        **{name: amount - free.get(name, 0) for name, amount in other_requests(pod).items() if amount > 0},
    }
    return {name: amount for name, amount in shortages.items() if amount > 0}


def _held_units(name: str, held: Amounts) -> int:
    """CPU in millicores, memory in bytes, GPUs in units, other resources in nano-units."""
    if name == PODS_RESOURCE:
        return 1
    if name == "cpu":
        return held.get(name, 0) * 1000 // NANO
    return held.get(name, 0) // (NANO if name == "memory" or parse_gpu_resource(name) else 1)


def _victim_candidate(pod: Pod, requirements: PodRequirements, shortages: Amounts) -> VictimCandidate | None:
    """Return a candidate; None if evicting the pod does not help.

    If GPUs must be connected, it matters which ones a pod holds, so no pod with GPUs is interchangeable.
    """
    held = effective_requests(pod)
    releases = {name: units for name in shortages if (units := _held_units(name, held)) > 0}
    own = pod_key(pod) if requirements.nvlink_required and held.get(WHOLE_GPU) else ""
    if not releases and not own:
        return None
    return VictimCandidate(_victims_size((pod,), requirements), f"{releases} {own}", pod, releases)


def _victims_size(evicted: EvictedPods, requirements: PodRequirements) -> tuple[int, int]:
    """Return the units of the requested GPU resource and the millicores that pods hold."""
    held = [effective_requests(pod) for pod in evicted]
    units = sum(_held_units(requirements.resource, each) for each in held) if requirements.resource else 0
    return units, sum(_held_units("cpu", each) for each in held)


def _victim_choices(
    victims: Sequence[VictimCandidate], shortages: Amounts, size: int, budget: Iterator[int]
) -> Iterator[EvictedPods]:
    """Yield combinations of `size` victims that cover the shortages, one of equal ones, while the budget lasts."""
    if size <= 0:
        yield from [()] if size == 0 and not any(amount > 0 for amount in shortages.values()) else []
        return
    tried = None
    for position, victim in enumerate(victims):
        if victim[:2] == tried or not _can_cover_shortages(victims[position:], shortages, size):
            continue
        if next(budget, None) is None:
            return
        tried = victim[:2]
        left = {name: amount - victim.releases.get(name, 0) for name, amount in shortages.items()}
        for more in _victim_choices(victims[position + 1 :], left, size - 1, budget):
            yield (victim.pod, *more)


def _can_cover_shortages(victims: Sequence[VictimCandidate], shortages: Amounts, size: int) -> bool:
    """Return whether `size` victims could cover the shortages, each resource by itself."""
    most = {name: nlargest(size, (each.releases.get(name, 0) for each in victims)) for name in shortages}
    return len(victims) >= size and all(sum(most[name]) >= amount for name, amount in shortages.items())


def _plan_by_elimination(candidates: Sequence[CandidateNode], requirements: PodRequirements) -> PreemptionPlan | None:
    """Evict every candidate, then keep those that need not go, the smallest first. May evict more than necessary."""
    all_evicted = [(each, (*each.required_victims, *(one.pod for one in each.candidates))) for each in candidates]
    fitting = [(candidate, evicted) for candidate, evicted in all_evicted if candidate.fits(evicted)]
    fitting.sort(key=lambda each: each[0].min_victims)
    plans = []
    for candidate, evicted in fitting[:MAX_SHORTCUT_NODES]:
        needed = evicted
        for pod in evicted:
            rest = tuple(each for each in needed if each is not pod)
            needed = rest if candidate.fits(rest) else needed
        plans.append(PreemptionPlan(candidate.node, needed))
    return min(plans, key=lambda plan: (len(plan.pods), _victims_size(plan.pods, requirements)), default=None)


def _snapshot_without_pods(snapshot: SchedulingSnapshot, node: int, pods: Iterable[Pod]) -> SchedulingSnapshot:
    """Return the snapshot with pods gone from a node, and free the GPUs that no other pod holds."""
    free = snapshot.free[node]
    cpu, memory, gpus = free.cpu_milli, free.memory, {name: free.units(name) for name in free.gpus}
    for pod in pods:
        held = effective_requests(pod)
        cpu, memory = cpu + _held_units("cpu", held), memory + _held_units("memory", held)
        gpus = {name: units + _held_units(name, held) for name, units in gpus.items()}
    return snapshot.with_free(
        node, FreeResources(cpu, memory, gpus), _devices_without_pods(snapshot.devices[node], pods)
    )


def _devices_without_pods(devices: NodeDevices, pods: Iterable[Pod]) -> NodeDevices:
    """Return the devices after evictions, without unhealthy GPUs."""
    if devices.free is None:
        return devices
    evicted = {pod_key(pod) for pod in pods}
    left = gpu_mask([gpu for gpu, pods in devices.holders.items() if evicted.issuperset(pods)])
    free = devices.free | left & devices.whole_gpus & ~devices.withdrawn
    return msgspec.structs.replace(devices, free=free & ~devices.unhealthy)
