"""A cluster view with other namespace labels, with claim templates of files, or without the usage of one pod."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from webhook.engine.claimed_gpus import claim_of_scheduler
from webhook.engine.quota.admission import compute_claims_charge
from webhook.engine.quota.charges import release_pod_usage
from webhook.model.bounded_cache import BoundedCache
from webhook.model.claims import (
    CLAIM_KINDS,
    CLAIM_VERSIONS,
    ClaimSpec,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    device_classes_by_name,
    with_requests_of_v1,
)
from webhook.model.cluster_view import MAX_NAMESPACE_VIEWS, NAMESPACE_NAME, ClusterView
from webhook.model.dra.device_view import NO_DEVICES, DeviceKind
from webhook.model.dra.extended_resources import classes_by_resource
from webhook.model.filters.inter_pod_affinity import ExclusionByOthers
from webhook.model.filters.node_ports import HostPort
from webhook.model.filters.pod_ties import PodTies, TiedNodes
from webhook.model.filters.volumes import bind_volumes
from webhook.model.objects import Namespace, ResourceQuota
from webhook.model.pod_volumes import pod_volumes
from webhook.model.pods import ObjectMeta, Pod, without_nulls
from webhook.model.storage_view import ClaimKey, StorageView, VolumeUsers


class AdjustedView(ClusterView):
    """A view that differs from another one in its namespaces and quotas."""

    _labels: Mapping[str, str] = {}
    _relabeled_namespace: tuple[str, Mapping[str, str]] | None = None
    _recreated_pod: tuple[str, Pod, bool] | None = None
    _with_pod: ClusterView | None = None
    _released_quotas: tuple[ResourceQuota, ...] | None = None

    def __init__(self, view: ClusterView) -> None:
        self.__dict__.update(view.__dict__)  # views are immutable, so they can share their state
        self._usage = self._usage.with_changed_labels()
        self._views_of_namespaces = BoundedCache(MAX_NAMESPACE_VIEWS)  # those of the other view differ

    def namespace(self, name: str) -> Namespace | None:
        """Return the namespace; one with given labels exists."""
        known = super().namespace(name)
        metadata = known.metadata if known is not None else ObjectMeta(name=name)
        if self._relabeled_namespace is not None and self._relabeled_namespace[0] == name:
            labels = self._relabeled_namespace[1]
        elif self._labels:
            labels = {**metadata.labels, **self._labels}
        else:
            return known
        return Namespace(metadata=msgspec.structs.replace(metadata, labels={**labels, NAMESPACE_NAME: name}))

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace, with given ones."""
        found = self.namespace(namespace)
        return found.metadata.labels if found is not None else super().labels_of(namespace)

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """Return the quotas without the usage of the pod that is recreated; computed once."""
        found = super().quotas(namespace)
        if self._recreated_pod is None or namespace != self._recreated_pod[0] or not found:
            return found
        if self._released_quotas is None:
            _, pod, runs = self._recreated_pod
            context, of_scheduler = self.claim_context(namespace), claim_of_scheduler(pod, self)
            claims = compute_claims_charge(pod, context, of_scheduler) if runs else {}
            self._released_quotas = release_pod_usage(found, pod, claims)
        return self._released_quotas

    def exclusion_by_pods(self, namespace: str, labels: tuple[tuple[str, str], ...]) -> ExclusionByOthers:
        """Return the nodes from which pods exclude a new one; the pod that is recreated excludes nothing."""
        return ClusterView.exclusion_by_pods(self._without_recreated_pod(), namespace, labels)

    def find_tied_nodes(
        self, ties: PodTies, excluding: tuple[tuple[str, int], ...], selections: tuple[int, ...], tolerated: int
    ) -> tuple[TiedNodes | None, ...]:
        """Return the nodes to which its ties allow a pod; the pod that is recreated is not there."""
        return ClusterView.find_tied_nodes(self._without_recreated_pod(), ties, excluding, selections, tolerated)

    def nodes_with_ports_in_use(self, ports: tuple[HostPort, ...]) -> int:
        """Return the mask of the nodes on which such ports are in use; the pod that is recreated holds none."""
        return ClusterView.nodes_with_ports_in_use(self._without_recreated_pod(), ports)

    def _without_recreated_pod(self) -> ClusterView:
        if self._with_pod is None or self._recreated_pod is None:
            return self
        home, pod, _ = self._recreated_pod
        return self.with_tie_counts(self._with_pod._usage.tie_counts_of_others(home, pod.metadata.name))


def with_namespace_labels(view: ClusterView, labels: Mapping[str, str]) -> ClusterView:
    """Return a view in which every namespace exists and has these labels, which override its own."""
    if not labels:
        return view
    adjusted = AdjustedView(view)
    adjusted._labels = dict(labels)
    return adjusted


