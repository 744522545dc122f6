"""ClusterView: everything known about a cluster at one moment, immutable and replaced as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeVar

from webhook.model.assumed_pods import AssumedPod
from webhook.model.bounded_cache import BoundedCache
from webhook.model.capacity_view import CapacityView
from webhook.model.claims import (
    ClaimContext,
    DeviceClasses,
    ResourceClaimTemplate,
    claim_templates_by_name,
    extended_names,
)
from webhook.model.csi_migration import zoned_nodes
from webhook.model.daemon_pods import NO_DAEMONS, DaemonPods
from webhook.model.derived_values import derived_value
from webhook.model.dra.claim_weights import NO_CLUSTER_CLAIMS, ClusterClaims
from webhook.model.dra.device_view import NO_DEVICES, DeviceView, NamespaceClaims
from webhook.model.filters.inter_pod_affinity import (
    NOT_EXCLUDED,
    ExclusionByOthers,
    RequiredTerm,
    combine_exclusions,
    excluding_pods,
    index_anti_affinity,
)
from webhook.model.filters.node_ports import HostPort, held_ports, index_host_ports, nodes_by_name
from webhook.model.filters.pod_ties import (
    ClusterPods,
    PodTies,
    Takers,
    TiedNodes,
    TieKey,
    allows_new_node,
    find_exclusion_by_pending,
    find_tied_nodes,
)
from webhook.model.filters.pod_topology_spread import NO_PEERS, PeerSelectors
from webhook.model.filters.volumes import ANY_VOLUMES, VolumeFit, bind_volumes, fit_volumes, fit_volumes_on_new_nodes
from webhook.model.fleet import Fleet, counts_names
from webhook.model.free_resources import (
    FreeResources,
)
from webhook.model.limit_ranges import NamespaceLimitRanges, no_limit_ranges, parse_limit_range
from webhook.model.node_groups import (
    KNOWN_SOURCES,
    NO_SOURCES,
    GroupSources,
    free_on_new_nodes,
    growing_groups,
    new_nodes,
    stopped_groups,
)
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.pod_classes import NO_POD_CLASSES, PodClasses
from webhook.model.pod_groups import NO_POD_GROUPS, PodGroup
from webhook.model.pod_volumes import PodVolumes, pod_volumes
from webhook.model.pods import DEFAULT_NAMESPACE, ObjectMeta, OwnerReference, Pod, PodLabelSelector
from webhook.model.pools import GpuWeight, QuotaPool, QuotaReservation
from webhook.model.queues import NO_QUEUES, KueueQueues
from webhook.model.quota_escrow import PodVersions
from webhook.model.quota_matching import CountedResource
from webhook.model.quota_usage import PodSummaries, PoolHolders, QuotaUsage
from webhook.model.remaining_quota import QuotaConsumer, RemainingQuota, compute_remaining_quota
from webhook.model.schedulers import NO_SCHEDULERS, Schedulers
from webhook.model.storage_view import NO_STORAGE, StorageObjects, StorageView, VolumeUsers
from webhook.model.volcano_queues import NO_VOLCANO_QUEUES, VolcanoQueues
from webhook.model.waiting_pods import (
    WaitingKind,
)

__all__ = ["AssumedPod", "ClusterView"]

NAMESPACE_NAME = "kubernetes.io/metadata.name"

MAX_NAMESPACE_VIEWS = 4096
"""Bound of the cache of what is known about namespaces. A cluster rarely has more."""

POD_LEVEL_LAST_MINOR = 37
"""Since this minor version the API server completes pod-level resources after LimitRanges."""

NOTHING: Mapping[str, Sequence[Any]] = MappingProxyType({})

Named = TypeVar("Named", LimitRange, ResourceQuota)


class NamespaceView(NamedTuple):
    """Everything known about one namespace: its labels and annotations, and the objects in it that bound pods.

    Attributes:
        ranges: Its LimitRanges, parsed, by name.
        limited_resources: The resource names that they mention.
        quotas: Its ResourceQuotas, by name.
        remaining_quotas: What these leave.
        claims: Its claim templates, and the DeviceClasses.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    ranges: NamespaceLimitRanges
    limited_resources: frozenset[str]
    quotas: tuple[ResourceQuota, ...]
    remaining_quotas: tuple[RemainingQuota, ...]
    claims: ClaimContext


