"""The four volume plugins together: which nodes they allow a pod now, and which remain whatever other pods take first.

Order of the plugins as in kube-scheduler: VolumeRestrictions, NodeVolumeLimits, VolumeBinding, VolumeZone.

VolumeRestrictions: a claim with ReadWriteOncePod serves one pod at a time.

Source: the VolumeRestrictions plugin of kube-scheduler. Its other rule is about disks that pods name without a claim.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from webhook.model.csi_migration import (
    CSI_DRIVERS,
    ZONE_CONFLICT,
    nodes_outside_zones,
    nodes_without_zones_of,
    zone_labels,
    zoned_nodes,
)
from webhook.model.filters.node_volume_limits import TOO_MANY_VOLUMES, new_volumes, reject_by_limits
from webhook.model.filters.volume_binding import (
    BIND_CONFLICT,
    NODE_CONFLICT,
    UnboundClaim,
    nodes_for_claims,
    nodes_of_volume,
    reject_by_claim,
    unbound_claim,
)
from webhook.model.filters.volume_rejections import VolumeProblem, VolumeRejection
from webhook.model.node_masks import union_masks
from webhook.model.pod_volumes import PodClaims, PodVolumes, VolumeUse
from webhook.model.storage_objects import PersistentVolume
from webhook.model.storage_view import NO_STORAGE, PendingStorage, StorageView, TakenStorage, is_for_one_pod

MANY = 1 << 30
"""More volumes than a pod has."""

MAX_PENDING_KINDS = 512
"""Different sets of claims of pods without a node that are read; of more, they may take anything."""

NO_PODS: Mapping[PodClaims, int] = {}


class VolumeFit(NamedTuple):
    """The nodes on which the volumes of a pod can be used, whatever other pods take first.

    Attributes:
        nodes: Mask of the nodes.
        exclusive: Those of them whose volumes another pod may take.
        takers: How many pods may take the volumes of one node each.
        rejections: Why not the other nodes.
    """

    nodes: int
    exclusive: int = 0
    takers: int = 0
    rejections: tuple[VolumeRejection, ...] = ()

    @property
    def lasting_nodes(self) -> int:
        """Mask of the nodes that reach the volumes of its bound claims; whatever excludes others may end."""
        nodes = -1
        for each in self.rejections:
            if each.message in (NODE_CONFLICT, ZONE_CONFLICT):
                nodes &= ~each.nodes
        return nodes

    @property
    def blocker(self) -> VolumeRejection | None:
        """Why the pod waits for something else than a node; None if it does not."""
        for each in self.rejections:
            if each.problem is not VolumeProblem.UNREACHABLE:
                return each
        return None


ANY_VOLUMES = VolumeFit(-1)
"""The fit of a pod without claims."""


class _PodClaims(NamedTuple):
    """The claims of one pod, in a cluster."""

    namespace: str
    uses: PodVolumes
    storage: StorageView

    def unbound(self) -> list[tuple[VolumeUse, UnboundClaim]]:
        """Return the claims that wait for their first pod."""
        found = ((use, unbound_claim(self.namespace, use, self.storage)) for use in self.uses)
        return [(use, claim) for use, claim in found if claim is not None]

    def bound(self) -> Iterator[tuple[VolumeUse, PersistentVolume]]:
        """Yield the claims that have a volume."""
        for use in self.uses:
            claim = self.storage.claim_of(self.namespace, use)
            volume = self.storage.objects.volumes.get(claim.spec.volume_name) if claim is not None else None
            if volume is not None:
                yield use, volume


def filter_volumes(namespace: str, uses: PodVolumes, storage: StorageView) -> list[VolumeRejection]:
    """Return what the scheduler's volume plugins reject for a pod at this moment."""
    claims = _PodClaims(namespace, uses, storage)
    waits = _reject_everywhere(claims)
    if waits:
        return waits
    found = [*_reject_in_use(claims, waiting=False), *reject_by_limits(namespace, uses, storage)]
    found += _reject_by_bound_volumes(claims)
    return [*found, *nodes_for_claims((claim for _, claim in claims.unbound()), storage).rejections]


