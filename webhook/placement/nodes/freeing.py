"""What would have to end so that a pod fits: the fewest and smallest pods of one node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
    gone: list[Pod] = []
    for pod in sorted(pods, key=lambda pod: _held(pod, wanted))[:MOST_PODS]:
        gone.append(pod)
        if not obstacles(_without(cluster, node, gone), wanted, node):
            return _least(cluster, wanted, node, gone)
    return None


def _least(cluster: Cluster, wanted: Wanted, node: int, gone: list[Pod]) -> Freed:
    """Without those that need not end after all."""
    needed = list(gone)
    for pod in gone:
        rest = [each for each in needed if each is not pod]
        if not obstacles(_without(cluster, node, rest), wanted, node):
            needed = rest
    return Freed(node, tuple(needed))


def _without(cluster: Cluster, node: int, pods: Iterable[Pod]) -> Cluster:
    """The cluster with pods gone from a node, and the GPUs that nobody else holds free."""
    room = cluster.free[node]
    cpu, memory, gpus = room.cpu_milli, room.memory, dict(room.gpus)
    for pod in pods:
        held = effective_requests(pod)
        cpu += held.get("cpu", 0) * 1000 // NANO
        memory += held.get("memory", 0) // NANO
        gpus = {name: units + held.get(name, 0) // NANO for name, units in gpus.items()}
    return cluster.with_room(node, Room(cpu, memory, gpus), _freed(cluster.devices[node], pods))


def _freed(devices: Devices, pods: Iterable[Pod]) -> Devices:
    """The devices of a node after pods have ended."""
    if devices.free is None:
        return devices
    gone = {key_of(pod) for pod in pods}
    cut = {card.index for card in devices.cards}
    free = mask_of([gpu for gpu, who in devices.holders.items() if gpu not in cut and gone.issuperset(who)])
    return msgspec.structs.replace(devices, free=devices.free | free)


def _held(pod: Pod, wanted: Wanted) -> int:
    """What it holds of what is wanted: units of the GPU resource, or millicores for a pod without GPUs."""
    held = effective_requests(pod)
    return held.get(wanted.resource, 0) // NANO if wanted.resource else held.get("cpu", 0) * 1000 // NANO