class ClusterView(CapacityView):
    """Nodes, free resources, namespaces and quotas. Immutable; every change returns a new view that shares the rest.

    Attributes:
        complete: True for a live view: a namespace that is not in it does not exist. Namespaces missing from a snapshot
            count as having no labels but their name.
        before: The nodes before their last change; None if they have not changed.
        classes: The DeviceClasses.
        claimable_names: Extended resource names of the DeviceClasses: claims may serve them.
        pod_classes: What RuntimeClasses and PriorityClasses add to new pods.
        queues: The queues of Kueue.
        volcano_queues: The queues of Volcano.
        peers: What selects the pods that default topology spread counts.
        schedulers: The rules of schedulers whose configuration is known.
        pod_versions: How new its pods are.
        has_anti_affinity: True if any pod has required anti-affinity, also one that was just admitted.
        storage: Claims, volumes and classes, and the pods that use them.
        group_sources: What is written about node groups.
        daemons: The pods that new nodes run too.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        free: Mapping[str, FreeResources] | None = None,
        namespaces: Mapping[str, Namespace] | None = None,
        limit_ranges: Mapping[str, tuple[LimitRange, ...]] | None = None,
        quotas: Mapping[str, tuple[ResourceQuota, ...]] | None = None,
        claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]] | None = None,
        device_classes: DeviceClasses | None = None,
        pods: PodSummaries | None = None,
        ties: Mapping[TieKey, Mapping[str, int]] | None = None,
        waiting: Mapping[WaitingKind, int] | None = None,
        assumed: Iterable[AssumedPod] = (),
        complete: bool = False,
        stale: bool = False,
    ) -> None:
        """Index the parts: namespaces by name, objects in them by namespace.

        Args:
            free: Free resources by node name; other nodes are empty.
            pods: Pods that have not ended, by namespace and name.
            ties: Numbers of pods by what ties them to others and by the name of the node; "" without one.
            waiting: Numbers of pods without a node.
            assumed: Pods admitted a moment ago.
        """
        super().__init__(fleet, free or {}, waiting or {}, assumed)
        self.complete, self._stale = complete, stale
        self.before: Fleet | None = None
        self.pod_versions = PodVersions()
        self._escrows: Mapping[QuotaPool, int] | None = None
        self._namespaces = {name: _with_name_label(name, found) for name, found in (namespaces or {}).items()}
        self._limit_ranges = {name: _sort_by_name(found) for name, found in (limit_ranges or {}).items()}
        self._limited = {name: _limited_resources(found) for name, found in self._limit_ranges.items()}
        self._ranges: dict[str, NamespaceLimitRanges] = {}
        self._remaining: dict[str, tuple[RemainingQuota, ...]] = {}
        self._views_of_namespaces: BoundedCache[str, NamespaceView] = BoundedCache(MAX_NAMESPACE_VIEWS)
        self._quotas = {name: _sort_by_name(found) for name, found in (quotas or {}).items()}
        self._templates = {name: claim_templates_by_name(found) for name, found in (claim_templates or {}).items()}
        self.classes: DeviceClasses = device_classes or {}
        self.claimable_names = extended_names(self.classes)
        self.pod_classes = NO_POD_CLASSES
        self.queues = NO_QUEUES
        self.volcano_queues = NO_VOLCANO_QUEUES
        self.peers = NO_PEERS
        self.group_sources = NO_SOURCES
        self.daemons = NO_DAEMONS
        self.schedulers = NO_SCHEDULERS
        self._usage = QuotaUsage(fleet, pods or {})
        terms, ports, groups = _split_ties(ties or {})
        self._anti_affinity, self._ports = index_anti_affinity(terms, fleet), index_host_ports(ports, fleet)
        self._pod_groups = NO_POD_GROUPS.with_changes(groups, fleet)
        self.has_anti_affinity = bool(self._anti_affinity.pods) or self._assumed.excluding > 0
        self.storage = StorageView(fleet, NO_STORAGE, VolumeUsers())

    def namespace(self, name: str) -> Namespace | None:
        """Return the namespace with its label `kubernetes.io/metadata.name`; None if a complete view has none."""
        found = self._namespaces.get(name)
        if found is None and not self.complete:
            return _with_name_label(name, Namespace())
        return found

    def view_namespace(self, name: str) -> NamespaceView:
        """Return what is known about a namespace. Collected on first use."""
        if (found := self._views_of_namespaces.get(name)) is None:
            known = self._namespaces.get(name)
            annotations = known.metadata.annotations if known is not None else {}
            limits = self.ranges(name), self.limited_resources(name)
            quotas = self.quotas(name), self.remaining_quotas(name)
            view = NamespaceView(self.labels_of(name), annotations, *limits, *quotas, self.claim_context(name))
            found = self._views_of_namespaces.store(name, view)
        return found

    def all_namespaces(self) -> Mapping[str, Namespace]:
        """Return the known namespaces by name, with their labels."""
        return self._namespaces

    def limit_ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """Return the namespace's LimitRanges, by name."""
        return self._limit_ranges.get(namespace, ())

    def ranges(self, namespace: str) -> NamespaceLimitRanges:
        """Return the namespace's parsed LimitRanges, by name. Parsed on first use."""
        found = self._ranges.get(namespace)
        if found is not None:
            return found
        written = self._limit_ranges.get(namespace)
        last = self.api_minor >= POD_LEVEL_LAST_MINOR
        if not written:
            return no_limit_ranges(before_pod_level=last)
        self._ranges[namespace] = NamespaceLimitRanges(map(parse_limit_range, written), before_pod_level=last)
        return self._ranges[namespace]

    def remaining_quotas(self, namespace: str) -> tuple[RemainingQuota, ...]:
        """Return what the namespace's quotas leave, by name. Computed on first use."""
        found = self._remaining.get(namespace)
        if found is not None:
            return found
        quotas = self._quotas.get(namespace)
        if not quotas:
            return ()
        self._remaining[namespace] = tuple(map(compute_remaining_quota, quotas))
        return self._remaining[namespace]

    def limited_resources(self, namespace: str) -> frozenset[str]:
        """Return the resource names that the namespace's LimitRanges mention."""
        return self._limited.get(namespace, frozenset())

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """Return the namespace's ResourceQuotas, by name."""
        return self._quotas.get(namespace, ())

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> Sequence[QuotaConsumer]:
        """Return the pods that use a quota's resource, the largest first."""
        return self._usage.quota_users(quota, namespace, what)

    def holds_at_most(self, namespace: str, resource: str, quota: ResourceQuota, most: int) -> bool:
        """Return whether pods hold at most so many units of a resource: stored ones that a quota counts, and assumed.

        Args:
            namespace: The namespace of the pods and of the quota.
        """
        stored = self._usage.units_held(quota, namespace, resource)
        return stored + self._assumed.count_units(namespace, resource) <= most

    def claim_context(self, namespace: str) -> ClaimContext:
        """Return the claim templates of the namespace, and the DeviceClasses."""
        return ClaimContext(self._templates.get(namespace, {}), self.classes, counts_names(self.api_minor))

    def claim_users(self, namespace: str, key: str) -> Sequence[QuotaConsumer]:
        """Return the pods whose claims use a key of the namespace's quotas, the largest first."""
        return self._usage.claim_users(namespace, key, self.claim_context(namespace))

    def fits_pool(self, pool: QuotaPool, milli: int, most: int, uid: str) -> bool:
        """Return whether an amount of GPU capacity fits into a pool. A pod's own reservation does not count."""
        return self._usage.pool_usage(pool, self.labels_of, but=uid) + milli <= most

    def fits_escrow(self, pool: QuotaPool, milli: int, uid: str) -> bool | None:
        """Return whether so much GPU capacity fits into the escrow of a pool; None if this replica has none.

        A pod that is reserved already fits, and everything does if this is no replica that shares quotas with others.
        """
        if self._escrows is None or self.has_reserved(uid):
            return True
        unspent = self._escrows.get(pool)
        return None if unspent is None else milli <= unspent

    def pool_in_flight(self, pool: QuotaPool) -> int:
        """Return the thousandths of GPUs of pods that were admitted a moment ago and are not observed yet."""
        return self._usage.reserved_milli(pool, self.labels_of)

    def pool_usage(self, pool: QuotaPool) -> int:
        """Return the thousandths of GPUs that pods of a pool hold, wait for, or were admitted for a moment ago."""
        return self._usage.pool_usage(pool, self.labels_of)

    def pool_holders(self, pool: QuotaPool) -> PoolHolders:
        """Return the largest users of a pool."""
        return self._usage.pool_holders(pool, self.labels_of)

    def has_pod(self, namespace: str, name: str) -> bool:
        """Return whether quotas count a pod of this name already."""
        return self._usage.has_pod(namespace, name)

    def has_reserved(self, uid: str) -> bool:
        """Return whether this pod was admitted a moment ago and has not been observed since."""
        return uid in self._usage.reserved

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Return the namespace's labels; for an unknown one only its name."""
        found = self._namespaces.get(namespace)
        return found.metadata.labels if found else {NAMESPACE_NAME: namespace}

    def namespace_state(self, namespace: str) -> tuple[object, ...]:
        """Return everything that decides about pods of one namespace: equal values mean that nothing has changed."""
        namespaced = (self.namespace(namespace), self.limit_ranges(namespace), self.quotas(namespace))
        classes = self.claim_context(namespace), self.pod_classes
        unlisted = self.devices.unlisted
        return (self.complete, self.is_stale, self.has_anti_affinity, self.api_minor, *namespaced, *classes, unlisted)

    def exclusion_by_pods(self, namespace: str, labels: tuple[tuple[str, str], ...]) -> ExclusionByOthers:
        """Return the nodes from which other pods exclude a new one by their required anti-affinity.

        Args:
            namespace: Namespace of the new pod.
            labels: Its labels.
        """
        if not self.has_anti_affinity:
            return NOT_EXCLUDED
        own, home = dict(labels), self.labels_of(namespace)
        found = [self._anti_affinity.exclusion(namespace, home, own)]
        if self._assumed.excluding:
            found.append(find_exclusion_by_pending(namespace, own, self._assumed.pending_pods, self.labels_of))
        return combine_exclusions(found)

    def find_tied_nodes(
        self, ties: PodTies, excluding: tuple[tuple[str, int], ...], selections: tuple[int, ...], tolerated: int
    ) -> tuple[TiedNodes | None, ...]:
        """Return the nodes to which its ties to other pods allow a new pod, for each selection; None if not known.

        Args:
            excluding: By topology key, how many pods without a node exclude it: see `exclusion_by_pods`.
            selections: Masks of the nodes that its node selector and required node affinity select, or will select.
            tolerated: Mask of the nodes whose taints it tolerates.
        """
        takers = Takers(self._assumed.pending_pods, self.unseen_pods, excluding)
        pods = ClusterPods(self._pod_groups, self._anti_affinity, self.labels_of)
        return find_tied_nodes(ties, pods, self.fleet, selections, tolerated, takers)

    def allows_new_node(self, ties: PodTies) -> bool:
        """Return whether a pod's ties and those of other pods keep it off no new node."""
        pods = ClusterPods(self._pod_groups, self._anti_affinity, self.labels_of)
        return allows_new_node(ties, pods, self._assumed.pending_pods)

    def nodes_with_ports_in_use(self, ports: tuple[HostPort, ...]) -> int:
        """Return the mask of the nodes on which a host port that conflicts with one of these is in use.

        Pods without a node may get any, so their ports count as in use on all.
        """
        return self._ports.nodes_in_use(ports) if self._ports else 0

    def has_claim(self, namespace: str, name: str) -> bool:
        """Return whether a volume claim exists."""
        return f"{namespace}/{name}" in self.storage.objects.claims

    def fit_volumes(self, namespace: str, uses: PodVolumes, siblings: int = 0) -> VolumeFit:
        """Return the nodes on which a new pod can use its claims, whatever other pods take first.

        With replicas, others may admit pods like it at the same time.

        Args:
            siblings: Pods of its template that start together with it.
        """
        if not uses:
            return ANY_VOLUMES
        return fit_volumes(namespace, uses, self.storage, self._assumed.claims, self.unseen_pods, siblings)

    def fit_volumes_on_new_nodes(self, fleet: Fleet, namespace: str, uses: PodVolumes, siblings: int = 0) -> VolumeFit:
        """Return the new nodes of node groups on which a new pod can use its claims, whatever other pods take first.

        Args:
            fleet: The new nodes.
            siblings: Pods of its template that start together with it.
        """
        storage = StorageView(fleet, self.storage.objects, self.storage.users)
        zoned = bool(zoned_nodes(self.fleet))
        claims = self._assumed.claims
        return fit_volumes_on_new_nodes(namespace, uses, storage, claims, self.unseen_pods, siblings, zoned=zoned)

    def with_reservation(self, pod: QuotaReservation) -> ClusterView:
        """Return the view with one more admitted pod that counts until it is observed; a known one counts once."""
        return self._with_usage(self._usage.with_reservations(self._usage.reserved.with_pod(pod)))

    def with_charged_weight(self, namespace: str, weight: GpuWeight, claims: Iterable[str] = ()) -> ClusterView:
        """Return the view for one evaluation, after pods of this weight were admitted to a namespace.

        Args:
            claims: Names of claims in the weight that other pods may use too.
        """
        reserved = self._usage.reserved.with_weight(namespace, weight, claims)
        return self._with_usage(self._usage.with_reservations(reserved))

    def without_reservations(self, uids: Collection[str]) -> ClusterView:
        """Return the view without the reservations of pods that have been observed."""
        return self._with_usage(self._usage.with_reservations(self._usage.reserved.without(uids)))

    def without_reservations_before(self, before: float) -> ClusterView:
        """Return the view without reservations up to a time: pods that have not appeared by then will not."""
        return self._with_usage(self._usage.with_reservations(self._usage.reserved.admitted_after(before)))

    def precompute_weights(self, other: ClusterView) -> None:
        """Compute the weight of every namespace now, if the other view was used for shared quotas."""
        self._usage.precompute_weights(other._usage)

    def with_pods(self, pods: PodSummaries) -> ClusterView:
        """Return the view with all pods of some namespaces replaced."""
        return self._with_usage(self._usage.with_pods(pods))

    def with_tie_counts(self, ties: Mapping[TieKey, Mapping[str, int]]) -> ClusterView:
        """Return the view with numbers of pods replaced: those of some groups on some nodes, and of some terms."""
        terms, ports, groups = _split_ties(ties)
        excluding = {term: excluding_pods(term, by_node, self.fleet) for term, by_node in terms.items()}
        return self._copy_with(
            _anti_affinity=self._anti_affinity.with_changes(excluding),
            _ports=self._ports.with_changes({port: nodes_by_name(on, self.fleet) for port, on in ports.items()}),
            _pod_groups=self._pod_groups.with_changes(groups, self.fleet),
        )

    def with_pod_bound(self, pod: Pod, node: str) -> ClusterView:
        """Return the view after a pod was bound to a node; free resources are left as they are."""
        pods = ClusterPods(self._pod_groups, self._anti_affinity, self.labels_of).with_pod_added(pod, node, self.fleet)
        namespace = pod.metadata.namespace or DEFAULT_NAMESPACE
        return self._copy_with(
            _pod_groups=pods.groups,
            _anti_affinity=pods.anti_affinity,
            _ports=self._ports.with_ports_held(held_ports(pod), 1 << self.fleet.by_name[node]),
            storage=bind_volumes(namespace, pod_volumes(pod), node, self.storage),
        )

    def with_storage(self, objects: StorageObjects, users: VolumeUsers, attached: Iterable[str] = ()) -> ClusterView:
        """Return the view with other objects about storage, and other pods that use claims.

        Args:
            attached: Names of the nodes on which the number of attached volumes may have changed.
        """
        return self._copy_with(storage=self.storage.with_objects(objects, attached).with_users(users))

    def with_replicas(self, replicas: int) -> ClusterView:
        """Return the view of a server that is one of several which admit pods to the cluster."""
        return self if replicas == self.replicas else self._copy_with(replicas=replicas)

    def with_api_minor(self, minor: int) -> ClusterView:
        """Return the view of a cluster whose API server has this minor version."""
        if minor == self.api_minor:
            return self
        views = BoundedCache[str, NamespaceView](MAX_NAMESPACE_VIEWS)
        return self._copy_with(api_minor=minor, _ranges={}, _views_of_namespaces=views)

    def with_pod_versions(self, versions: PodVersions) -> ClusterView:
        """Return the view with its pods' versions replaced."""
        return self if versions == self.pod_versions else self._copy_with(pod_versions=versions)

    def with_escrows(self, escrows: Mapping[QuotaPool, int]) -> ClusterView:
        """Return the view for one evaluation, of a replica that may admit so much by pool."""
        return self._copy_with(_escrows=escrows)

    def _with_usage(self, usage: QuotaUsage) -> ClusterView:
        return self if usage is self._usage else self._copy_with(_usage=usage)

    def with_pending_of(self, other: ClusterView) -> ClusterView:
        """Return this view with the assumed pods of another, on the same nodes by name, and its reservations."""
        before = other.before if other.fleet is self.fleet else other.fleet
        usage = self._usage.with_reservations(other._usage.reserved)
        view = self._copy_with(before=before, replicas=other.replicas, _usage=usage)
        names = [node.name for node in other.fleet.nodes]
        if other.fleet is self.fleet or names == [node.name for node in self.fleet.nodes]:
            return view._with_assumed_pods(other._assumed)
        index = self.fleet.by_name

        def translate(mask: int) -> int:
            return union_masks(1 << index[names[bit]] for bit in bit_positions(mask) if names[bit] in index)

        return view._with_assumed_pods(other._assumed.with_masks(translate))

    def with_staleness(self, *, stale: bool) -> ClusterView:
        """Return the view marked as stale or not."""
        return self if stale == self._stale else self._copy_with(_stale=stale)

    @property
    def is_stale(self) -> bool:
        """True if the view is too old to rely on, or cannot be rebuilt.

        `_mark_staleness` (`cache.informers`) decides that, and `publish` (`cache.live_view`) keeps the mark when it
        replaces a view. Effects of a stale view:

        * `choose_offer` (`engine.fit`) keeps the request of a pod, for the reason `KeepReason.STALE_VIEW`.
        * `_choose_devices` (`engine.claim_sizing`) keeps the request of a claim, for the same reason.
        * `shared_quota_violations` (`engine.quota.shared_quotas`) reports GPU-Q304: the quota cannot be checked.
        * `step` (`server.escrow_keeper`) does not renew what this replica may admit under shared quotas.
        * `_cluster_checks` (`server.handlers`) reports it in `/readyz?verbose`. The server stays ready.
        * `namespace_state` changes, so cached decisions are evaluated again.

        All other rules apply as usual. The scheduler extender does not check this.
        """
        return self._stale

    def with_objects(
        self,
        namespaces: Mapping[str, Namespace | None],
        limit_ranges: Mapping[str, Sequence[LimitRange]],
        quotas: Mapping[str, Sequence[ResourceQuota]],
        claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]] = NOTHING,
    ) -> ClusterView:
        """Return the view after namespaces, or objects in them, changed.

        Args:
            namespaces: By name; None for a deleted one. All other objects by namespace, all of each.
        """
        named = {name: _with_name_label(name, found) for name, found in namespaces.items() if found is not None}
        others = {name: found for name, found in self._namespaces.items() if name not in namespaces}
        ranges = {name: _sort_by_name(found) for name, found in limit_ranges.items()}
        templates = {name: claim_templates_by_name(found) for name, found in claim_templates.items()}
        usage = self._usage.with_changed_labels() if namespaces else self._usage
        return self._copy_with(
            _namespaces={**others, **named} if namespaces else self._namespaces,
            _limit_ranges={**self._limit_ranges, **ranges} if ranges else self._limit_ranges,
            _limited={**self._limited, **{name: _limited_resources(found) for name, found in ranges.items()}},
            _ranges={} if ranges else self._ranges,
            _quotas={**self._quotas, **{name: _sort_by_name(found) for name, found in quotas.items()}},
            _remaining={} if quotas else self._remaining,
            _templates={**self._templates, **templates},
            _views_of_namespaces=BoundedCache(MAX_NAMESPACE_VIEWS),
            _usage=usage.with_changed_quotas(),
        )._with_claims_counted()

    def with_classes(self, classes: DeviceClasses) -> ClusterView:
        """Return the view with other DeviceClasses."""
        views = BoundedCache[str, NamespaceView](MAX_NAMESPACE_VIEWS)
        return self._copy_with(classes=classes, claimable_names=extended_names(classes), _views_of_namespaces=views)

    def with_devices(self, devices: DeviceView, free: Mapping[int, FreeResources] | None = None) -> ClusterView:
        """Return the view with other devices and claims.

        Args:
            free: Free resources of the nodes with devices and without other GPUs, by index; None if they are the same.
        """
        if devices is self.devices and free is None:
            return self
        known = self.free_beside_devices if free is None else free
        return self._copy_with(devices=devices, free_beside_devices=known)._with_claims_counted()

    def _with_claims_counted(self) -> ClusterView:
        """Return the view whose usage has the current claims."""
        return self._with_usage(self._usage.with_claims(self.all_claims))

    @property
    def all_claims(self) -> ClusterClaims:
        """The claims, templates and devices of the cluster."""
        return NO_CLUSTER_CLAIMS if self.devices is NO_DEVICES else ClusterClaims(self.devices, self._templates)

    def cluster_claims(self, namespace: str) -> ClusterClaims:
        """Return the claims, templates and devices, as they decide about pods of a namespace that have claims."""
        devices = self.devices._replace(claims={namespace: self.devices.claims.get(namespace, {})}, allocated={})
        return ClusterClaims(devices, {namespace: self._templates.get(namespace, {})})

    def counts_claim(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether usage of quotas has a claim already. The reservation of one pod does not count."""
        return self._usage.counts_claim(namespace, name, but=uid)

    def namespace_claims(self, namespace: str) -> NamespaceClaims:
        """Return the ResourceClaims and claim templates of a namespace."""
        devices, templates = self.devices, self._templates.get(namespace, {})
        return NamespaceClaims(devices.claims.get(namespace, {}), templates)

    def with_pod_classes(self, classes: PodClasses) -> ClusterView:
        """Return the view with other RuntimeClasses and PriorityClasses."""
        return self._copy_with(pod_classes=classes)

    def with_queues(self, queues: KueueQueues) -> ClusterView:
        """Return the view with the queues of Kueue replaced."""
        return self if queues is self.queues else self._copy_with(queues=queues)

    def with_volcano_queues(self, queues: VolcanoQueues) -> ClusterView:
        """Return the view with the queues of Volcano replaced."""
        return self if queues is self.volcano_queues else self._copy_with(volcano_queues=queues)

    def with_group_sources(self, sources: GroupSources) -> ClusterView:
        """Return the view with what is written about node groups replaced."""
        return self if sources is self.group_sources else self._copy_with(group_sources=sources)

    def with_daemons(self, daemons: DaemonPods) -> ClusterView:
        """Return the view with the pods that new nodes run too replaced."""
        return self if daemons is self.daemons else self._copy_with(daemons=daemons)

    def view_new_nodes(self, *, stopped: bool = False) -> ClusterView:
        """Return the view of one new node of each node group that may grow, without pods but those of DaemonSets.

        Computed on first use.

        Args:
            stopped: True for the groups that may not grow, as if they could.
        """
        view = _view_of_new_nodes(self.fleet, self.group_sources, self.daemons, stopped)
        return view.with_schedulers(self.schedulers).with_peers(self.peers)

    def with_peers(self, peers: PeerSelectors) -> ClusterView:
        """Return the view with what selects the peers of pods replaced."""
        return self if peers is self.peers else self._copy_with(peers=peers)

    def find_peers(
        self, namespace: str, labels: tuple[tuple[str, str], ...], owner: OwnerReference | None
    ) -> PodLabelSelector | None:
        """Return what selects the peers of a pod by its labels and its controller; None if nothing does."""
        return self.peers.find(namespace, dict(labels), owner)

    def with_schedulers(self, schedulers: Schedulers) -> ClusterView:
        """Return the view with the rules of schedulers replaced."""
        return self if schedulers is self.schedulers else self._copy_with(schedulers=schedulers)

    def _copy_with(self, **parts: object) -> Self:
        view = super()._copy_with(**parts)
        view.has_anti_affinity = bool(view._anti_affinity.pods) or view._assumed.excluding > 0
        return view


@derived_value(max_entries=2 * KNOWN_SOURCES)
def _view_of_new_nodes(fleet: Fleet, sources: GroupSources, daemons: DaemonPods, stopped: bool) -> ClusterView:
    groups = (stopped_groups if stopped else growing_groups)(fleet, sources)
    new = Fleet([group.new_node for group in groups]) if stopped else new_nodes(fleet, sources)
    return ClusterView(new, free=free_on_new_nodes(groups, new, fleet, daemons))


NodeNumbers = Mapping[str, int]
"""Numbers of pods by the name of the node; "" for pods without one. A node with none may have 0."""


def _split_ties(
    ties: Mapping[TieKey, NodeNumbers],
) -> tuple[dict[RequiredTerm, NodeNumbers], dict[HostPort, NodeNumbers], dict[PodGroup, NodeNumbers]]:
    """Return the numbers of pods by term, by host port, and by group."""
    terms: dict[RequiredTerm, NodeNumbers] = {}
    ports: dict[HostPort, NodeNumbers] = {}
    groups: dict[PodGroup, NodeNumbers] = {}
    for key, by_node in ties.items():
        if isinstance(key, PodGroup):
            groups[key] = by_node
        else:
            present = {node: number for node, number in by_node.items() if number}
            if isinstance(key, RequiredTerm):
                terms[key] = present
            else:
                ports[key] = present
    return terms, ports, groups


def _with_name_label(name: str, namespace: Namespace) -> Namespace:
    """Return the namespace with the label that the API server gives each one."""
    metadata = namespace.metadata
    labels = {**metadata.labels, NAMESPACE_NAME: name}
    return Namespace(metadata=ObjectMeta(name=name, labels=labels, annotations=metadata.annotations))


def _limited_resources(ranges: tuple[LimitRange, ...]) -> frozenset[str]:
    return frozenset(
        name
        for limit_range in ranges
        for item in limit_range.spec.limits
        for side in (item.max, item.min, item.default, item.default_request, item.max_limit_request_ratio)
        for name in side
    )


def _sort_by_name(found: Iterable[Named]) -> tuple[Named, ...]:
    return tuple(sorted(found, key=lambda item: item.metadata.name))
