"""The live view: what watches write, made into one immutable ClusterView after another.

A pod that comes or goes moves a number on one node. A node that changes makes the index of all nodes anew, in a
thread and not often. Both end in one reference that is swapped; who judges takes it once and sees one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from webhook.cache.gathering import namespace_of
from webhook.cache.holdings import Holdings
from webhook.cache.landings import LandingsWriter
from webhook.cache.making import Made, make, room_on
from webhook.cache.store import Grouped, Store, StoreWriter
from webhook.cache.stored import stored_quota
from webhook.model.claims import DeviceClass, ResourceClaimTemplate, classes_of
from webhook.model.cluster import ClusterView, Room
from webhook.model.ledger import Landing
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota

PUBLISH_SECONDS = 0.05
"""Between two views: what comes in that time is taken in together."""

FLEET_SECONDS = 2.0
"""Between two indexes of the nodes. Making one takes a quarter of a second of CPU for 5,000 nodes."""


class Holder(Protocol):
    """Who holds the view in use."""

    view: ClusterView


@dataclass(slots=True)
class Changes:
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
    pods: bool = False
    nodes: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=set)
    limits: set[str] = field(default_factory=set)
    quotas: set[str] = field(default_factory=set)
    templates: set[str] = field(default_factory=set)
    classes: bool = False
    spaces: set[str] = field(default_factory=set)
    seen: list[Landing] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)


class Live:
    """Makes views of what its writers are given, and hands them to a holder.

    Attributes:
        nodes, namespaces, limit_ranges, quotas, pods, claim_templates, device_classes: The writers, one for each watch.
        failing: Did the last attempt to make a view fail?
    """

    def __init__(self, holder: Holder, *, fleet_seconds: float = FLEET_SECONDS) -> None:
        """Begin; the holder keeps the view it has until the first is made.

        Args:
            holder: Who is handed each new view.
            fleet_seconds: The least time between two indexes of the nodes.
        """
        self._holder, self._fleet_seconds = holder, fleet_seconds
        self._nodes: Store[Node] = Store()
        self._namespaces: Store[Namespace] = Store()
        self._limit_ranges: Grouped[LimitRange] = Grouped()
        self._quotas: Grouped[ResourceQuota] = Grouped()
        self._templates: Grouped[ResourceClaimTemplate] = Grouped()
        self._classes: Store[DeviceClass] = Store()
        self._holdings = Holdings()
        self.nodes = StoreWriter(self._nodes, _name, self._node_changed)
        self.namespaces = StoreWriter(self._namespaces, _name, self._namespace_changed)
        self.limit_ranges = StoreWriter(Store[LimitRange](), _full_name, self._limits_changed)
        self.quotas = StoreWriter(Store[ResourceQuota](), _full_name, self._quota_changed)
        self.claim_templates = StoreWriter(Store[ResourceClaimTemplate](), _full_name, self._template_changed)
        self.device_classes = StoreWriter(self._classes, _name, self._class_changed)
        self.pods = LandingsWriter(self._holdings, self._pod_changed, self._landed, self._arrived, self._relisted)
        self._changes = Changes(fleet=True)
        self._made: Made | None = None
        self._made_at = float("-inf")
        self._wake = asyncio.Event()
        self.failing = False

    @property
    def made(self) -> bool:
        """Was a view made?"""
        return self._made is not None

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
        made = self._made
        if made is None or self._changes.pods or (self._changes.fleet and self._is_due()):
            made = await self._make(made)
        try:
            self._holder.view = self._taking_in(self._begun(made), made)
        except BaseException:
            self._changes.fleet = self._changes.pods = True
            raise
        self._made = made
        if self._changes.fleet:
            asyncio.get_running_loop().call_later(self._fleet_seconds, self._wake.set)

    def _begun(self, made: Made) -> ClusterView:
        """The view in use, or the one that was made in its place, with what is assumed."""
        before = self._holder.view
        if made is self._made:
            return before
        return made.view.succeeding(before).dated(current=before.current or self._made is None)

    def _is_due(self) -> bool:
        return asyncio.get_running_loop().time() >= self._made_at + self._fleet_seconds

    async def _make(self, before: Made | None) -> Made:
        """A view from nothing, made beside the event loop; what changes meanwhile is taken in afterwards."""
        fleet = before.view.fleet if before is not None and not self._changes.fleet else None
        nodes, namespaces = tuple(self._nodes.items.values()), dict(self._namespaces.items)
        limit_ranges, quotas = self._limit_ranges.all(), self._quotas.all()
        lines = self._holdings.lines()
        templates, classes = self._templates.all(), classes_of(self._classes.items.values())
        changes, self._changes = self._changes, Changes(seen=self._changes.seen, arrived=self._changes.arrived)
        try:
            made = await asyncio.to_thread(
                make, fleet or nodes, self._holdings, namespaces, limit_ranges, quotas, lines, templates, classes
            )
            await asyncio.to_thread(made.view.prepare, self._holder.view)
        except BaseException:
            self._changes.fleet, self._changes.pods = changes.fleet, True
            raise
        finally:
            self._made_at = asyncio.get_running_loop().time()
        return made

    def _taking_in(self, view: ClusterView, made: Made) -> ClusterView:
        """The view after what changed since it was made; that is forgotten once it is all in."""
        changes = self._changes
        moved = self._moved(changes.nodes, made)
        if moved:
            view = view.with_rooms(moved)
        if changes.namespaces or changes.limits or changes.quotas or changes.templates:
            view = view.with_objects(
                {name: self._namespaces.items.get(name) for name in changes.namespaces},
                {name: self._limit_ranges.of(name) for name in changes.limits},
                {name: [stored_quota(quota, ()) for quota in self._quotas.of(name)] for name in changes.quotas},
                {name: self._templates.of(name) for name in changes.templates},
            )
        if changes.classes:
            view = view.with_classes(classes_of(self._classes.items.values()))
        if changes.spaces:
            view = view.with_lines(self._holdings.lines(changes.spaces))
        view = view.landed(changes.seen).arrived(changes.arrived)
        self._changes = Changes(fleet=changes.fleet, pods=changes.pods)
        return view

    def _moved(self, names: Iterable[str], made: Made) -> dict[int, tuple[Room, Room]]:
        """The nodes with GPUs on which room changed: what it was, and what it is."""
        fleet, moved = made.view.fleet, {}
        for name in names:
            index = fleet.by_name.get(name)
            if index is None or not fleet.nodes[index].gpus:
                continue
            before, after = made.rooms[index], room_on(fleet.nodes[index], self._holdings)
            if before != after:
                made.rooms[index] = after
                moved[index] = (before, after)
        return moved

    # What the writers tell.

    def _node_changed(self, _key: str, _before: Node | None, _after: Node | None) -> None:
        self._changes.fleet = True
        self._wake.set()

    def _namespace_changed(self, key: str, _before: Namespace | None, _after: Namespace | None) -> None:
        self._changes.namespaces.add(key)
        self._wake.set()

    def _limits_changed(self, key: str, _before: LimitRange | None, after: LimitRange | None) -> None:
        namespace = key.partition("/")[0]
        self._limit_ranges.set(key, namespace, after)
        self._changes.limits.add(namespace)
        self._wake.set()

    def _quota_changed(self, key: str, _before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        namespace = key.partition("/")[0]
        self._quotas.set(key, namespace, after)
        self._changes.quotas.add(namespace)
        self._wake.set()

    def _template_changed(
        self, key: str, _before: ResourceClaimTemplate | None, after: ResourceClaimTemplate | None
    ) -> None:
        namespace = key.partition("/")[0]
        self._templates.set(key, namespace, after)
        self._changes.templates.add(namespace)
        self._wake.set()

    def _class_changed(self, _key: str, _before: DeviceClass | None, _after: DeviceClass | None) -> None:
        self._changes.classes = True
        self._wake.set()

    def _pod_changed(self, namespace: str, node: str) -> None:
        self._changes.spaces.add(namespace)
        if node:
            self._changes.nodes.add(node)
        self._wake.set()

    def _landed(self, seen: Iterable[Landing]) -> None:
        self._changes.seen += seen

    def _arrived(self, uids: Iterable[str]) -> None:
        self._changes.arrived += uids

    def _relisted(self) -> None:
        self._changes.pods = True
        self._wake.set()


def _name(item: Node | Namespace | DeviceClass) -> str:
    return item.metadata.name


def _full_name(item: LimitRange | ResourceQuota | ResourceClaimTemplate) -> str:
    return f"{namespace_of(item)}/{item.metadata.name}"
