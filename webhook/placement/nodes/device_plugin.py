"""Predict which GPUs of a node a pod gets, container by container, and whether NVLink connects them.

The kubelet calls the device plugin once per container: init containers first, each kind in the order of the pod. GPUs
of an init container are passed on to later containers before others are allocated; a sidecar keeps its own. No process
sees the GPUs of another container, so GPUs are connected or not within each container.

Also brings an agent's report up to date: pods that are not in it yet hold what the plugin will have allocated, or idle
MIG instances.

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
    """GPUs that one pod requests.

    Attributes:
        container_requests: The containers that request whole GPUs; () if one container requests all.
    """

    units: Mapping[str, int]
    container_requests: ContainerRequests = ()


MAX_CACHED_REQUESTS = 1024

MAX_TRIED_SETS = 1 << MAX_PRECOMPUTED_GPUS
"""Number of choices of free GPUs that are tried: all for eight GPUs, the largest for sixteen."""


class ContainerRequest(NamedTuple):
    """GPUs that one container requests.

    Attributes:
        passes_on_gpus: True for an init container that ends: later containers get its GPUs.
    """

    gpus: int
    passes_on_gpus: bool = False


ContainerRequests = tuple[ContainerRequest, ...]
"""The containers of a pod that request GPUs, in the kubelet's order of allocation."""


ChooseSet = Callable[[GpuTopology, int, int, int], int]
"""Choose the set of one container from: topology, free GPUs, number, and GPUs that it reuses."""