def fit_volumes(
    namespace: str,
    uses: PodVolumes,
    storage: StorageView,
    assumed: Mapping[PodClaims, int] = NO_PODS,
    unseen: int = 0,
    siblings: int = 0,
) -> VolumeFit:
    """Return the nodes that the volume plugins allow, whatever pods that wait or were just admitted take first.

    Args:
        assumed: Numbers of pods that were admitted a moment ago, by their claims.
        unseen: Pods like this one that may be admitted at the same time, each with as many siblings.
        siblings: Pods of its template that start together with it, each with claims of its own from templates.
    """
    claims = _PodClaims(namespace, uses, storage)
    waits = _reject_everywhere(claims) or [*_reject_in_use(claims, waiting=True), *_reject_assumed(claims, assumed)]
    pending = None if waits else _pending_storage(storage, assumed)
    if pending is None:
        return VolumeFit(0, rejections=tuple(waits) or (_too_many_pending(storage),))
    fit = _fit_on_nodes(claims, pending, unseen, siblings)
    followed = [claim for use, claim in claims.unbound() if not _keeps_location(use, claim, fit.nodes, storage)]
    return VolumeFit(0, rejections=(_shared_rejection(followed[0], storage),)) if followed else fit


def fit_volumes_on_new_nodes(
    namespace: str,
    uses: PodVolumes,
    storage: StorageView,
    assumed: Mapping[PodClaims, int] = NO_PODS,
    unseen: int = 0,
    siblings: int = 0,
    *,
    zoned: bool = False,
) -> VolumeFit:
    """Return the new nodes that the volume plugins allow, whatever other pods take first.

    A new node has no volumes yet, and attaches as many as the live ones. A claim that other pods may use must be bound
    already: else it would be bound wherever the new node is.

    Args:
        storage: With the new nodes as its fleet, and all else of the cluster.
        assumed: Numbers of pods that were admitted a moment ago, by their claims.
        unseen: Pods like this one that may be admitted at the same time, each with as many siblings.
        siblings: Pods of its template that start together with it, each with claims of its own from templates.
        zoned: True if nodes of the cluster have zones, so a new node without one will have an unknown one.
    """
    unbound = _PodClaims(namespace, uses, storage).unbound()
    shared = (claim for use, claim in unbound if not (use.is_own or is_for_one_pod(claim.spec)))
    rejection = next((_shared_rejection(claim, storage) for claim in shared), None) or _reject_by_usual_limits(
        namespace, uses, storage
    )
    if rejection is not None:
        return VolumeFit(0, rejections=(rejection,))
    fit = fit_volumes(namespace, uses, storage, assumed, unseen, siblings)
    unknown = _reject_by_unknown_zones(_PodClaims(namespace, uses, storage)) if zoned else ()
    excluded = union_masks(each.nodes for each in unknown)
    return fit._replace(nodes=fit.nodes & ~excluded, rejections=(*fit.rejections, *unknown)) if unknown else fit


def _reject_by_unknown_zones(claims: _PodClaims) -> tuple[VolumeRejection, ...]:
    """Return the nodes whose zone is not known, by each volume whose labels name one."""
    fleet, found = claims.storage.fleet, []
    for use, volume in claims.bound():
        if not use.template and (nodes := nodes_without_zones_of(volume, fleet) & ~zoned_nodes(fleet)):
            zones = ", ".join(zone_labels(volume))
            name = f"volume {volume.metadata.name} of claim {use.claim}"
            detail = f"{name} is in {zones}, and the zone of a new node is not known"
            found.append(VolumeRejection(VolumeProblem.UNREACHABLE, nodes, ZONE_CONFLICT, detail))
    return tuple(found)


def _reject_by_usual_limits(namespace: str, uses: PodVolumes, storage: StorageView) -> VolumeRejection | None:
    """Return the driver whose volumes some node cannot attach for a pod, even without other pods."""
    needed = Counter(volume.driver for volume, _ in new_volumes(namespace, uses, storage))
    for node in storage.objects.csi_nodes.values() if needed else ():
        for driver in node.spec.drivers:
            if needed[driver.name] > (driver.allocatable.count if driver.allocatable.count is not None else MANY):
                detail = f"no more volumes of {driver.name} may fit"
                return VolumeRejection(VolumeProblem.UNREACHABLE, storage.fleet.all_nodes, TOO_MANY_VOLUMES, detail)
    return None


