"""VolumeBinding: the nodes that reach the volumes of a pod's claims, or on which its unbound claims can be bound.

A claim that waits for its first pod (`WaitForFirstConsumer`) takes an existing volume that the node reaches, the
smallest that is large enough, or is provisioned where the topology of its class and the capacity of its driver allow.

Source: the VolumeBinding plugin of kube-scheduler, and FindMatchingVolume of `k8s.io/component-helpers/storage/volume`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.model.csi_migration import csi_source, plugin_of_volume, translated_terms
from webhook.model.filters.volume_rejections import VolumeProblem, VolumeRejection
from webhook.model.node_masks import union_masks
from webhook.model.pod_groups import satisfies_all
from webhook.model.pod_volumes import VolumeUse
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, PodLabelSelector
from webhook.model.storage_objects import (
    STORAGE,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologySelectorTerm,
    VolumeClaimSpec,
)
from webhook.model.storage_view import (
    ReachableVolume,
    StorageView,
    TakenStorage,
    claim_class,
    is_fully_bound,
    requested_bytes,
    storage_bytes,
)

NODE_CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
NO_VOLUME = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"

NO_PROVISIONER = "kubernetes.io/no-provisioner"
LOST, AVAILABLE, FILESYSTEM = "Lost", "Available", "Filesystem"

MAX_VOLUMES = 4096
"""Unbound volumes of one class that are compared; further ones count as taken."""


class UnboundClaim(NamedTuple):
    """A claim that waits for its first pod.

    Attributes:
        name: Its name; "" if it does not exist yet.
        namespace: Its namespace.
        uid: Its uid; "" if it does not exist yet.
        spec: Its specification.
        class_name: Its class.
        selected_node: The node on which it is being provisioned; "" if none was chosen.
    """

    name: str
    namespace: str
    uid: str
    spec: VolumeClaimSpec
    class_name: str
    selected_node: str | None = None

    @property
    def size(self) -> int:
        """The size that it requests, in bytes."""
        return requested_bytes(self.spec) or 0


NOTHING_TAKEN = TakenStorage()


def nodes_of_volume(volume: PersistentVolume, storage: StorageView) -> int:
    """Return the mask of the nodes that a volume's node affinity allows, by the labels of the driver that serves it."""
    required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
    terms = required.node_selector_terms if required is not None else None
    plugin = plugin_of_volume(volume)
    migrated = storage.migrated_nodes.get(plugin, 0) if plugin else 0
    found = _nodes_selected(terms, storage)
    if not migrated:
        return found
    if csi_source(volume, plugin) is None:
        return found & ~migrated
    return (found & ~migrated) | (_nodes_selected(translated_terms(volume, plugin, terms), storage) & migrated)


def _nodes_selected(terms: Sequence[NodeSelectorTerm] | None, storage: StorageView) -> int:
    return storage.fleet.all_nodes if terms is None else storage.nodes_selected(terms)


def reject_by_claim(namespace: str, use: VolumeUse, storage: StorageView) -> VolumeRejection | None:
    """Return why a pod waits for a claim whatever node it gets; None if it does not."""
    claim, everywhere = storage.claim_of(namespace, use), storage.fleet.all_nodes
    if claim is None:
        return _reject_by_missing_claim(namespace, use, storage)
    name, metadata = use.claim, claim.metadata
    if claim.status.phase == LOST:
        message = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
        return VolumeRejection(VolumeProblem.UNKNOWN, everywhere, message, f"claim {name} has lost its volume")
    if metadata.deletion_timestamp is not None:
        message = f'persistentvolumeclaim "{name}" is being deleted'
        return VolumeRejection(VolumeProblem.UNKNOWN, everywhere, message, f"claim {name} is being deleted")
    if is_fully_bound(claim):
        return _reject_by_missing_volume(claim, storage)
    if claim.spec.volume_name or not storage.binds_later(claim_class(claim)):
        return VolumeRejection(VolumeProblem.UNBOUND, everywhere, UNBOUND_IMMEDIATE, _describe_unbound(claim, storage))
    return None


def _describe_unbound(claim: PersistentVolumeClaim, storage: StorageView) -> str:
    name, unbound = claim_class(claim), f"claim {claim.metadata.name} is not bound yet"
    is_missing = name and name not in storage.objects.classes
    return f"{unbound}, and its class {name} was not found" if is_missing else unbound


def _reject_by_missing_claim(namespace: str, use: VolumeUse, storage: StorageView) -> VolumeRejection | None:
    everywhere = storage.fleet.all_nodes
    if not use.template:
        message = f'persistentvolumeclaim "{use.claim}" not found'
        detail = f"no claim {use.claim} in namespace {namespace}" if use.claim else "its name is not known yet"
        if use.is_own:
            detail += "; its StatefulSet creates it just before the pod, which some pods find and others do not"
        return VolumeRejection(VolumeProblem.UNKNOWN, everywhere, message, detail)
    class_name = storage.class_name(use.spec)
    if storage.binds_later(class_name) and not use.spec.volume_name:
        return None
    lack = "does not wait for a pod" if class_name in storage.objects.classes else "was not found"
    why = f"class {class_name} {lack}" if class_name else "no class"
    return VolumeRejection(VolumeProblem.UNBOUND, everywhere, UNBOUND_IMMEDIATE, f"an ephemeral volume: {why}")


