"""StorageView: claims, volumes and classes of a cluster at one moment, and the pods that use them. Immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.fleet import Fleet
from webhook.model.node_masks import ThresholdIndex, bit_positions, union_masks
from webhook.model.pod_volumes import PodVolumes, VolumeUse
from webhook.model.pods import NodeSelectorTerm, PodLabelSelector, QuantityText
from webhook.model.quantity import NANO, parse_nano_or_none
from webhook.model.storage_objects import (
    READ_WRITE_ONCE_POD,
    STORAGE,
    WAIT_FOR_FIRST_CONSUMER,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeClaimSpec,
)

MAX_CANDIDATES = 4
"""Kinds of claims whose candidates are kept: each may have thousands of volumes."""

ClaimKey = str
"""Namespace and name of a claim, "namespace/name"."""

DEFAULT_MARK = "true"


class StorageObjects(NamedTuple):
    """The objects about storage.

    Attributes:
        claims: By namespace and name.
        volumes, classes, csi_nodes, drivers: By name.
        capacities: By class.
        unbound_volumes: By class: the volumes that no claim is completely bound to.
        attached: By node: the number of volumes of each driver that has a limit there.
        missing: Kinds of objects that cannot be read; without claims and volumes, nothing is known.
    """

    claims: Mapping[ClaimKey, PersistentVolumeClaim] = {}
    volumes: Mapping[str, PersistentVolume] = {}
    classes: Mapping[str, StorageClass] = {}
    csi_nodes: Mapping[str, CSINode] = {}
    drivers: Mapping[str, CSIDriver] = {}
    capacities: Mapping[str, tuple[CSIStorageCapacity, ...]] = {}
    unbound_volumes: Mapping[str, tuple[PersistentVolume, ...]] = {}
    attached: Mapping[str, Mapping[str, int]] = {}
    missing: tuple[str, ...] = ()


NO_STORAGE = StorageObjects(missing=("persistentvolumeclaims",))
"""What is known of a snapshot without any object about storage, and of a cluster until its objects are listed."""
"""The objects of a cluster whose storage was not read."""


class VolumeUsers(NamedTuple):
    """The pods that use claims.

    Attributes:
        nodes: By claim: the names of the nodes of its pods; "" for a pod without node.
        waiting: Numbers of pods without a node, by namespace and claims.
    """

    nodes: Mapping[ClaimKey, tuple[str, ...]] = {}
    waiting: Mapping[tuple[str, PodVolumes], int] = {}


class TakenStorage(NamedTuple):
    """Storage of a class that other pods may take before a pod gets a node.

    Attributes:
        claims: How many claims they may bind.
        size: Bytes of these claims.
        pods: How many more pods like this one may come.
    """

    claims: int = 0
    size: int = 0
    pods: int = 0


class PendingStorage(NamedTuple):
    """Storage that pods without a node may take.

    Attributes:
        by_class: Volumes of each class, by binding claims.
        by_driver: How many volumes of each CSI driver they may attach to one node.
    """

    by_class: Mapping[str, TakenStorage] = {}
    by_driver: Mapping[str, int] = {}


class ReachableVolume(NamedTuple):
    """An unbound volume, the mask of the nodes that reach it, and its size in bytes."""

    volume: PersistentVolume
    nodes: int
    size: int


class DriverNodes(NamedTuple):
    """The nodes of one CSI driver.

    Attributes:
        by_keys: Masks by the node labels that tell which volumes the driver reaches.
        limited: Mask of the nodes with a limit.
        free: How many more volumes can be attached, on these.
    """

    by_keys: Mapping[tuple[str, ...], int]
    limited: int
    free: ThresholdIndex


class StorageView:
    """Claims, volumes and classes, and the pods that use them, over the nodes of a fleet. Immutable.

    Attributes:
        fleet: The nodes.
        objects: The objects about storage.
        users: The pods that use claims.
        candidates: The volumes that a claim may take, by class and specification; computed on first use.
        pending: What pods without a node may take; None until it is computed.
    """

    def __init__(self, fleet: Fleet, objects: StorageObjects, users: VolumeUsers) -> None:
        self.fleet, self.objects, self.users = fleet, objects, users
        self.pending: PendingStorage | None = None
        self.candidates: BoundedCache[tuple[str, bytes], tuple[ReachableVolume, ...]] = BoundedCache(MAX_CANDIDATES)

    def with_users(self, users: VolumeUsers) -> StorageView:
        """Return the view with other users; what was computed from the objects is kept."""
        view = StorageView(self.fleet, self.objects, users)
        view.candidates = self.candidates
        view.__dict__.update({name: self.__dict__[name] for name in _COMPUTED if name in self.__dict__})
        return view

    def with_objects(self, objects: StorageObjects, attached: Iterable[str] = ()) -> StorageView:
        """Return the view with other objects.

        Args:
            attached: Names of the nodes on which the number of attached volumes may have changed.
        """
        view, known = StorageView(self.fleet, objects, self.users), self.__dict__
        same = objects.csi_nodes is self.objects.csi_nodes
        if same and objects.unbound_volumes is self.objects.unbound_volumes:
            view.candidates = self.candidates
        if same and "driver_nodes" in known:
            view.__dict__["migrated_nodes"] = self.migrated_nodes
            view.__dict__["driver_nodes"] = _with_attached(self, objects, attached)
        before, after = self.objects.capacities, objects.capacities
        indexes = known.get("capacity_indexes", {})
        view.__dict__["capacity_indexes"] = {
            name: index for name, index in indexes.items() if before.get(name) is after.get(name)
        }
        return view

    def precompute(self) -> None:
        """Compute what depends on all nodes now, because it would delay a review."""
        _ = self.driver_nodes, self.migrated_nodes

    def claim_of(self, namespace: str, use: VolumeUse) -> PersistentVolumeClaim | None:
        """Return the claim that a pod uses, if it exists; for a template, only one that the pod owns."""
        found = self.objects.claims.get(f"{namespace}/{use.claim}")
        if found is None or not use.template:
            return found
        owners = found.metadata.owner_references
        return found if any(each.controller and each.uid == use.owner for each in owners) else None

    def class_name(self, spec: VolumeClaimSpec) -> str:
        """Return the class of a claim that is created now: the default class if it names none."""
        if spec.storage_class_name is not None:
            return spec.storage_class_name
        return self.default_class

    @cached_property
    def default_class(self) -> str:
        """The class of claims that name none; "" without one."""
        classes = self.objects.classes.values()
        marked = [each for each in classes if DEFAULT_MARK in _default_marks(each)]
        newest = sorted(marked, key=lambda each: each.metadata.name)
        newest.sort(key=lambda each: str(each.metadata.creation_timestamp or ""), reverse=True)
        return newest[0].metadata.name if newest else ""

    def binds_later(self, class_name: str) -> bool:
        """Return whether claims of a class wait for their first pod."""
        found = self.objects.classes.get(class_name)
        return found is not None and found.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    def user_nodes(self, key: ClaimKey) -> int:
        """Return the mask of the nodes on which pods use a claim."""
        positions = map(self.fleet.by_name.get, self.users.nodes.get(key, ()))
        return union_masks(1 << position for position in positions if position is not None)

    @cached_property
    def migrated_nodes(self) -> Mapping[str, int]:
        """Masks of the nodes on which a CSI driver serves the volumes of an in-tree plugin, by plugin."""
        masks: dict[str, int] = {}
        for name, node in self.objects.csi_nodes.items():
            position = self.fleet.by_name.get(name)
            for plugin in node.metadata.annotations.migrated_plugins.split(",") if position is not None else ():
                masks[plugin] = masks.get(plugin, 0) | 1 << (position or 0)
        return masks

    @cached_property
    def driver_nodes(self) -> Mapping[str, DriverNodes]:
        """The nodes of each CSI driver."""
        keys: dict[str, dict[tuple[str, ...], int]] = {}
        free: dict[str, dict[int, int]] = {}
        for name, node in self.objects.csi_nodes.items():
            position = self.fleet.by_name.get(name)
            for driver in node.spec.drivers if position is not None else ():
                masks, index = keys.setdefault(driver.name, {}), position or 0
                masks[driver.topology_keys] = masks.get(driver.topology_keys, 0) | 1 << index
                if driver.allocatable.count is not None:
                    attached = self.objects.attached.get(name, {}).get(driver.name, 0)
                    free.setdefault(driver.name, {})[index] = driver.allocatable.count - attached
        limits = {driver: ThresholdIndex(amounts) for driver, amounts in free.items()}
        masks_of = {driver: union_masks(1 << index for index in amounts) for driver, amounts in free.items()}
        none = ThresholdIndex({})
        return {
            driver: DriverNodes(found, masks_of.get(driver, 0), limits.get(driver, none))
            for driver, found in keys.items()
        }

    def nodes_selected(self, terms: Iterable[NodeSelectorTerm]) -> int:
        """Return the nodes whose labels match a term; names of nodes match none, as for the scheduler's volumes."""
        return self.fleet.nodes_with_labels(tuple(terms))

    def nodes_with_capacity(self, class_name: str, size: int, taken: int) -> int:
        """Return the nodes that reach storage with room for a volume of a size, in bytes, after others take some."""
        return self._capacity_by_class(class_name).nodes_with_at_least(size + taken)

    def _capacity_by_class(self, class_name: str) -> ThresholdIndex:
        if class_name not in self.capacity_indexes:
            self.capacity_indexes[class_name] = self._index_capacity(class_name)
        return self.capacity_indexes[class_name]

    @cached_property
    def capacity_indexes(self) -> dict[str, ThresholdIndex]:
        """The largest volume, in bytes, that fits into the storage that each node reaches, by class; on first use."""
        return {}

    def _index_capacity(self, class_name: str) -> ThresholdIndex:
        most: dict[int, int] = {}
        for each in self.objects.capacities.get(class_name, ()):
            limit = size_limit(each)
            if limit is not None and each.node_topology is not None:
                for position in bit_positions(self._nodes_of_topology(each.node_topology)):
                    most[position] = max(limit, most.get(position, limit))
        return ThresholdIndex(most)

    def _nodes_of_topology(self, selector: PodLabelSelector) -> int:
        expressions = selector.requirements()
        return self.nodes_selected((NodeSelectorTerm(expressions),)) if expressions else self.fleet.all_nodes


