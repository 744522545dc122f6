"""Which whole GPUs of a node a pod gets, container by container, and whether NVLink joins what each of them gets.

The kubelet asks the device plugin for one container after the other: init containers first, each kind in the order of
the pod. What an init container held goes to those after it before anything else does; a sidecar keeps its own. Only
one container sees a GPU, so GPUs are joined, or not, in each container by itself.

Source: kubelet, `devicesToAllocate` and `devicesToReuse` of its device manager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import chain, combinations, islice
from math import comb
from typing import NamedTuple

from msgspec.structs import replace

from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.pod_resources import is_sidecar, limit_or_request
from webhook.model.pods import Pod
from webhook.model.quantity import NANO
from webhook.placement.best_effort_policy import best_effort_policy
from webhook.placement.devices import NodeDevices, exclude_withdrawn_gpus, release_absent_pods
from webhook.placement.mig import MigCard, MigPlacement
from webhook.placement.nvlink import MAX_PRECOMPUTED_GPUS, gpu_mask, gpu_sets
from webhook.placement.topology import GpuTopology


class PodGpuUnits(NamedTuple):
    """What one pod asks for.

    Attributes:
        units: Units by GPU resource.
        turns: The containers that ask for whole GPUs; () where it is one that asks for all.
    """

    units: Mapping[str, int]
    container_requests: ContainerRequests = ()


MAX_CACHED_REQUESTS = 1024
"""What pods ask for, by kind of node, of which it is remembered whether it can be."""

MAX_TRIED_SETS = 1 << MAX_PRECOMPUTED_GPUS
"""Choices of free GPUs that are tried: all of eight, the largest of sixteen."""


class ContainerRequest(NamedTuple):
    """The GPUs of one container.

    Attributes:
        gpus: How many.
        passed_on: True for an init container that ends: those after it get its GPUs.
    """

    gpus: int
    passes_on_gpus: bool = False


ContainerRequests = tuple[ContainerRequest, ...]
"""The containers of a pod that ask for GPUs, in the order in which the kubelet gives them some."""


ChooseSet = Callable[[GpuTopology, int, int, int], int]
"""The set that one container gets: of the node's GPUs those free, how many, and those that it gets in any case."""