def gpu_container_requests(pod: Pod, resource: str) -> ContainerRequests:
    """Return the containers of a pod that request units of a resource; invalid amounts count as none.

    An init container that needs no more than what earlier ones pass on is left out, because it changes nothing.
    """
    init = [(one, not is_sidecar(one)) for one in pod.spec.init_containers]
    requests: list[ContainerRequest] = []
    reused = 0
    for container, passes_on in (*init, *((one, False) for one in pod.spec.containers)):
        gpus = -(-limit_or_request(container.resources, resource) // NANO)
        if gpus > (reused if passes_on else 0):
            requests.append(ContainerRequest(gpus, passes_on))
            reused = gpus if passes_on else max(0, reused - gpus)
    return tuple(requests)


def multi_container_requests(pod: Pod) -> ContainerRequests:
    """Return the requests for whole GPUs; () unless several containers have one: then the pod's sum is enough."""
    requests = gpu_container_requests(pod, WHOLE_GPU)
    return requests if len(requests) > 1 else ()


def largest_request(requests: ContainerRequests) -> int:
    """Return the most GPUs of one container; 0 for none."""
    return max((request.gpus for request in requests), default=0)


def predict_allocation(topology: GpuTopology, free: int, count: int, reused: int = 0) -> int:
    """Return the set that one container gets: the plugin's choice, or the best set if the plugin fails; 0 for none.

    `free` and `reused` are masks: the free GPUs, and those that earlier init containers pass on.
    """
    predicted = best_effort_policy(topology).predict_set(free | reused, count, reused)
    return best_allocation(topology, free, count, reused) if predicted is None else predicted


def best_allocation(topology: GpuTopology, free: int, count: int, reused: int = 0) -> int:
    """Return the best set that one container could get. Arguments: `predict_allocation`."""
    more = gpu_sets(topology).optimal_set(free & ~reused, count - reused.bit_count())
    return 0 if more is None else reused | more


def allocate_containers(
    topology: GpuTopology, free: int, requests: ContainerRequests, choose: ChooseSet = predict_allocation
) -> tuple[int, ...] | None:
    """Return the set of each container, each chosen from the free GPUs by `choose`; None if there are too few GPUs."""
    sets, reused = [], 0
    for count, passes_on in requests:
        if count > (free | reused).bit_count():
            return None
        if count <= reused.bit_count():  # the kubelet may take any of them
            allocated = gpu_mask(tuple(islice(bit_positions(reused), count)))
        else:
            allocated = choose(topology, free, count, reused)
        free &= ~allocated
        reused = reused | allocated if passes_on else reused & ~allocated
        sets.append(allocated)
    return tuple(sets)


def gets_connected_gpus(
    topology: GpuTopology, free: int | None, requests: ContainerRequests, free_count: int = 0
) -> bool:
    """Return whether NVLink connects every two GPUs that the plugin allocates to a container, for each container.

    If the mask of free GPUs is unknown (None), it must hold whichever `free_count` GPUs are free.
    """
    if free is not None:
        return _are_sets_connected(topology, free, requests)
    sets = gpu_sets(topology)
    if not count_held_gpus(requests) <= free_count <= topology.gpu_count:
        return False
    if all(sets.are_all_connected(request.gpus) for request in requests):
        return True
    if topology.gpu_count > MAX_PRECOMPUTED_GPUS or sets.guaranteed_island(free_count) < largest_request(requests):
        return False
    choices = combinations(range(topology.gpu_count), free_count)
    return all(_are_sets_connected(topology, gpu_mask(some), requests) for some in choices)


@lru_cache(maxsize=MAX_CACHED_REQUESTS)
def can_ever_get_connected_gpus(topology: GpuTopology, requests: ContainerRequests) -> bool:
    """Return whether this may hold with other GPUs free. False only if certain: choices that are not tried may hold."""
    held, gpus = count_held_gpus(requests), topology.gpu_count
    all_gpus = (1 << gpus) - 1
    if held > gpus or gpu_sets(topology).largest_island(all_gpus) < largest_request(requests):
        return False
    choice_count = sum(comb(gpus, free) for free in range(held, gpus + 1))
    if choice_count > MAX_TRIED_SETS or _are_sets_connected(topology, all_gpus, requests):
        return True
    choices = chain.from_iterable(combinations(range(gpus), free) for free in range(held, gpus + 1))
    return any(_are_sets_connected(topology, gpu_mask(free), requests) for free in choices)


def count_held_gpus(requests: ContainerRequests) -> int:
    """Return how many GPUs the pod holds once all its containers have theirs."""
    reused = fresh = 0
    for count, passes_on in requests:
        more = max(0, count - reused)
        fresh += more
        reused = reused + more if passes_on else max(0, reused - count)
    return fresh


def count_connected_pods(
    topology: GpuTopology, free: int | None, requests: ContainerRequests, free_count: int = 0
) -> int:
    """Return how many such pods, one after the other, get connected GPUs. Arguments: `gets_connected_gpus`."""
    for pods in range(topology.gpu_count):
        if not gets_connected_gpus(topology, free, requests, free_count):
            return pods
        free = None if free is None else free & ~union_masks(allocate_containers(topology, free, requests) or ())
        free_count = max(0, free_count - count_held_gpus(requests))
    return topology.gpu_count


def _are_sets_connected(topology: GpuTopology, free: int, requests: ContainerRequests) -> bool:
    sets = allocate_containers(topology, free, requests)
    return sets is not None and all(gpu_sets(topology).is_nvlink_connected(each) for each in sets)


def current_devices(devices: NodeDevices, report: GPUNode, pods: Mapping[str, PodGpuUnits], units: int) -> NodeDevices:
    """Return the GPUs of a node as its pods hold them now.

    Args:
        pods: GPUs that each pod of the node holds, by "namespace/name", in the order of arrival.
        units: Units of `nvidia.com/gpu` that the node advertises.
    """
    known = {pod for holders in devices.holders.values() for pod in holders}
    current = exclude_withdrawn_gpus(release_absent_pods(devices, report, pods), units)
    for pod, (gpu_units, requests) in pods.items():
        for resource, count in gpu_units.items() if pod not in known else ():
            current = _allocate_resource(current, pod, resource, count, requests)
    return current


def _allocate_resource(
    devices: NodeDevices, pod: str, resource: str, count: int, requests: ContainerRequests
) -> NodeDevices:
    known = parse_gpu_resource(resource)
    if resource == WHOLE_GPU and devices.whole_gpus and devices.free is not None:
        sets = allocate_containers(devices.topology, devices.free, requests or (ContainerRequest(count),))
        gpus = devices.free if sets is None else union_masks(sets)  # all, if it requests more than are reported
        return replace(devices, free=devices.free & ~gpus, holders=_add_holder(devices, pod, bit_positions(gpus)))
    if known is not None and (known.mig or resource == WHOLE_GPU):
        chosen = _choose_idle_instances(devices.mig_cards, known.profile, count)
        cards = tuple(
            MigCard(card.index, card.used | chosen[card.index], card.idle - chosen[card.index])
            if card.index in chosen
            else card
            for card in devices.mig_cards
        )
        placed = {(index, each): pod for index, instances in chosen.items() for each in instances}
        return replace(
            devices,
            mig_cards=cards,
            holders=_add_holder(devices, pod, chosen),
            instance_holders={**devices.instance_holders, **placed},
        )
    return devices


def _add_holder(devices: NodeDevices, pod: str, gpus: Iterable[int]) -> Mapping[int, tuple[str, ...]]:
    return {**devices.holders, **{gpu: (*devices.holders.get(gpu, ()), pod) for gpu in gpus}}


def _choose_idle_instances(
    cards: tuple[MigCard, ...], profile: str, count: int
) -> Mapping[int, frozenset[MigPlacement]]:
    """Return idle instances of a profile by card, from the first card on.

    "" is any profile: if every card is in MIG mode, `nvidia.com/gpu` is an instance, and all are equal.
    """
    idle = ((card.index, one) for card in cards for one in sorted(card.idle) if profile in ("", one.profile))
    chosen: dict[int, frozenset[MigPlacement]] = {}
    for index, one in islice(idle, count):
        chosen[index] = chosen.get(index, frozenset()) | {one}
    return chosen
