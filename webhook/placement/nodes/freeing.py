"""What would have to end so that a pod fits: the fewest and smallest pods of one node, or few where it takes many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import msgspec

from webhook.model.cluster import Room
from webhook.model.effective import effective_requests
from webhook.model.pods import Pod, key_of
from webhook.model.quantity import NANO
from webhook.placement.devices import Devices
from webhook.placement.nodes.cluster import Cluster, Wanted
from webhook.placement.nodes.filtering import obstacles
from webhook.placement.nvlink import mask_of

MOST_PODS = 8
"""Pods of one node that are thought away, at most."""

TRIED_THROUGH = (1, 2)
"""Numbers of pods of which every choice is tried; of more, those that a shortcut finds."""


class Freed(msgspec.Struct, frozen=True):
    """Pods of one node without which the pod would fit there."""

    node: int
    pods: tuple[Pod, ...]


def freeing(cluster: Cluster, wanted: Wanted, pods: Iterable[Pod]) -> Freed | None:
    """The node where the fewest pods would have to end, and of equal ones those that hold fewest units.

    Args:
        cluster: The nodes, none of which takes the pod.
        wanted: The pod.
        pods: Who runs where.
    """
    there = _holding(pods, wanted)
    places = ((node, there[known.name]) for node, known in enumerate(cluster.fleet.nodes) if known.name in there)
    found = [freed for node, some in places if (freed := _on(cluster, wanted, node, some))]
    return min(found, key=lambda freed: (len(freed.pods), sum(_held(pod, wanted) for pod in freed.pods)), default=None)


def _holding(pods: Iterable[Pod], wanted: Wanted) -> Mapping[str, Sequence[Pod]]:
    """The pods that hold some of what is wanted, by node."""
    found: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if _held(pod, wanted):
            found[pod.spec.node_name].append(pod)
    return found


def _on(cluster: Cluster, wanted: Wanted, node: int, pods: Sequence[Pod]) -> Freed | None:
    def fits(gone: Sequence[Pod]) -> bool:
        return not obstacles(_without(cluster, node, gone), wanted, node)

    def units(gone: Iterable[Pod]) -> int:
        return sum(_held(pod, wanted) for pod in gone)

    some = _some(sorted(pods, key=lambda pod: _held(pod, wanted)))
    if not fits(some):
        return None
    short = _short(cluster, wanted, node)
    few = (gone for size in TRIED_THROUGH for gone in sorted(combinations(some, size), key=units))
    found = next((gone for gone in few if units(gone) >= short and fits(gone)), None)
    return Freed(node, found or _least(some, fits))


def _some(pods: Sequence[Pod]) -> Sequence[Pod]:
    """Of many pods, the smallest first, the smallest and the largest."""
    half = MOST_PODS // 2
    return pods if len(pods) <= MOST_PODS else (*pods[:half], *pods[-half:])


def _least(gone: Sequence[Pod], fits: Callable[[Sequence[Pod]], bool]) -> tuple[Pod, ...]:
    """Without those that need not end after all, the smallest of them first."""
    needed = tuple(gone)
    for pod in gone:
        rest = tuple(each for each in needed if each is not pod)
        needed = rest if fits(rest) else needed
    return needed


def _without(cluster: Cluster, node: int, pods: Iterable[Pod]) -> Cluster:
    """The cluster with pods gone from a node, and the GPUs that nobody else holds free."""
    room = cluster.free[node]
    cpu, memory, gpus = room.cpu_milli, room.memory, {name: room.units(name) for name in room.gpus}
    for pod in pods:
        held = effective_requests(pod)
        cpu += held.get("cpu", 0) * 1000 // NANO
        memory += held.get("memory", 0) // NANO
        gpus = {name: units + held.get(name, 0) // NANO for name, units in gpus.items()}
    return cluster.with_room(node, Room(cpu, memory, gpus), _freed(cluster.devices[node], pods))


def _freed(devices: Devices, pods: Iterable[Pod]) -> Devices:
    """The devices of a node after pods have ended, without those that are ill."""
    if devices.free is None:
        return devices
    gone = {key_of(pod) for pod in pods}
    left = mask_of([gpu for gpu, who in devices.holders.items() if gone.issuperset(who)])
    free = devices.free | left & devices.whole & ~devices.lost
    return msgspec.structs.replace(devices, free=free & ~devices.unhealthy)


def _short(cluster: Cluster, wanted: Wanted, node: int) -> int:
    """How much too little of what is wanted is free, in the units of `_held`."""
    room = cluster.free[node]
    return wanted.count - room.units(wanted.resource) if wanted.resource else wanted.cpu_milli - room.cpu_milli


def _held(pod: Pod, wanted: Wanted) -> int:
    """What it holds of what is wanted: units of the GPU resource, or millicores for a pod without GPUs."""
    held = effective_requests(pod)
    return held.get(wanted.resource, 0) // NANO if wanted.resource else held.get("cpu", 0) * 1000 // NANO