_COMPUTED = ("capacity_indexes", "default_class", "driver_nodes", "migrated_nodes")
"""Attributes that a view computes from its objects on first use."""


def _with_attached(view: StorageView, objects: StorageObjects, nodes: Iterable[str]) -> Mapping[str, DriverNodes]:
    """Return the nodes of each driver after volumes were attached and detached."""
    moves: dict[str, list[tuple[int, int, int]]] = {}
    for name in nodes:
        position, csi_node = view.fleet.by_name.get(name), objects.csi_nodes.get(name)
        before, after = view.objects.attached.get(name, {}), objects.attached.get(name, {})
        for driver in csi_node.spec.drivers if position is not None and csi_node is not None else ():
            most, held = driver.allocatable.count, (before.get(driver.name, 0), after.get(driver.name, 0))
            if most is not None and held[0] != held[1]:
                moves.setdefault(driver.name, []).append((position or 0, most - held[0], most - held[1]))
    known = view.driver_nodes
    changed = {name: known[name]._replace(free=known[name].free.with_changes(each)) for name, each in moves.items()}
    return {**known, **changed} if changed else known


def _default_marks(storage_class: StorageClass) -> tuple[str, str]:
    annotations = storage_class.metadata.annotations
    return annotations.is_default, annotations.is_default_beta


