"""Free resources of nodes, and free devices of classes, less what pods without a node may take of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from webhook.model.dra.class_offers import (
    ClassOffer,
    ClassOffers,
    count_free_devices,
    devices_lost,
    known_free_devices,
)
from webhook.model.dra.device_view import DeviceView
from webhook.model.fleet import FleetNode
from webhook.model.waiting_pods import MANY_AMOUNTS, UnitKind

UNLIMITED_PODS = 1 << 30
"""Pods that a node without a known limit accepts."""

MAX_NODES_COUNTED = 4
"""Nodes on which devices are counted for one pod, where they are not known: about 5 ms each. On others none is free."""


class FreeResources(msgspec.Struct, frozen=True, gc=False):
    """Resources of a node that its pods leave free; the counterpart of `FleetNode`.

    Attributes:
        cpu_milli: Free CPU in millicores.
        memory: Free memory in bytes.
        gpus: Free units by GPU resource.
        full: True if the node is at its pod limit, whatever else is free.
        stranded: GPU units of a full node that no pod holds, by resource: none of them is in `gpus`.
        others: Free nano-units of the other resources that the node advertises; {} if they are not known.
        pods: How many more pods the node accepts.
    """

    cpu_milli: int
    memory: int
    gpus: Mapping[str, int]
    full: bool = False
    stranded: Mapping[str, int] = {}
    others: Mapping[str, int] = {}
    pods: int = UNLIMITED_PODS

    def units(self, resource: str) -> int:
        """Return GPU units that no pod holds, whether the node accepts another pod or not."""
        return self.gpus.get(resource, 0) + self.stranded.get(resource, 0)


class NodeNeeds(NamedTuple):
    """Requests of a pod to a node besides GPUs: millicores, bytes of memory, and nano-units of others by name."""

    cpu_milli: int
    memory: int
    others: Mapping[str, int]


class PendingDeviceUse:
    """Use of nodes with devices of a class by pods that have no node yet, and the needs of another pod there.

    A pod that takes devices takes as many slots at most: each has the largest amounts of any of these pods. What the
    others take may be taken of one node.

    Attributes:
        devices: Devices of the class that these pods may take or make unavailable.
    """

    def __init__(self, offered: ClassOffer, needs: NodeNeeds, offers: ClassOffers, view: DeviceView) -> None:
        """Begin with the claims that have no devices yet."""
        self._offered, self._offers, self._classes = offered, offers, view.class_by_resource
        self.devices = sum(count * devices_lost(offered, name, offers) for name, count in view.pending.items())
        self._each = needs
        self._pods = self._cpu_milli = self._memory = 0
        self._has_unknown = False

    def add_pods(self, resource: str, *kinds: Mapping[UnitKind, int]) -> None:
        """Add pods that will hold units of a resource."""
        served = resource in self._classes
        lost = devices_lost(self._offered, self._classes[resource], self._offers) if served else 0
        for kind, pods in (item for counts in kinds for item in counts.items()):
            self._add(kind, pods, lost)

    def _add(self, kind: UnitKind, pods: int, lost: int) -> None:
        """Add pods that each make a number of devices unavailable with every unit."""
        if kind.nodes >= 0 and not kind.nodes & self._offered.offer.nodes:
            return
        self._has_unknown |= not self._each.others.keys().isdisjoint(name for name, _ in kind.others)
        self._has_unknown |= kind.others == MANY_AMOUNTS and bool(self._each.others)
        units = kind.amount * pods
        if not lost:
            self._pods += pods
            self._cpu_milli += units * kind.cpu_milli
            self._memory += units * kind.memory
            return
        self.devices += units * lost
        cpu_milli, memory, others = self._each
        self._each = NodeNeeds(max(cpu_milli, kind.cpu_milli), max(memory, kind.memory), others)

    def room_on(self, free: FreeResources) -> int:
        """Return the slots of a node, devices aside."""
        cpu_milli, memory, others = self._each
        room = [free.pods - self._pods]
        room += [(free.cpu_milli - self._cpu_milli) // cpu_milli] if cpu_milli > 0 else []
        room += [(free.memory - self._memory) // memory] if memory > 0 else []
        room += [free.others.get(name, 0) // amount for name, amount in others.items() if amount > 0]
        return 0 if free.full or self._has_unknown else max(0, min(room))


def free_resources_of_empty_node(node: FleetNode) -> FreeResources:
    """Return all resources of a node."""
    pods = node.pods or UNLIMITED_PODS
    return FreeResources(node.cpu_milli, node.memory, node.gpus, others=node.others, pods=pods)


def free_devices_by_node(offered: ClassOffer, nodes: Iterable[int], view: DeviceView) -> Iterator[tuple[int, int]]:
    """Yield nodes with their free devices of a class: those that are known, and then a few others."""
    unknown = list[int]()
    for node in nodes:
        free = known_free_devices(offered, node, view)
        if free is None:
            unknown.append(node)
        elif free:
            yield node, free
    pools, allocated = view.pools, view.allocated
    unused = (node for node in unknown if allocated.keys().isdisjoint(pools.names_of_node(node)))
    for node in list(islice(unused, MAX_NODES_COUNTED)) or unknown[:MAX_NODES_COUNTED]:
        yield node, count_free_devices(offered, node, view)
