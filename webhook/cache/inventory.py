"""Live inventory for placement: nodes, what pods use there, the GPUs that the agents report, and devices of slices.

Pods and reports change one node, which is recorded by name. A change of a Node outdates the index of all nodes; the
reader rebuilds that.

Index of the pods that use GPUs: by node, with the GPUs they hold, and by gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

import msgspec

from webhook.cache.build_view import free_resources_of_node
from webhook.cache.device_index import DeviceIndex
from webhook.cache.node_usage import POD_COUNT, NodeUsage
from webhook.cache.store import ObjectStore
from webhook.cache.stored_objects import creation_order, object_namespace
from webhook.kube.reflector import ReflectorStore
from webhook.model.batch import gang_of
from webhook.model.claims import DeviceClass, ResourceClaim, ResourceClaimTemplate
from webhook.model.dra.device_taint_rules import DeviceTaintRule
from webhook.model.dra.device_view import NO_DEVICES, DeviceView, NamespaceClaims
from webhook.model.dra.resource_slices import ResourceSlice
from webhook.model.fleet import FleetNode
from webhook.model.free_resources import FreeResources
from webhook.model.gpu_node import GPUNode
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.objects import Node
from webhook.model.pod_resources import ResourceAmounts, count_gpu_units
from webhook.model.pod_summary import PodSummary
from webhook.model.pods import Pod, pod_key
from webhook.placement.devices import NodeDevices, devices_from_report, find_report_error
from webhook.placement.nodes.device_plugin import (
    ContainerRequests,
    PodGpuUnits,
    current_devices,
    multi_container_requests,
)
from webhook.placement.nodes.snapshot import NodeReservation

MAX_ARRIVAL_KINDS = 10_000
"""Kinds of pods without GPUs that are counted until a reader takes the counts."""

T = TypeVar("T")


class NodeInventory:
    """Nodes, GPUNodes and pods, and the free resources of each node.

    Attributes:
        nodes, gpunodes, pods: The stores, one per reflector.
        unusable_reports: Why GPUNodes cannot be used, by node.
        devices, device_classes, claim_templates: The stores of ResourceSlices and ResourceClaims, of DeviceClasses, and
            of ResourceClaimTemplates.
        index_outdated: A node changed, came or went; reset by the reader that rebuilds the index.
        arrivals: Pods without GPUs that came to nodes, counted by requests; cleared by the reader.
    """

    def __init__(self) -> None:
        self._reports: dict[str, tuple[GPUNode, NodeDevices]] = {}
        self.unusable_reports: dict[str, str] = {}
        self._changed_nodes: dict[str, None] = {}
        self.index_outdated = True
        self.arrivals: Counter[ResourceAmounts] = Counter()
        self.nodes: ObjectStore[Node] = ObjectStore(_node_key, self._on_node_change)
        self.gpunodes: ObjectStore[GPUNode] = ObjectStore(_node_key, self._on_report_change)
        self.devices = DeviceIndex(lambda: None)
        self.device_classes: ObjectStore[DeviceClass] = ObjectStore(_node_key, lambda *_: None)
        self.claim_templates: ObjectStore[ResourceClaimTemplate] = ObjectStore(_template_key, lambda *_: None)
        self._tracker = GpuPodTracker(self._on_pod_change, self._on_cpu_pod, self._on_relist)
        self.pods = NodeUsage(self._tracker)

    @property
    def gpu_pods(self) -> GpuPodIndex:
        """The pods with GPUs."""
        return self._tracker.index

    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes in order of name."""
        return tuple(sorted(self.nodes.items.values(), key=_node_key))

    def bound_pods(self) -> tuple[PodSummary, ...]:
        """Return the summaries of all pods on nodes."""
        return tuple(each for some in self.pods.totals.summaries.values() for each in some.values() if each.node)

    def device_view(self) -> DeviceView:
        """Return the devices of ResourceSlices; none if there are none, or if the claims that have them are unknown."""
        view = self.devices.take_view(self.device_classes.items.values())
        return view if view.pools and view.knows_claims else NO_DEVICES

    def claims_of_pod(self, pod: Pod, view: DeviceView) -> NamespaceClaims:
        """Return the claims of a pod's namespace, and the templates that it names: claims are made from them later."""
        namespace, templates = object_namespace(pod), self.claim_templates.items
        names = [each.resource_claim_template_name for each in pod.spec.resource_claims]
        known = {name: each for name in names if (each := templates.get(f"{namespace}/{name}")) is not None}
        specs = {name: each.spec.spec for name, each in known.items()}
        return NamespaceClaims(view.claims.get(namespace, {}), specs)

    def take_changed_nodes(self, limit: int) -> list[str]:
        """Return and forget the names of some changed nodes."""
        names = list(islice(self._changed_nodes, limit))
        for name in names:
            del self._changed_nodes[name]
        return names

    def free_on_node(
        self, node: FleetNode, reserved: Iterable[NodeReservation] = ()
    ) -> tuple[FreeResources, NodeDevices | None]:
        """Return the free resources of a node, and its GPUs (None without a usable report).

        Args:
            node: The node.
            reserved: Reservations there; those of pods that are already on the node do not count.
        """
        present = self.gpu_pods.on_node(node.name)
        pending = [each for each in reserved if each.pod not in present]
        used = dict(self.pods.on_node(node.name))
        used[POD_COUNT] = used.get(POD_COUNT, 0) + len(pending)
        pods = {name: PodGpuUnits(pod.units, pod.container_requests) for name, pod in present.items()}
        for each in pending:
            for resource, amount in each.amounts.items():
                used[resource] = used.get(resource, 0) + amount
            units = count_gpu_units(each.amounts.items())
            pods[each.pod or each.uid] = PodGpuUnits(units, each.container_requests)
        return free_resources_of_node(node, used, used[POD_COUNT]), self._current_devices(node, pods)

    def devices_without(self, node: FleetNode, uids: Container[str]) -> NodeDevices | None:
        """Return the GPUs of a node as if the pods with these uids were deleted; None without a usable report."""
        present = self.gpu_pods.on_node(node.name).items()
        remaining = {n: PodGpuUnits(pod.units, pod.container_requests) for n, pod in present if pod.uid not in uids}
        return self._current_devices(node, remaining)

    def _current_devices(self, node: FleetNode, pods: Mapping[str, PodGpuUnits]) -> NodeDevices | None:
        """Return the last report, updated with the pods that are on the node now."""
        entry = self._reports.get(node.name)
        if entry is None:
            return None
        report, devices = entry
        return current_devices(devices, report, pods, node.gpus.get(WHOLE_GPU, 0))

    # Handlers of the stores.

    def _on_node_change(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self.index_outdated = True

    def _on_report_change(self, key: str, _before: GPUNode | None, after: GPUNode | None) -> None:
        devices, error = (devices_from_report(after), find_report_error(after)) if after is not None else (None, "")
        self.unusable_reports.pop(key, None)
        if error:
            self.unusable_reports[key] = error
        if after is None or devices is None:
            self._reports.pop(key, None)
        else:
            self._reports[key] = (after, devices)
        self._changed_nodes[key] = None

    def _on_pod_change(self, node: str) -> None:
        self._changed_nodes[node] = None

    def _on_cpu_pod(self, pod: PodSummary) -> None:
        if len(self.arrivals) < MAX_ARRIVAL_KINDS or pod.requests in self.arrivals:
            self.arrivals[pod.requests] += 1

    def _on_relist(self) -> None:
        self._changed_nodes.update(dict.fromkeys(self.nodes.items))


def _node_key(item: Node | GPUNode | DeviceClass) -> str:
    return item.metadata.name


def _template_key(item: ResourceClaimTemplate) -> str:
    return f"{object_namespace(item)}/{item.metadata.name}"


def build_inventory(objects: Sequence[object]) -> NodeInventory:
    """Build the inventory of a snapshot; other kinds of objects are ignored."""
    inventory = NodeInventory()
    _write_list(inventory.nodes, [item for item in objects if isinstance(item, Node)])
    _write_list(inventory.gpunodes, [item for item in objects if isinstance(item, GPUNode)])
    _write_list(inventory.device_classes, [item for item in objects if isinstance(item, DeviceClass)])
    _write_list(inventory.claim_templates, [item for item in objects if isinstance(item, ResourceClaimTemplate)])
    _write_list(inventory.devices.slices, [item for item in objects if isinstance(item, ResourceSlice)])
    _write_list(inventory.devices.taint_rules, [item for item in objects if isinstance(item, DeviceTaintRule)])
    _write_list(inventory.devices.claims, [item for item in objects if isinstance(item, ResourceClaim)])
    _write_list(inventory.pods, sorted((item for item in objects if isinstance(item, Pod)), key=creation_order))
    return inventory


def _write_list(store: ReflectorStore[T], items: Iterable[T]) -> None:
    store.begin()
    for item in items:
        store.upsert(item)
    store.swap()


class GpuPod(msgspec.Struct, frozen=True, gc=False):
    """One pod with GPUs on a node.

    Attributes:
        uid: Its uid.
        units: Units by GPU resource.
        container_requests: Its containers that request whole GPUs; () if fewer than two do.
    """

    uid: str
    units: Mapping[str, int]
    container_requests: ContainerRequests = ()


NO_GPU_PODS: Mapping[str, GpuPod] = MappingProxyType({})
NO_MEMBERS: Mapping[str, str] = MappingProxyType({})


class GpuPodIndex:
    """The pods with GPUs. Mappings that are returned never change."""

    def __init__(self) -> None:
        self._by_node: dict[str, Mapping[str, GpuPod]] = {}
        self._node_by_pod: dict[str, str] = {}
        self._members_by_gang: dict[str, dict[str, str]] = {}
        self._gang_by_pod: dict[str, str] = {}

    def on_node(self, node: str) -> Mapping[str, GpuPod]:
        """Return the pods on a node by "namespace/name", in order of arrival."""
        return self._by_node.get(node, NO_GPU_PODS)

    def has_pod(self, pod: str) -> bool:
        """Return True if the pod is on a node."""
        return pod in self._node_by_pod

    def gang_members(self, gang: str) -> Mapping[str, str]:
        """Return the nodes of a gang's pods by "namespace/name"; "" for a pod without a node."""
        return self._members_by_gang.get(gang, NO_MEMBERS)

    def set_gang(self, pod: str, gang: str, node: str) -> None:
        """Store the gang ("" for none) and node of a pod."""
        before = self._gang_by_pod.pop(pod, "")
        if before:
            members = self._members_by_gang[before]
            del members[pod]
            if not members:
                del self._members_by_gang[before]
        if gang:
            self._gang_by_pod[pod] = gang
            self._members_by_gang.setdefault(gang, {})[pod] = node

    def set_pod(self, pod: str, node: str, entry: GpuPod | None) -> None:
        """Store a pod on a node, or remove it."""
        before = self._node_by_pod.pop(pod, None)
        if before is not None and (before != node or entry is None):
            remaining = {name: each for name, each in self.on_node(before).items() if name != pod}
            self._by_node[before] = remaining
            if not remaining:
                del self._by_node[before]
        if entry is not None:
            self._node_by_pod[pod] = node
            self._by_node[node] = {**self.on_node(node), pod: entry}


class GpuPodTracker:
    """Keeps a `GpuPodIndex` from pod events.

    Attributes:
        index: The pods as they are now.
    """

    def __init__(
        self,
        on_node_change: Callable[[str], None],
        on_cpu_pod: Callable[[PodSummary], None],
        on_relist: Callable[[], None],
    ) -> None:
        """Start empty.

        Args:
            on_node_change: Called with the node of each pod that changed.
            on_cpu_pod: Called with each pod without GPUs that is newly on a node.
            on_relist: Called when all nodes may have changed.
        """
        self.index = GpuPodIndex()
        self._on_node_change, self._on_cpu_pod, self._on_relist = on_node_change, on_cpu_pod, on_relist
        self._incoming: GpuPodIndex | None = None

    def on_list_start(self) -> None:
        """Collect the list in an index of its own."""
        self._incoming = GpuPodIndex()

    def on_pod(self, pod: Pod, before: PodSummary | None, after: PodSummary | None) -> None:
        """Store one pod."""
        node = after.node if after else ""
        units = dict(after.gpu_units()) if after and node else {}
        entry = GpuPod(pod.metadata.uid, units, multi_container_requests(pod)) if units else None
        if after is not None and node and entry is None and not (before is not None and before.node):
            self._on_cpu_pod(after)
        gang = gang_of(pod) if after is not None and after.gpu_units() else None
        index = self.index if self._incoming is None else self._incoming
        index.set_pod(pod_key(pod), node, entry)
        index.set_gang(pod_key(pod), gang.name if gang else "", node)
        if self._incoming is None and before != after:
            for summary in (before, after):
                if summary is not None and summary.node:
                    self._on_node_change(summary.node)

    def on_list_end(self) -> None:
        """Replace the index by the list."""
        if self._incoming is not None:
            self.index, self._incoming = self._incoming, None
        self._on_relist()