def size_limit(capacity: CSIStorageCapacity) -> int | None:
    """Return the largest volume that fits, in bytes; None if it is unknown."""
    most = capacity.maximum_volume_size
    return storage_bytes(most if most is not None else capacity.capacity)


def storage_bytes(amount: QuantityText | None) -> int | None:
    """Return a size in bytes, rounded up; None if there is none."""
    nano = parse_nano_or_none(amount)
    return None if nano is None else -(-nano // NANO)


def requested_bytes(spec: VolumeClaimSpec) -> int | None:
    """Return the size that a claim requests, in bytes; None if it requests none."""
    return storage_bytes(spec.resources.requests.get(STORAGE))


def claim_class(claim: PersistentVolumeClaim) -> str:
    """Return the class of a stored claim; "" without one."""
    beta = claim.metadata.annotations.beta_class
    return beta if beta is not None else claim.spec.storage_class_name or ""


def volume_class(volume: PersistentVolume) -> str:
    """Return the class of a volume; "" without one."""
    beta = volume.metadata.annotations.beta_class
    return beta if beta is not None else volume.spec.storage_class_name


def is_fully_bound(claim: PersistentVolumeClaim) -> bool:
    """Return whether the binding of a claim to its volume is complete."""
    return bool(claim.spec.volume_name) and claim.metadata.annotations.bind_completed is not None


def is_for_one_pod(spec: VolumeClaimSpec) -> bool:
    """Return whether the API server promises a claim to one pod at a time."""
    return READ_WRITE_ONCE_POD in spec.access_modes
