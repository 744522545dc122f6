"""What placement ranks, kept live: the nodes, what pods hold there, and what the nodes' agents report.

A pod that comes or goes, and a report, touch one node; they are told by its name. A node that changes asks for a
new index of all nodes, which is not made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeVar

from webhook.cache.gathering import room_of
from webhook.cache.holdings import PODS, Holdings
from webhook.cache.objects import came
from webhook.cache.store import Store, StoreWriter
from webhook.cache.tenants import TenantsWriter
from webhook.kube.watching import Writer
from webhook.model.cluster import Room
from webhook.model.fleet import FleetNode
from webhook.model.gpunodes import GPUNode
from webhook.model.lines import Amounts, Line
from webhook.model.objects import Node
from webhook.model.pods import Pod
from webhook.model.quantity import NANO
from webhook.model.resources import WHOLE_GPU, gpu_resource
from webhook.placement.devices import Devices, reported
from webhook.placement.nodes.holding import Held, as_held
from webhook.placement.nodes.reserving import Reserved
from webhook.placement.reports import unusable

MOST_ARRIVALS = 10_000
"""Kinds of pods without GPUs that are counted until somebody takes the counts."""

T = TypeVar("T")


class Inventory:
    """The objects, and what they come to on each node.

    Attributes:
        nodes, gpunodes, pods: The writers, one for each watch.
        unusable: Why reports cannot be used, by node.
        outdated: Did a node change, come or go? Whoever makes a new index says so.
        arrivals: Pods without GPUs that came to nodes, by what they hold. Whoever counts them clears it.
    """

    def __init__(self) -> None:
        self._nodes: Store[Node] = Store()
        self._holdings = Holdings()
        self._reports: dict[str, tuple[GPUNode, Devices]] = {}
        self.unusable: dict[str, str] = {}
        self._dirty: dict[str, None] = {}
        self.outdated = True
        self.arrivals: Counter[Amounts] = Counter()
        self.nodes = StoreWriter(self._nodes, _name, self._node_changed)
        self.gpunodes = StoreWriter(Store[GPUNode](), _name, self._report_changed)
        self.pods = TenantsWriter(self._holdings, self._touched, self._arrived, self._relisted)

    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, by name."""
        return tuple(sorted(self._nodes.items.values(), key=_name))

    def lines(self) -> tuple[Line, ...]:
        """What every pod holds that is on a node."""
        return tuple(line for lines in self._holdings.sums.lines.values() for line in lines.values() if line.node)

    def touched(self, most: int) -> list[str]:
        """Names of nodes on which something changed, each told once; at most so many at a time."""
        names = [name for name, _ in zip(self._dirty, range(most), strict=False)]
        for name in names:
            del self._dirty[name]
        return names

    def touch(self, names: Iterable[str]) -> None:
        """Tell these again."""
        self._dirty.update(dict.fromkeys(names))

    def on(self, node: FleetNode, reserved: Iterable[Reserved] = ()) -> tuple[Room, Devices | None]:
        """What is free on a node, and which GPUs are; None where nothing is reported.

        Args:
            node: The node.
            reserved: Places promised there; one of a pod that is there already does not count.
        """
        there = self.pods.tenants.on(node.name)
        coming = [place for place in reserved if place.pod not in there]
        held = dict(self._holdings.on(node.name))
        held[PODS] = held.get(PODS, 0) + len(coming)
        for place in coming:
            for resource, amount in place.amounts.items():
                held[resource] = held.get(resource, 0) + amount
        room = room_of(node, held, held[PODS])
        who = {name: Held(each.units, each.turns) for name, each in there.items()}
        who |= {each.pod or each.uid: Held(_units(each), each.turns) for each in coming}
        return room, self._devices(node, who)

    def devices_without(self, node: FleetNode, uids: Container[str]) -> Devices | None:
        """The GPUs if pods with these uids were gone; None where nothing is reported."""
        there = self.pods.tenants.on(node.name)
        left = {name: Held(each.units, each.turns) for name, each in there.items() if each.uid not in uids}
        return self._devices(node, left)

    def knows(self, pod: str) -> bool:
        """Is a pod with GPUs, "namespace/name", on a node?"""
        return self.pods.tenants.knows(pod)

    def _devices(self, node: FleetNode, held: Mapping[str, Held]) -> Devices | None:
        """The GPUs as these pods hold them: the report, brought up to date."""
        found = self._reports.get(node.name)
        if found is None:
            return None
        report, devices = found
        return as_held(devices, report, held, node.gpus.get(WHOLE_GPU, 0))

    # What the writers tell.

    def _node_changed(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self.outdated = True

    def _report_changed(self, key: str, _before: GPUNode | None, after: GPUNode | None) -> None:
        devices, why = (reported(after), unusable(after)) if after is not None else (None, "")
        self.unusable.pop(key, None)
        if why:
            self.unusable[key] = why
        if after is None or devices is None:
            self._reports.pop(key, None)
        else:
            self._reports[key] = (after, devices)
        self._dirty[key] = None

    def _touched(self, name: str) -> None:
        if name:
            self._dirty[name] = None

    def _arrived(self, line: Line) -> None:
        if len(self.arrivals) < MOST_ARRIVALS or line.requests in self.arrivals:
            self.arrivals[line.requests] += 1

    def _relisted(self) -> None:
        self._dirty.update(dict.fromkeys(self._nodes.items))


def _units(place: Reserved) -> dict[str, int]:
    return {name: -(-amount // NANO) for name, amount in place.amounts.items() if gpu_resource(name)}


def _name(item: Node | GPUNode) -> str:
    return item.metadata.name


def stocked(objects: Sequence[object]) -> Inventory:
    """The inventory of a snapshot, which never changes; objects of other kinds are left out."""
    inventory = Inventory()
    _list(inventory.nodes, [item for item in objects if isinstance(item, Node)])
    _list(inventory.gpunodes, [item for item in objects if isinstance(item, GPUNode)])
    _list(inventory.pods, sorted((item for item in objects if isinstance(item, Pod)), key=came))
    return inventory


def _list(writer: Writer[T], items: Iterable[T]) -> None:
    writer.begin()
    for item in items:
        writer.put(item)
    writer.swap()