def gpu_container_requests(pod: Pod, resource: str) -> ContainerRequests:
    """The containers of a pod that ask for units of a resource; what is no amount above zero counts as none.

    An init container that gets along with what those before it have passed on is left out: it changes nothing.
    """
    init = [(one, not is_sidecar(one)) for one in pod.spec.init_containers]
    turns: list[ContainerRequest] = []
    held = 0
    for container, passed_on in (*init, *((one, False) for one in pod.spec.containers)):
        gpus = -(-limit_or_request(container.resources, resource) // NANO)
        if gpus > (held if passed_on else 0):
            turns.append(ContainerRequest(gpus, passed_on))
            held = gpus if passed_on else max(0, held - gpus)
    return tuple(turns)


def multi_container_requests(pod: Pod) -> ContainerRequests:
    """The same of whole GPUs, where several containers ask for some; () elsewhere: then the pod's sum says it all."""
    turns = gpu_container_requests(pod, WHOLE_GPU)
    return turns if len(turns) > 1 else ()


def largest_request(turns: ContainerRequests) -> int:
    """The most GPUs of one container; 0 for none."""
    return max((turn.gpus for turn in turns), default=0)


def predict_allocation(topology: GpuTopology, free: int, count: int, held: int = 0) -> int:
    """The set that one container gets: the plugin's; where it cannot cope, the best. 0 for none.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free.
        count: How many it asks for.
        held: Mask of those that it gets in any case.
    """
    predicted = best_effort_policy(topology).predict_set(free | held, count, held)
    return best_allocation(topology, free, count, held) if predicted is None else predicted


def best_allocation(topology: GpuTopology, free: int, count: int, held: int = 0) -> int:
    """The best that one container could get. Arguments: `predict_allocation`."""
    more = gpu_sets(topology).optimal_set(free & ~held, count - held.bit_count())
    return 0 if more is None else held | more


def allocate_containers(
    topology: GpuTopology, free: int, turns: ContainerRequests, choose: ChooseSet = predict_allocation
) -> tuple[int, ...] | None:
    """The set that each container gets; None where there are too few.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free.
        turns: The containers.
        choose: What one of them gets.
    """
    sets, held = [], 0
    for count, passed_on in turns:
        if count > (free | held).bit_count():
            return None
        got = _first_gpus(held, count) if count <= held.bit_count() else choose(topology, free, count, held)
        free &= ~got
        held = held | got if passed_on else held & ~got
        sets.append(got)
    return tuple(sets)


def can_join(topology: GpuTopology, free: int | None, turns: ContainerRequests, spare: int = 0) -> bool:
    """Does NVLink join what the plugin gives, each two GPUs of each container?

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        turns: The containers of the pod.
        spare: How many are free where it is not known which: yes only if it is so whichever they are.
    """
    if free is not None:
        return _are_sets_joined(topology, free, turns)
    sets = gpu_sets(topology)
    if not count_held_gpus(turns) <= spare <= topology.gpu_count:
        return False
    if all(sets.are_all_joined(turn.gpus) for turn in turns):
        return True
    if topology.gpu_count > MAX_PRECOMPUTED_GPUS or sets.guaranteed_island(spare) < largest_request(turns):
        return False
    return all(
        _are_sets_joined(topology, gpu_mask(some), turns) for some in combinations(range(topology.gpu_count), spare)
    )


@lru_cache(maxsize=MAX_CACHED_REQUESTS)
def can_ever_join(topology: GpuTopology, turns: ContainerRequests) -> bool:
    """Might it be so with other GPUs free? No only where it is sure: more choices than can be tried may hold one."""
    held, gpus = count_held_gpus(turns), topology.gpu_count
    everyone = (1 << gpus) - 1
    if held > gpus or gpu_sets(topology).largest_island(everyone) < largest_request(turns):
        return False
    if (
        _are_sets_joined(topology, everyone, turns)
        or sum(comb(gpus, free) for free in range(held, gpus + 1)) > MAX_TRIED_SETS
    ):
        return True
    choices = chain.from_iterable(combinations(range(gpus), free) for free in range(held, gpus + 1))
    return any(_are_sets_joined(topology, gpu_mask(free), turns) for free in choices)


def count_held_gpus(turns: ContainerRequests) -> int:
    """How many GPUs the pod holds once all its containers have theirs."""
    held = fresh = 0
    for count, passed_on in turns:
        more = max(0, count - held)
        fresh += more
        held = held + more if passed_on else max(0, held - count)
    return fresh


def count_joined_pods(topology: GpuTopology, free: int | None, turns: ContainerRequests, spare: int = 0) -> int:
    """How many such pods, one after the other, get GPUs that NVLink joins. Arguments: `can_join`."""
    for pods in range(topology.gpu_count):
        if not can_join(topology, free, turns, spare):
            return pods
        free = None if free is None else free & ~union_masks(allocate_containers(topology, free, turns) or ())
        spare = max(0, spare - count_held_gpus(turns))
    return topology.gpu_count


def _are_sets_joined(topology: GpuTopology, free: int, turns: ContainerRequests) -> bool:
    sets = allocate_containers(topology, free, turns)
    return sets is not None and all(gpu_sets(topology).is_joined(each) for each in sets)


def _first_gpus(gpus: int, count: int) -> int:
    """So many of some GPUs. The kubelet takes any; here it is the first."""
    return gpu_mask(tuple(islice(bit_positions(gpus), count)))


def current_devices(devices: NodeDevices, report: GPUNode, held: Mapping[str, PodGpuUnits], units: int) -> NodeDevices:
    """The GPUs of a node as its pods hold them: the report, brought up to date.

    Args:
        devices: As they were reported.
        report: The report.
        held: What each pod of the node holds, by "namespace/name", the first to come first.
        units: Units of `nvidia.com/gpu` that the node gives out.
    """
    known = {pod for who in devices.holders.values() for pod in who}
    newcomers = {pod: asked for pod, asked in held.items() if pod not in known}
    return _allocate_pods(exclude_withdrawn_gpus(release_absent_pods(devices, report, held), units), newcomers)


def _allocate_pods(devices: NodeDevices, pods: Mapping[str, PodGpuUnits]) -> NodeDevices:
    """The devices after some pods have come that the report does not know."""
    for pod, (units, turns) in pods.items():
        for resource, count in units.items():
            devices = _allocate_resource(devices, pod, resource, count, turns)
    return devices


def _allocate_resource(
    devices: NodeDevices, pod: str, resource: str, count: int, turns: ContainerRequests
) -> NodeDevices:
    known = parse_gpu_resource(resource)
    if resource == WHOLE_GPU and devices.whole_gpus and devices.free is not None:
        gpus = _choose_whole_gpus(devices, devices.free, turns or (ContainerRequest(count),))
        return replace(devices, free=devices.free & ~gpus, holders=_add_holder(devices, pod, bit_positions(gpus)))
    if known is not None and (known.mig or resource == WHOLE_GPU):
        taken = _choose_idle_instances(devices.mig_cards, known.profile, count)
        cards = tuple(_mark_instances_used(card, taken.get(card.index, frozenset())) for card in devices.mig_cards)
        return replace(devices, mig_cards=cards, holders=_add_holder(devices, pod, taken))
    return devices


def _add_holder(devices: NodeDevices, pod: str, gpus: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    """Who holds what, with a pod that holds some of these GPUs."""
    return {**devices.holders, **{gpu: (*devices.holders.get(gpu, ()), pod) for gpu in gpus}}


def _choose_whole_gpus(devices: NodeDevices, free: int, turns: ContainerRequests) -> int:
    """The GPUs that a pod gets; all that are free where it asks for more than are reported."""
    sets = allocate_containers(devices.topology, free, turns)
    return free if sets is None else union_masks(sets)


def _choose_idle_instances(
    cards: tuple[MigCard, ...], profile: str, count: int
) -> Mapping[int, frozenset[MigPlacement]]:
    """Some idle instances of a profile by their card, from the first card on.

    Without a profile it is any: where every card is cut, `nvidia.com/gpu` is an instance, and all are alike.
    """
    idle = ((card.index, one) for card in cards for one in sorted(card.idle) if profile in ("", one.profile))
    taken: dict[int, frozenset[MigPlacement]] = {}
    for index, one in islice(idle, count):
        taken[index] = taken.get(index, frozenset()) | {one}
    return taken


def _mark_instances_used(card: MigCard, taken: frozenset[MigPlacement]) -> MigCard:
    return MigCard(card.index, card.used | taken, card.idle - taken) if taken else card