def bind_volumes(namespace: str, uses: PodVolumes, node: str, storage: StorageView) -> StorageView:
    """Return the storage after a pod was bound to a node: its claims are in use there, and their volumes attached.

    Claims that wait for their first pod keep waiting.
    """
    if not uses:
        return storage
    position, users = storage.fleet.by_name[node], dict(storage.users.nodes)
    attached = Counter(dict(storage.objects.attached.get(node, {})))
    for volume, nodes in new_volumes(namespace, uses, storage):
        attached[volume.driver] += not nodes >> position & 1
    for use in uses:
        if use.claim:
            key = f"{namespace}/{use.claim}"
            users[key] = tuple({*users.get(key, ()), node})
    objects = storage.objects._replace(attached={**storage.objects.attached, node: attached})
    return storage.with_objects(objects, (node,)).with_users(storage.users._replace(nodes=users))


def _fit_on_nodes(claims: _PodClaims, pending: PendingStorage, unseen: int, siblings: int) -> VolumeFit:
    namespace, uses, storage = claims
    attaching = Counter(dict(pending.by_driver))
    created = tuple([use for use in uses if use.template])
    others = unseen * (1 + siblings) + siblings if created else unseen
    for used, pods in ((uses, unseen), (created, others - unseen)):
        for volume, _ in new_volumes(namespace, used, storage) if pods else ():
            attaching[volume.driver] += pods
    unbound = [claim for _, claim in claims.unbound()]
    taken = {
        claim.class_name: pending.by_class.get(claim.class_name, TakenStorage())._replace(pods=others)
        for claim in unbound
    }
    bindable = nodes_for_claims(unbound, storage, taken)
    rejections = [*reject_by_limits(namespace, uses, storage, attaching), *_reject_by_bound_volumes(claims)]
    nodes = bindable.nodes
    for each in rejections:
        nodes &= ~each.nodes
    takers = sum(each.claims + each.pods for each in taken.values())
    return VolumeFit(nodes, bindable.exclusive & nodes, takers, (*rejections, *bindable.rejections))


def _reject_everywhere(claims: _PodClaims) -> list[VolumeRejection]:
    """Return why a pod waits for its claims, whatever node it gets."""
    namespace, uses, storage = claims
    if storage.objects.missing:
        detail = f"{', '.join(storage.objects.missing)} cannot be read"
        if storage.objects is NO_STORAGE:
            detail = "no object about storage is known; a snapshot needs persistentvolumeclaims, persistentvolumes, "
            detail += "storageclasses and csinodes"
        return [VolumeRejection(VolumeProblem.UNKNOWN, storage.fleet.all_nodes, "", detail)]
    found = (reject_by_claim(namespace, use, storage) for use in uses)
    return [each for each in found if each is not None]


def _reject_in_use(claims: _PodClaims, *, waiting: bool) -> list[VolumeRejection]:
    namespace, uses, storage = claims
    found = (reject_by_other_pod(namespace, use, storage, waiting=waiting) for use in uses)
    return [each for each in found if each is not None]


def _reject_assumed(claims: _PodClaims, assumed: Mapping[PodClaims, int]) -> list[VolumeRejection]:
    """Return the claims for one pod at a time that a pod uses which was admitted a moment ago."""
    if not assumed:
        return []
    namespace, uses, storage = claims
    held = {f"{owner}/{use.claim}": ("",) for owner, some in assumed for use in some if not use.template}
    with_assumed = storage.with_users(storage.users._replace(nodes=held))
    return _reject_in_use(_PodClaims(namespace, uses, with_assumed), waiting=True)


def _reject_by_bound_volumes(claims: _PodClaims) -> list[VolumeRejection]:
    """Return the nodes that do not reach a volume, by its node affinity and by the zones of its labels."""
    storage, found = claims.storage, []
    for use, volume in claims.bound():
        name = f"volume {volume.metadata.name} of claim {use.claim}"
        beyond = storage.fleet.all_nodes & ~nodes_of_volume(volume, storage)
        found.append((beyond, NODE_CONFLICT, f"{name} is not reachable by its node affinity"))
        outside = nodes_outside_zones(volume, storage.fleet) if not use.template else 0
        found.append((outside, ZONE_CONFLICT, f"{name} is in {', '.join(zone_labels(volume))}"))
    return [VolumeRejection(VolumeProblem.UNREACHABLE, *each) for each in found if each[0]]


