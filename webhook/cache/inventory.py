"""What placement ranks, kept live: the nodes, what pods hold there, and what the nodes' agents report.

A pod that comes or goes, and a report, touch one node; they are told by its name. A node that changes asks for a
new index of all nodes, which is not made here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeVar

from webhook.cache.build_view import free_resources_of_node
from webhook.cache.gpu_pods import GpuPodWriter
from webhook.cache.node_usage import POD_COUNT, NodeUsage
from webhook.cache.snapshot_objects import creation_order
from webhook.cache.store import StoreReader, StoreWriter
from webhook.kube.reflector import ReflectorStore
from webhook.model.cluster_view import FreeResources
from webhook.model.fleet import FleetNode
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import WHOLE_GPU, parse_gpu_resource
from webhook.model.objects import Node
from webhook.model.pod_summary import PodSummary, ResourceAmounts
from webhook.model.pods import Pod
from webhook.model.quantity import NANO
from webhook.placement.devices import NodeDevices, devices_from_report, find_report_error
from webhook.placement.nodes.device_plugin import PodGpuUnits, current_devices
from webhook.placement.nodes.node_reservations import NodeReservation

MAX_ARRIVAL_KINDS = 10_000
"""Kinds of pods without GPUs that are counted until somebody takes the counts."""

T = TypeVar("T")


class NodeInventory:
    """The objects, and what they come to on each node.

    Attributes:
        nodes, gpunodes, pods: The writers, one for each watch.
        unusable: Why reports cannot be used, by node.
        outdated: Did a node change, come or go? Whoever makes a new index says so.
        arrivals: Pods without GPUs that came to nodes, by what they hold. Whoever counts them clears it.
    """

    def __init__(self) -> None:
        self._nodes: StoreReader[Node] = StoreReader()
        self._usage = NodeUsage()
        self._reports: dict[str, tuple[GPUNode, NodeDevices]] = {}
        self.unusable_reports: dict[str, str] = {}
        self._changed_nodes: dict[str, None] = {}
        self.index_outdated = True
        self.arrivals: Counter[ResourceAmounts] = Counter()
        self.nodes = StoreWriter(self._nodes, _node_key, self._on_node_change)
        self.gpunodes = StoreWriter(StoreReader[GPUNode](), _node_key, self._on_report_change)
        self.pods = GpuPodWriter(self._usage, self._on_pod_change, self._on_pod_arrival, self._on_relist)

    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes, by name."""
        return tuple(sorted(self._nodes.items.values(), key=_node_key))

    def bound_pods(self) -> tuple[PodSummary, ...]:
        """What every pod holds that is on a node."""
        return tuple(line for lines in self._usage.totals.summaries.values() for line in lines.values() if line.node)

    def take_changed_nodes(self, most: int) -> list[str]:
        """Names of nodes on which something changed, each told once; at most so many at a time."""
        names = [name for name, _ in zip(self._changed_nodes, range(most), strict=False)]
        for name in names:
            del self._changed_nodes[name]
        return names

    def mark_changed(self, names: Iterable[str]) -> None:
        """Tell these again."""
        self._changed_nodes.update(dict.fromkeys(names))

    def free_on_node(
        self, node: FleetNode, reserved: Iterable[NodeReservation] = ()
    ) -> tuple[FreeResources, NodeDevices | None]:
        """What is free on a node, and which GPUs are; None where nothing is reported.

        Args:
            node: The node.
            reserved: Places promised there; one of a pod that is there already does not count.
        """
        there = self.pods.index.on_node(node.name)
        coming = [place for place in reserved if place.pod not in there]
        held = dict(self._usage.on_node(node.name))
        held[POD_COUNT] = held.get(POD_COUNT, 0) + len(coming)
        for place in coming:
            for resource, amount in place.amounts.items():
                held[resource] = held.get(resource, 0) + amount
        room = free_resources_of_node(node, held, held[POD_COUNT])
        who = {name: PodGpuUnits(each.units, each.turns) for name, each in there.items()}
        who |= {each.pod or each.uid: PodGpuUnits(_reserved_units(each), each.container_requests) for each in coming}
        return room, self._current_devices(node, who)

    def devices_without(self, node: FleetNode, uids: Container[str]) -> NodeDevices | None:
        """The GPUs if pods with these uids were gone; None where nothing is reported."""
        there = self.pods.index.on_node(node.name)
        left = {name: PodGpuUnits(each.units, each.turns) for name, each in there.items() if each.uid not in uids}
        return self._current_devices(node, left)

    def has_gpu_pod(self, pod: str) -> bool:
        """Is a pod with GPUs, "namespace/name", on a node?"""
        return self.pods.index.has_pod(pod)

    def _current_devices(self, node: FleetNode, held: Mapping[str, PodGpuUnits]) -> NodeDevices | None:
        """The GPUs as these pods hold them: the report, brought up to date."""
        found = self._reports.get(node.name)
        if found is None:
            return None
        report, devices = found
        return current_devices(devices, report, held, node.gpus.get(WHOLE_GPU, 0))

    # What the writers tell.

    def _on_node_change(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self.index_outdated = True

    def _on_report_change(self, key: str, _before: GPUNode | None, after: GPUNode | None) -> None:
        devices, why = (devices_from_report(after), find_report_error(after)) if after is not None else (None, "")
        self.unusable_reports.pop(key, None)
        if why:
            self.unusable_reports[key] = why
        if after is None or devices is None:
            self._reports.pop(key, None)
        else:
            self._reports[key] = (after, devices)
        self._changed_nodes[key] = None

    def _on_pod_change(self, name: str) -> None:
        if name:
            self._changed_nodes[name] = None

    def _on_pod_arrival(self, line: PodSummary) -> None:
        if len(self.arrivals) < MAX_ARRIVAL_KINDS or line.requests in self.arrivals:
            self.arrivals[line.requests] += 1

    def _on_relist(self) -> None:
        self._changed_nodes.update(dict.fromkeys(self._nodes.items))


def _reserved_units(place: NodeReservation) -> dict[str, int]:
    return {name: -(-amount // NANO) for name, amount in place.amounts.items() if parse_gpu_resource(name)}


def _node_key(item: Node | GPUNode) -> str:
    return item.metadata.name


def build_inventory(objects: Sequence[object]) -> NodeInventory:
    """The inventory of a snapshot, which never changes; objects of other kinds are left out."""
    inventory = NodeInventory()
    _write_list(inventory.nodes, [item for item in objects if isinstance(item, Node)])
    _write_list(inventory.gpunodes, [item for item in objects if isinstance(item, GPUNode)])
    _write_list(inventory.pods, sorted((item for item in objects if isinstance(item, Pod)), key=creation_order))
    return inventory


def _write_list(writer: ReflectorStore[T], items: Iterable[T]) -> None:
    writer.begin()
    for item in items:
        writer.upsert(item)
    writer.swap()