def _reject_by_missing_volume(claim: PersistentVolumeClaim, storage: StorageView) -> VolumeRejection | None:
    name = claim.spec.volume_name
    if name in storage.objects.volumes:
        return None
    detail = f"volume {name} of claim {claim.metadata.name} does not exist"
    return VolumeRejection(VolumeProblem.UNKNOWN, storage.fleet.all_nodes, NO_VOLUME, detail)


def unbound_claim(namespace: str, use: VolumeUse, storage: StorageView) -> UnboundClaim | None:
    """Return the claim of a pod that waits for its first pod; None if it is bound, or does not wait for one."""
    claim = storage.claim_of(namespace, use)
    if claim is None:
        if not use.template:
            return None
        class_name = storage.class_name(use.spec)
        found = UnboundClaim("", namespace, "", use.spec, class_name)
        return found if storage.binds_later(class_name) else None
    class_name, metadata = claim_class(claim), claim.metadata
    if claim.spec.volume_name or not storage.binds_later(class_name):
        return None
    selected = metadata.annotations.selected_node
    return UnboundClaim(metadata.name, namespace, metadata.uid, claim.spec, class_name, selected)


class BindableNodes(NamedTuple):
    """The nodes on which some unbound claims can be bound.

    Attributes:
        nodes: Mask of the nodes.
        exclusive: Those of them whose volumes other pods may take, each pod those of one node.
        rejections: Why not the others.
    """

    nodes: int
    exclusive: int
    rejections: tuple[VolumeRejection, ...]


class _Share(NamedTuple):
    """Nodes on which the claims so far take the same volumes."""

    nodes: int
    volumes: frozenset[str]


def nodes_for_claims(
    claims: Iterable[UnboundClaim], storage: StorageView, taken: Mapping[str, TakenStorage] | None = None
) -> BindableNodes:
    """Return the nodes on which claims that wait for their first pod can all be bound.

    Args:
        taken: What other pods may take, by class; None to answer as the scheduler does at this moment.
    """
    waiting = sorted(claims, key=lambda claim: claim.size)
    allowed, exclusive, rejections = storage.fleet.all_nodes, 0, []
    shares = [_Share(storage.fleet.all_nodes, frozenset())]
    for claim in waiting:
        others = (taken or {}).get(claim.class_name, NOTHING_TAKEN)
        candidates = () if claim.selected_node is not None else _candidates(claim, storage)
        shares, unmatched = _split_shares(shares, candidates)
        nodes, message = _nodes_to_provision(claim, storage, others, (claim,) if taken is None else waiting)
        found = storage.fleet.all_nodes & ~(unmatched & ~nodes)
        if others.claims or others.pods:
            own = sum(each.class_name == claim.class_name for each in waiting)
            sure, alone = _nodes_left(candidates, own * (1 + others.pods) + others.claims)
            exclusive |= found & alone & ~(sure | nodes)
            found &= sure | alone | nodes
        if rejected := storage.fleet.all_nodes & ~found:
            rejections.append(_binding_rejection(claim, rejected, message))
        allowed &= found
    return BindableNodes(allowed, exclusive & allowed, tuple(rejections))


def _binding_rejection(claim: UnboundClaim, nodes: int, message: str) -> VolumeRejection:
    name = f"claim {claim.name}" if claim.name else "an ephemeral volume"
    why = "too little storage is free" if message == NO_SPACE else "no volume can be bound"
    return VolumeRejection(VolumeProblem.UNREACHABLE, nodes, message, f"{name}: {why}")


def _split_shares(shares: Iterable[_Share], candidates: Sequence[ReachableVolume]) -> tuple[list[_Share], int]:
    """Return the shares after one more claim took the smallest free volume of each node, and the nodes without one."""
    after: dict[frozenset[str], int] = {}
    unmatched, by_node = 0, _volumes_by_node(candidates)
    for share in shares:
        nodes = share.nodes
        for each in by_node.get(nodes, candidates) if nodes & (nodes - 1) == 0 else candidates:
            name, hit = each.volume.metadata.name, nodes & each.nodes
            if hit and name not in share.volumes:
                volumes = share.volumes | {name}
                after[volumes] = after.get(volumes, 0) | hit
                nodes &= ~hit
        if nodes:
            after[share.volumes] = after.get(share.volumes, 0) | nodes
            unmatched |= nodes
    return [_Share(nodes, volumes) for volumes, nodes in after.items()], unmatched


def _volumes_by_node(candidates: Iterable[ReachableVolume]) -> dict[int, list[ReachableVolume]]:
    """Return the volumes of each node with a volume that no other reaches, by its mask; with all that others reach."""
    local: dict[int, list[ReachableVolume]] = {}
    wide = []
    for each in candidates:
        if _is_local(each):
            local.setdefault(each.nodes, []).append(each)
        else:
            wide.append(each)
    if not wide:
        return local
    return {node: sorted((*found, *wide), key=lambda each: each.size) for node, found in local.items()}