def with_claim_objects(view: ClusterView, objects: Iterable[Mapping[str, Any]], namespace: str) -> ClusterView:
    """Return a view with the claims, claim templates and device classes among objects; invalid ones are left out.

    Args:
        namespace: The namespace of claims and templates that name none.
    """
    found = [each for each in map(_read_claim_object, objects) if each is not None]
    if not found:
        return view
    adjusted, devices = AdjustedView(view), view.devices
    new_classes = [each for each in found if isinstance(each, DeviceClass)]
    classes = {**view.classes, **device_classes_by_name(new_classes)}
    templates: dict[str, Mapping[str, ClaimSpec]] = dict(view._templates)
    claims: dict[str, dict[str, ResourceClaim]] = {name: dict(some) for name, some in devices.claims.items()}
    for each in found:
        home = each.metadata.namespace or namespace
        if isinstance(each, ResourceClaimTemplate):
            templates[home] = {**templates.get(home, {}), each.metadata.name: each.spec.spec}
        elif isinstance(each, ResourceClaim):
            claims.setdefault(home, {})[each.metadata.name] = each
    adjusted._templates = templates
    served = {**devices.class_by_resource, **classes_by_resource(new_classes)}
    unlisted = {DeviceKind.CLAIM, DeviceKind.TEMPLATE, DeviceKind.CLASS} if devices is NO_DEVICES else devices.unlisted
    devices = devices._replace(classes=classes, class_by_resource=served, claims=claims, unlisted=frozenset(unlisted))
    return adjusted.with_classes(classes).with_devices(devices)


def _read_claim_object(data: Mapping[str, Any]) -> ResourceClaim | ResourceClaimTemplate | DeviceClass | None:
    kinds: Mapping[str, type[ResourceClaim] | type[ResourceClaimTemplate] | type[DeviceClass]]
    kinds = {**CLAIM_KINDS, "DeviceClass": DeviceClass}
    read_as = kinds.get(data["kind"]) if data["apiVersion"] in CLAIM_VERSIONS else None
    try:
        return msgspec.convert(without_nulls(with_requests_of_v1(dict(data))), read_as) if read_as is not None else None
    except msgspec.ValidationError:
        return None


def with_only_namespace_labels(view: ClusterView, name: str, labels: Mapping[str, str]) -> ClusterView:
    """Return a view in which one namespace exists and has only these labels."""
    adjusted = AdjustedView(view)
    adjusted._relabeled_namespace = (name, dict(labels))
    return adjusted


def _without_user(storage: StorageView, claims: Iterable[ClaimKey], *, runs: bool) -> StorageView:
    """Return the view of storage without one pod that uses these claims; with a node if it runs."""
    users: dict[ClaimKey, tuple[str, ...]] = {}
    others = cast("dict[ClaimKey, tuple[str, ...]]", storage.users.nodes)  # only read
    for claim in claims:
        nodes = list(storage.users.nodes.get(claim, ()))
        own = next((position for position, node in enumerate(nodes) if bool(node) == runs), None)
        if own is not None:
            users[claim] = (*nodes[:own], *nodes[own + 1 :])
    return storage.with_users(VolumeUsers(ChainMap(users, others), storage.users.waiting))


def without_pod_usage(view: ClusterView, namespace: str, pod: Pod, *, runs: bool) -> ClusterView:
    """Return a view without a stored pod's usage in the quotas and anti-affinity: the pod is about to be recreated.

    If it runs, the claims of its claim templates exist and are charged too.
    """
    adjusted = AdjustedView(view)
    adjusted._usage = adjusted._usage.without_pod(namespace, pod.metadata.name)
    adjusted._recreated_pod, adjusted._released_quotas, adjusted._with_pod = (namespace, pod, runs), None, view
    if uses := pod_volumes(pod):
        adjusted.storage = _without_user(view.storage, [f"{namespace}/{use.claim}" for use in uses], runs=runs)
    return adjusted


def with_pod_moved(view: ClusterView, namespace: str, pod: Pod, node: str, *, runs: bool) -> ClusterView:
    """Return a view in which a stored pod is on another node, with its ties to other pods and its volumes."""
    name, uses = pod.metadata.name, pod_volumes(pod)
    if not view.has_pod(namespace, name):
        return view.with_pod_bound(pod, node)
    others = view._usage.tie_counts_of_others(namespace, name)
    counts = {key: {**by_node, node: by_node.get(node, 0) + 1} for key, by_node in others.items()}
    storage = _without_user(view.storage, [f"{namespace}/{use.claim}" for use in uses], runs=runs)
    storage = bind_volumes(namespace, uses, node, storage) if uses else view.storage
    usage = view._usage.with_tie_counts(counts)
    return view.with_tie_counts(counts)._copy_with(_usage=usage, storage=storage)
