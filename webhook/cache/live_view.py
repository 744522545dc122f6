"""The live view: what watches write, made into one immutable ClusterView after another.

A pod that comes or goes moves a number on one node. A node that changes makes the index of all nodes anew, in a
thread and not often. Both end in one reference that is swapped; who judges takes it once and sees one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from webhook.cache.bound_pods import BoundPodWriter
from webhook.cache.build_view import object_namespace
from webhook.cache.making import BuiltView, build_live_view, free_resources_on_node
from webhook.cache.node_usage import NodeUsage
from webhook.cache.store import NamespaceIndex, StoreReader, StoreWriter
from webhook.cache.stored import with_quota_status
from webhook.model.assumed_pods import BoundPod
from webhook.model.claims import DeviceClass, ResourceClaimTemplate, device_classes_by_name
from webhook.model.cluster_view import ClusterView, FreeResources
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota

PUBLISH_SECONDS = 0.05
"""Between two views: what comes in that time is taken in together."""

FLEET_SECONDS = 2.0
"""Between two indexes of the nodes. Making one takes a quarter of a second of CPU for 5,000 nodes."""


class ViewHolder(Protocol):
    """Who holds the view in use."""

    view: ClusterView


@dataclass(slots=True)
class ViewChanges:
    """What was written since the view in use was made.

    Attributes:
        fleet: Did a node change, come or go?
        pods: Were all pods listed anew?
        nodes: Names of nodes on which pods came or went.
        namespaces: Names of namespaces that changed, came or went.
        limits, quotas, templates: Namespaces whose LimitRanges, ResourceQuotas or ResourceClaimTemplates did.
        classes: Did a DeviceClass change?
        spaces: Namespaces in which pods came or went.
        seen: Pods that are on a node now, by what they were called and each GPU resource that they hold.
        arrived: The uids of pods that are known now.
    """

    fleet: bool = False
    relisted: bool = False
    nodes: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    limit_ranges: set[str] = field(default_factory=set)
    quotas: set[str] = field(default_factory=set)
    claim_templates: set[str] = field(default_factory=set)
    device_classes: bool = False
    pod_namespaces: set[str] = field(default_factory=set)
    bound: list[BoundPod] = field(default_factory=list)
    arrived_uids: list[str] = field(default_factory=list)


class ViewPublisher:
    """Makes views of what its writers are given, and hands them to a holder.

    Attributes:
        nodes, namespaces, limit_ranges, quotas, pods, claim_templates, device_classes: The writers, one for each watch.
        failing: Did the last attempt to make a view fail?
    """

    def __init__(self, holder: ViewHolder, *, fleet_seconds: float = FLEET_SECONDS) -> None:
        """Begin; the holder keeps the view it has until the first is made.

        Args:
            holder: Who is handed each new view.
            fleet_seconds: The least time between two indexes of the nodes.
        """
        self._holder, self._fleet_seconds = holder, fleet_seconds
        self._nodes: StoreReader[Node] = StoreReader()
        self._namespaces: StoreReader[Namespace] = StoreReader()
        self._limit_ranges: NamespaceIndex[LimitRange] = NamespaceIndex()
        self._quotas: NamespaceIndex[ResourceQuota] = NamespaceIndex()
        self._templates: NamespaceIndex[ResourceClaimTemplate] = NamespaceIndex()
        self._classes: StoreReader[DeviceClass] = StoreReader()
        self._usage = NodeUsage()
        self.nodes = StoreWriter(self._nodes, _cluster_object_key, self._on_node_change)
        self.namespaces = StoreWriter(self._namespaces, _cluster_object_key, self._on_namespace_change)
        self.limit_ranges = StoreWriter(StoreReader[LimitRange](), _namespaced_object_key, self._on_limit_range_change)
        self.quotas = StoreWriter(StoreReader[ResourceQuota](), _namespaced_object_key, self._on_quota_change)
        self.claim_templates = StoreWriter(
            StoreReader[ResourceClaimTemplate](), _namespaced_object_key, self._on_template_change
        )
        self.device_classes = StoreWriter(self._classes, _cluster_object_key, self._on_class_change)
        self.pods = BoundPodWriter(self._usage, self._on_pod_change, self._on_bound, self._on_arrival, self._on_relist)
        self._changes = ViewChanges(fleet=True)
        self._built: BuiltView | None = None
        self._built_at = float("-inf")
        self._wake = asyncio.Event()
        self.failing = False

    @property
    def has_view(self) -> bool:
        """Was a view made?"""
        return self._built is not None

    async def run(self, ready: Callable[[], bool]) -> None:
        """Go on until cancelled.

        Args:
            ready: Was everything that is watched there once?
        """
        while not ready():
            await asyncio.sleep(PUBLISH_SECONDS)
        while True:
            try:
                await self.publish()
            except BaseException:
                self.failing = True
                raise
            self.failing = False
            await asyncio.sleep(PUBLISH_SECONDS)
            await self._wake.wait()

    async def publish(self) -> None:
        """Take in what changed, and hand over the view that comes of it."""
        self._wake.clear()
        made = self._built
        if made is None or self._changes.relisted or (self._changes.fleet and self._is_fleet_due()):
            made = await self._rebuild_view(made)
        try:
            self._holder.view = self._apply_changes(self._base_view(made), made)
        except BaseException:
            self._changes.fleet = self._changes.relisted = True
            raise
        self._built = made
        if self._changes.fleet:
            asyncio.get_running_loop().call_later(self._fleet_seconds, self._wake.set)

    def _base_view(self, made: BuiltView) -> ClusterView:
        """The view in use, or the one that was made in its place, with what is assumed."""
        before = self._holder.view
        if made is self._built:
            return before
        return made.view.with_pending_of(before).with_currency(current=before.current or self._built is None)

    def _is_fleet_due(self) -> bool:
        return asyncio.get_running_loop().time() >= self._built_at + self._fleet_seconds

    async def _rebuild_view(self, before: BuiltView | None) -> BuiltView:
        """A view from nothing, made beside the event loop; what changes meanwhile is taken in afterwards."""
        fleet = before.view.fleet if before is not None and not self._changes.fleet else None
        nodes, namespaces = tuple(self._nodes.items.values()), dict(self._namespaces.items)
        limit_ranges, quotas = self._limit_ranges.all(), self._quotas.all()
        lines = self._usage.summaries()
        templates, classes = self._templates.all(), device_classes_by_name(self._classes.items.values())
        changes, self._changes = (
            self._changes,
            ViewChanges(bound=self._changes.bound, arrived_uids=self._changes.arrived_uids),
        )
        try:
            made = await asyncio.to_thread(
                build_live_view,
                fleet or nodes,
                self._usage,
                namespaces,
                limit_ranges,
                quotas,
                lines,
                templates,
                classes,
            )
            await asyncio.to_thread(made.view.precompute_weights, self._holder.view)
        except BaseException:
            self._changes.fleet, self._changes.relisted = changes.fleet, True
            raise
        finally:
            self._built_at = asyncio.get_running_loop().time()
        return made

    def _apply_changes(self, view: ClusterView, made: BuiltView) -> ClusterView:
        """The view after what changed since it was made; that is forgotten once it is all in."""
        changes = self._changes
        moved = self._changed_nodes(changes.nodes, made)
        if moved:
            view = view.with_free(moved)
        if changes.namespaces or changes.limit_ranges or changes.quotas or changes.claim_templates:
            view = view.with_objects(
                {name: self._namespaces.items.get(name) for name in changes.namespaces},
                {name: self._limit_ranges.in_namespace(name) for name in changes.limit_ranges},
                {
                    name: [with_quota_status(quota, ()) for quota in self._quotas.in_namespace(name)]
                    for name in changes.quotas
                },
                {name: self._templates.in_namespace(name) for name in changes.claim_templates},
            )
        if changes.device_classes:
            view = view.with_classes(device_classes_by_name(self._classes.items.values()))
        if changes.pod_namespaces:
            view = view.with_pods(self._usage.summaries(changes.pod_namespaces))
        view = view.without_bound(changes.bound).without_reservations(changes.arrived_uids)
        self._changes = ViewChanges(fleet=changes.fleet, relisted=changes.relisted)
        return view

    def _changed_nodes(self, names: Iterable[str], made: BuiltView) -> dict[int, tuple[FreeResources, FreeResources]]:
        """The nodes with GPUs on which room changed: what it was, and what it is."""
        fleet, moved = made.view.fleet, {}
        for name in names:
            index = fleet.by_name.get(name)
            if index is None or not fleet.nodes[index].gpus:
                continue
            before, after = made.rooms[index], free_resources_on_node(fleet.nodes[index], self._usage)
            if before != after:
                made.rooms[index] = after
                moved[index] = (before, after)
        return moved

    # What the writers tell.

    def _on_node_change(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self._changes.fleet = True
        self._wake.set()

    def _on_namespace_change(self, key: str, _before: Namespace | None, _after: Namespace | None) -> None:
        self._changes.namespaces.add(key)
        self._wake.set()

    def _on_limit_range_change(self, key: str, _before: LimitRange | None, after: LimitRange | None) -> None:
        namespace = key.partition("/")[0]
        self._limit_ranges.set(key, namespace, after)
        self._changes.limit_ranges.add(namespace)
        self._wake.set()

    def _on_quota_change(self, key: str, _before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        namespace = key.partition("/")[0]
        self._quotas.set(key, namespace, after)
        self._changes.quotas.add(namespace)
        self._wake.set()

    def _on_template_change(
        self, key: str, _before: ResourceClaimTemplate | None, after: ResourceClaimTemplate | None
    ) -> None:
        namespace = key.partition("/")[0]
        self._templates.set(key, namespace, after)
        self._changes.claim_templates.add(namespace)
        self._wake.set()

    def _on_class_change(self, _key: str, _before: DeviceClass | None, _after: DeviceClass | None) -> None:
        self._changes.device_classes = True
        self._wake.set()

    def _on_pod_change(self, namespace: str, node: str) -> None:
        self._changes.pod_namespaces.add(namespace)
        if node:
            self._changes.nodes.add(node)
        self._wake.set()

    def _on_bound(self, seen: Iterable[BoundPod]) -> None:
        self._changes.bound += seen

    def _on_arrival(self, uids: Iterable[str]) -> None:
        self._changes.arrived_uids += uids

    def _on_relist(self) -> None:
        self._changes.relisted = True
        self._wake.set()


def _cluster_object_key(item: Node | Namespace | DeviceClass) -> str:
    return item.metadata.name


def _namespaced_object_key(item: LimitRange | ResourceQuota | ResourceClaimTemplate) -> str:
    return f"{object_namespace(item)}/{item.metadata.name}"