def _is_local(found: ReachableVolume) -> bool:
    return bool(found.nodes) and not found.nodes & (found.nodes - 1)


def _candidates(claim: UnboundClaim, storage: StorageView) -> tuple[ReachableVolume, ...]:
    """Return the volumes that a claim may take, the smallest first; only the one that is reserved for it, if any."""
    volumes = storage.objects.unbound_volumes.get(claim.class_name, ())[:MAX_VOLUMES]
    if not volumes:
        return ()
    reserved = [each for each in volumes if each.spec.claim_ref is not None and _fits_claim(each, claim)]
    if reserved:
        return _reachable_volumes(reserved, storage)
    key = (claim.class_name, msgspec.json.encode(claim.spec))
    if (found := storage.candidates.get(key)) is None:
        free = (each for each in volumes if each.spec.claim_ref is None)
        fitting = [each for each in free if _fits_claim(each, claim) and _is_available(each, claim)]
        found = storage.candidates.store(key, _reachable_volumes(fitting, storage))
    return found


def _reachable_volumes(volumes: Iterable[PersistentVolume], storage: StorageView) -> tuple[ReachableVolume, ...]:
    found = [ReachableVolume(each, nodes_of_volume(each, storage), _capacity(each)) for each in volumes]
    return tuple(sorted(found, key=lambda each: each.size))


def _capacity(volume: PersistentVolume) -> int:
    return storage_bytes(volume.spec.capacity.get(STORAGE)) or 0


def _fits_claim(volume: PersistentVolume, claim: UnboundClaim) -> bool:
    """Return whether a volume suits a claim, or is reserved for it, whatever its state."""
    spec, wanted, reference = volume.spec, claim.spec, volume.spec.claim_ref
    if reference is not None and not (
        (reference.namespace, reference.name) == (claim.namespace, claim.name) and reference.uid in ("", claim.uid)
    ):
        return False
    return (
        _capacity(volume) >= claim.size
        and (spec.volume_mode or FILESYSTEM) == (wanted.volume_mode or FILESYSTEM)
        and spec.volume_attributes_class_name == wanted.volume_attributes_class_name
        and volume.metadata.deletion_timestamp is None
    )


def _is_available(volume: PersistentVolume, claim: UnboundClaim) -> bool:
    selector = claim.spec.selector
    return (
        volume.status.phase == AVAILABLE
        and (selector is None or selects_labels(selector, volume.metadata.labels))
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
    )


def selects_labels(selector: PodLabelSelector, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector selects an object with these labels."""
    return satisfies_all(selector.requirements(), labels)


def _nodes_left(candidates: Sequence[ReachableVolume], times: int) -> tuple[int, int]:
    """Return the nodes that reach so many volumes, and those with one that no other reaches. Reserved ones stay."""
    if any(each.volume.spec.claim_ref is not None for each in candidates):
        return union_masks(each.nodes for each in candidates), 0
    reached = [0] * min(times, len(candidates) + 1)
    for each in candidates:
        for level in range(len(reached) - 1, 0, -1):
            reached[level] |= reached[level - 1] & each.nodes
        reached[0] |= each.nodes
    return reached[-1], union_masks(each.nodes for each in candidates if _is_local(each))


def _nodes_to_provision(
    claim: UnboundClaim, storage: StorageView, taken: TakenStorage, together: Sequence[UnboundClaim]
) -> tuple[int, str]:
    """Return the nodes on which a claim can be provisioned, and the scheduler's message about the others.

    Args:
        together: The claims of the pod that take capacity of the same class; the scheduler looks at one at a time.
    """
    found, message = storage.objects.classes[claim.class_name], BIND_CONFLICT
    if found.provisioner in ("", NO_PROVISIONER):
        return 0, message
    nodes = nodes_of_topologies(found, storage)
    if claim.selected_node is not None:
        position = storage.fleet.by_name.get(claim.selected_node)
        nodes &= 1 << position if position is not None else 0
    driver = storage.objects.drivers.get(found.provisioner)
    if driver is None or not driver.spec.storage_capacity or requested_bytes(claim.spec) is None:
        return nodes, message
    size = sum(each.size for each in together if each.class_name == claim.class_name)
    roomy = storage.nodes_with_capacity(claim.class_name, size * (1 + taken.pods), taken.size)
    return nodes & roomy, NO_SPACE if nodes & ~roomy else message


def nodes_of_topologies(storage_class: StorageClass, storage: StorageView) -> int:
    """Return the nodes that the allowed topologies of a class name; all if it names none."""
    terms = storage_class.allowed_topologies
    return storage.nodes_selected(map(_node_term, terms)) if terms else storage.fleet.all_nodes


def _node_term(term: TopologySelectorTerm) -> NodeSelectorTerm:
    expressions = term.match_label_expressions
    return NodeSelectorTerm(tuple(NodeSelectorRequirement(one.key, "In", one.values) for one in expressions))
