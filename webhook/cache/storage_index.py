"""Index of the objects about storage: the stores of their reflectors, and what changed since the last view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from webhook.cache.node_usage import NodeUsage
from webhook.cache.store import ObjectStore
from webhook.kube.reflector import ReflectorStore, WatchStatus
from webhook.model.filters.node_volume_limits import count_attached
from webhook.model.pod_volumes import has_inline_disk, pod_volumes
from webhook.model.pods import DEFAULT_NAMESPACE, Pod
from webhook.model.storage_objects import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    StorageObject,
    VolumeAttachment,
)
from webhook.model.storage_view import NO_STORAGE, ClaimKey, StorageObjects, VolumeUsers, is_fully_bound, volume_class

ItemT = TypeVar("ItemT")

STORAGE_KINDS: tuple[type[StorageObject], ...] = (
    *(PersistentVolumeClaim, PersistentVolume, StorageClass, CSINode, CSIDriver, CSIStorageCapacity, VolumeAttachment),
)
"""The kinds of `StorageIndex.stores`."""


class StorageIndex:
    """The objects about storage, and the indexes by which a view answers without reading all of them.

    Attributes:
        claims, volumes, classes, csi_nodes, drivers, capacities, attachments: The stores, one per reflector.
        watches: The status of each watch, if there are any.
    """

    def __init__(self, pods: NodeUsage, wake: Callable[[], None]) -> None:
        """Start empty; `wake` is called after each change."""
        self._pods, self._wake = pods, wake
        self.watches: list[WatchStatus] = []
        self.claims: ObjectStore[PersistentVolumeClaim] = ObjectStore(_namespaced_key, self._on_claim_change)
        self.volumes: ObjectStore[PersistentVolume] = ObjectStore(_name_of, self._on_volume_change)
        self.classes: ObjectStore[StorageClass] = ObjectStore(_name_of, self._on_class_change)
        self.csi_nodes: ObjectStore[CSINode] = ObjectStore(_name_of, self._on_csi_node_change)
        self.drivers: ObjectStore[CSIDriver] = ObjectStore(_name_of, self._on_driver_change)
        self.capacities: ObjectStore[CSIStorageCapacity] = ObjectStore(_namespaced_key, self._on_capacity_change)
        self.attachments: ObjectStore[VolumeAttachment] = ObjectStore(_name_of, self._on_attachment_change)
        self._reserved: dict[ClaimKey, str] = {}
        self._unbound: dict[str, dict[str, PersistentVolume]] = {}
        self._capacities: dict[str, dict[str, CSIStorageCapacity]] = {}
        self._attachments: dict[str, dict[str, tuple[str, str]]] = {}
        self._nodes_of_volume: dict[str, dict[str, None]] = {}
        self._objects = StorageObjects()
        self._changed_kinds: set[str] = set()
        self._changed_unbound: set[str] = set()
        self._changed_capacities: set[str] = set()
        self._changed_nodes: set[str] = set()

    @property
    def stores(self) -> tuple[ReflectorStore[Any], ...]:
        """The stores, in the order in which they are listed above."""
        kinds = self.claims, self.volumes, self.classes, self.csi_nodes
        return (*kinds, self.drivers, self.capacities, self.attachments)

    @property
    def missing(self) -> tuple[str, ...]:
        """The resources that the API server forbids to list."""
        return tuple(status.name for status in self.watches if status.forbidden)

    def note_nodes(self, nodes: Iterable[str]) -> None:
        """Record the nodes on which pods with claims came or went."""
        self._changed_nodes.update(filter(None, nodes))

    def take_objects(self) -> tuple[StorageObjects, frozenset[str]]:
        """Return the objects, and the nodes on which the number of attached volumes may have changed, and forget these.

        Mappings that have not changed are those of the last call.
        """
        changed: dict[str, Mapping[str, object]] = {
            kind: getattr(self, kind).items.copy()
            for kind in ("claims", "volumes", "classes", "csi_nodes", "drivers")
            if kind in self._changed_kinds
        }
        if self._changed_unbound:
            before = self._objects.unbound_volumes
            changed["unbound_volumes"] = _with_groups(before, self._unbound, self._changed_unbound)
        if self._changed_capacities:
            changed["capacities"] = _with_groups(self._objects.capacities, self._capacities, self._changed_capacities)
        nodes = frozenset(self.csi_nodes.items if "classes" in self._changed_kinds else self._changed_nodes)
        if nodes:
            others = {name: counts for name, counts in self._objects.attached.items() if name not in nodes}
            changed["attached"] = {**others, **dict(self._count_attached(nodes))}
        self._objects = self._objects._replace(missing=self.missing, **changed)  # type: ignore[arg-type]  # by kind
        self._changed_kinds, self._changed_nodes = set(), set()
        self._changed_unbound, self._changed_capacities = set(), set()
        return self._objects, nodes

    def _count_attached(self, nodes: Iterable[str]) -> Iterator[tuple[str, Mapping[str, int]]]:
        known = StorageObjects(self.claims.items, self.volumes.items, self.classes.items)
        for node in nodes:
            if node in self.csi_nodes.items:
                attachments = self._attachments.get(node, {}).values()
                claims, disks = self._pods.claims_on_node(node), self._pods.disks_on_node(node)
                yield node, count_attached(known, claims, attachments, disks)

    # Handlers of the stores.

    def _record(self, kind: str) -> None:
        self._changed_kinds.add(kind)
        self._wake()

    def _on_claim_change(
        self, key: str, before: PersistentVolumeClaim | None, after: PersistentVolumeClaim | None
    ) -> None:
        names = {each.spec.volume_name for each in (before, after) if each is not None}
        for name in names | {self._reserved.get(key, "")}:
            if name in self.volumes.items:
                self._index_volume(self.volumes.items[name])
        self._note_users_of_claim(key)
        self._record("claims")

    def _on_volume_change(self, key: str, before: PersistentVolume | None, after: PersistentVolume | None) -> None:
        if before is not None:
            self._remove_unbound(before)
            if (claim := _claim_of(before)) and self._reserved.get(claim) == key:
                del self._reserved[claim]
            self._note_users_of_claim(claim)
        if after is not None:
            if claim := _claim_of(after):
                self._reserved[claim] = key
            self._index_volume(after)
            self._note_users_of_claim(claim)
        self._changed_nodes.update(self._nodes_of_volume.get(key, ()))
        self._record("volumes")

    def _note_users_of_claim(self, claim: str) -> None:
        self._changed_nodes.update(filter(None, self._pods.totals.claims.get(claim, ())))

    def _index_volume(self, volume: PersistentVolume) -> None:
        """Index a volume by its class, unless a claim is completely bound to it or it belonged to another claim."""
        if self._may_be_bound(volume):
            self._unbound.setdefault(volume_class(volume), {})[volume.metadata.name] = volume
            self._changed_unbound.add(volume_class(volume))
        else:
            self._remove_unbound(volume)

    def _remove_unbound(self, volume: PersistentVolume) -> None:
        if _remove_item(self._unbound, volume_class(volume), volume.metadata.name):
            self._changed_unbound.add(volume_class(volume))

    def _may_be_bound(self, volume: PersistentVolume) -> bool:
        reference = volume.spec.claim_ref
        if reference is None:
            return True
        claim = self.claims.items.get(_claim_of(volume))
        if claim is None:
            return not reference.uid
        is_bound = is_fully_bound(claim) and claim.spec.volume_name == volume.metadata.name
        return reference.uid in ("", claim.metadata.uid) and not is_bound

    def _on_class_change(self, _key: str, _before: object, _after: object) -> None:
        self._record("classes")

    def _on_driver_change(self, _key: str, _before: object, _after: object) -> None:
        self._record("drivers")

    def _on_csi_node_change(self, key: str, _before: object, _after: object) -> None:
        self._changed_nodes.add(key)
        self._record("csi_nodes")

    def _on_capacity_change(
        self, key: str, before: CSIStorageCapacity | None, after: CSIStorageCapacity | None
    ) -> None:
        if before is not None:
            _remove_item(self._capacities, before.storage_class_name, key)
            self._changed_capacities.add(before.storage_class_name)
        if after is not None:
            self._capacities.setdefault(after.storage_class_name, {})[key] = after
            self._changed_capacities.add(after.storage_class_name)
        self._wake()

    def _on_attachment_change(self, key: str, before: VolumeAttachment | None, after: VolumeAttachment | None) -> None:
        if before is not None:
            node, volume = before.spec.node_name, before.spec.source.persistent_volume_name
            _remove_item(self._attachments, node, key)
            _remove_item(self._nodes_of_volume, volume, node)
            self._changed_nodes.add(node)
        if after is not None:
            node, volume = after.spec.node_name, after.spec.source.persistent_volume_name
            self._attachments.setdefault(node, {})[key] = after.spec.attacher, volume
            self._nodes_of_volume.setdefault(volume, {})[node] = None
            self._changed_nodes.add(node)
        self._wake()


def _remove_item(groups: dict[str, dict[str, ItemT]], group: str, key: str) -> bool:
    """Remove an item, and its group with the last one; return whether it was there."""
    items = groups.get(group, {})
    found = key in items
    items.pop(key, None)
    if found and not items:
        del groups[group]
    return found


def _with_groups(
    before: Mapping[str, tuple[ItemT, ...]], groups: Mapping[str, Mapping[str, ItemT]], changed: Iterable[str]
) -> Mapping[str, tuple[ItemT, ...]]:
    """Return the items of each group that has changes."""
    after = {**before, **{name: tuple(groups.get(name, {}).values()) for name in changed}}
    return {name: items for name, items in after.items() if items}


def _claim_of(volume: PersistentVolume) -> str:
    """Return the key of the claim that a volume is bound to or reserved for; "" for none."""
    reference = volume.spec.claim_ref
    return f"{reference.namespace}/{reference.name}" if reference is not None else ""


def _name_of(item: PersistentVolume | StorageClass | CSINode | CSIDriver | VolumeAttachment) -> str:
    return item.metadata.name


def _namespaced_key(item: PersistentVolumeClaim | CSIStorageCapacity) -> str:
    return f"{item.metadata.namespace or DEFAULT_NAMESPACE}/{item.metadata.name}"


def build_storage(objects: Iterable[StorageObject], pods: Iterable[Pod]) -> tuple[StorageObjects, VolumeUsers]:
    """Return the objects about storage of a snapshot, and the pods that use claims.

    Without a single such object, `missing` names claims: the snapshot was taken without them.
    """
    usage, found = NodeUsage(), False
    for pod in pods:
        if pod_volumes(pod) or has_inline_disk(pod):
            usage.upsert(pod)
    index, users = StorageIndex(usage, lambda: None), usage.volume_users(VolumeUsers())
    stores = dict(zip(STORAGE_KINDS, index.stores, strict=True))
    for each in objects:
        stores[type(each)].upsert(each)
        found = True
    return (index.take_objects()[0] if found else NO_STORAGE), users