def _pending_storage(storage: StorageView, assumed: Mapping[PodClaims, int]) -> PendingStorage | None:
    """Return what pods without a node and pods admitted a moment ago may take; None if they are too many."""
    waiting = storage.users.waiting
    if len(waiting) + len(assumed) > MAX_PENDING_KINDS:
        return None
    if storage.pending is None:
        storage.pending = _sum_pending(storage, waiting)
    return _sum_pending(storage, assumed, storage.pending) if assumed else storage.pending


def _sum_pending(
    storage: StorageView, pods: Mapping[PodClaims, int], before: PendingStorage | None = None
) -> PendingStorage:
    known = before or PendingStorage()
    by_class = defaultdict(TakenStorage, known.by_class)
    by_driver = Counter(dict(known.by_driver))
    for (namespace, uses), count in pods.items():
        for _, claim in _PodClaims(namespace, uses, storage).unbound():
            taken = by_class[claim.class_name]
            by_class[claim.class_name] = TakenStorage(taken.claims + count, taken.size + count * claim.size)
        for volume, _ in new_volumes(namespace, uses, storage):
            by_driver[volume.driver] += count
    return PendingStorage(dict(by_class), by_driver)


def _too_many_pending(storage: StorageView) -> VolumeRejection:
    detail = "too many pods with claims wait for a node"
    return VolumeRejection(VolumeProblem.UNKNOWN, storage.fleet.all_nodes, BIND_CONFLICT, detail)


def _keeps_location(use: VolumeUse, claim: UnboundClaim, nodes: int, storage: StorageView) -> bool:
    """Return whether other pods of a claim find its volume wherever it is, if this pod is its first.

    Otherwise a smaller GPU may bind it to a zone that has none of the GPUs which the others request. It does not matter
    for a claim of one pod, or if all nodes with GPUs are in one place as its driver sees it.
    """
    if use.is_own or is_for_one_pod(claim.spec) or claim.selected_node is not None:
        return True
    nodes &= storage.fleet.gpu_nodes
    if not nodes & (nodes - 1):
        return True
    if storage.objects.unbound_volumes.get(claim.class_name):
        return False
    provisioner = storage.objects.classes[claim.class_name].provisioner
    return _are_one_place(CSI_DRIVERS.get(provisioner, provisioner), nodes, storage)


def _are_one_place(driver: str, nodes: int, storage: StorageView) -> bool:
    """Return whether a driver reaches the same volumes from all nodes of a mask."""
    known = storage.driver_nodes.get(driver)
    keys = next((keys for keys, mask in known.by_keys.items() if not nodes & ~mask), None) if known else None
    return keys is not None and all(storage.fleet.common_label(key, nodes) is not None for key in keys)


def _shared_rejection(claim: UnboundClaim, storage: StorageView) -> VolumeRejection:
    detail = f"claim {claim.name} of class {claim.class_name}"
    return VolumeRejection(VolumeProblem.SHARED, storage.fleet.all_nodes, BIND_CONFLICT, detail)


def rejections_by_node(rejections: Iterable[VolumeRejection], node: int) -> Iterator[VolumeRejection]:
    """Yield the rejections of one node, each message once."""
    seen = set()
    for each in rejections:
        if each.nodes >> node & 1 and each.message not in seen:
            seen.add(each.message)
            yield each


IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


def reject_by_other_pod(
    namespace: str, use: VolumeUse, storage: StorageView, *, waiting: bool
) -> VolumeRejection | None:
    """Return why a claim is in use; None if the pod may use it.

    Args:
        waiting: True if pods without a node count too, as they may get one first.
    """
    claim = storage.claim_of(namespace, use) if not use.template else None
    if claim is None or not is_for_one_pod(claim.spec):
        return None
    users = storage.users.nodes.get(f"{namespace}/{use.claim}", ())
    if not any(node or waiting for node in users):
        return None
    detail = f"claim {use.claim} (ReadWriteOncePod) is in use by another pod"
    return VolumeRejection(VolumeProblem.IN_USE, storage.fleet.all_nodes, IN_USE, detail)
