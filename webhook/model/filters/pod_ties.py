"""The nodes to which its ties to other pods allow a new pod: InterPodAffinity and PodTopologySpread together.

A pod that waits for a node, or was admitted a moment ago, may get one before the new pod does. Each such pod may
exclude the new one from one more domain, so these are counted against the domains that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from webhook.model.bounded_cache import BoundedCache
from webhook.model.filters.inter_pod_affinity import (
    AffinityNodes,
    AntiAffinityIndex,
    ExclusionByOthers,
    PodIdentity,
    RequiredTerm,
    find_affinity_nodes,
    identity_of,
    index_anti_affinity,
    may_select,
    merge_namespaces,
    required_affinity,
    required_anti_affinity,
)
from webhook.model.filters.node_ports import HostPort, held_ports
from webhook.model.filters.pod_topology_spread import (
    SpreadConstraint,
    SpreadNodes,
    count_spread_pods,
    find_spread_nodes,
    required_spread,
)
from webhook.model.fleet import Fleet
from webhook.model.node_masks import exclude_nodes
from webhook.model.pod_groups import (
    NO_POD_GROUPS,
    NO_PODS,
    UNKNOWN_LABELS,
    PodGroup,
    PodGroups,
    PodLabels,
    PodSelector,
    group_of_pod,
    is_unknown_selection,
    pod_labels,
)
from webhook.model.pods import NodeSelectorRequirement, Pod

MAX_DOMAINS = 32
"""Domains of a key from which pods without a node may exclude a pod, before that counts as not known."""

HOSTNAME = "kubernetes.io/hostname"
"""The topology key of single nodes."""

MAX_KNOWN_TIES = 256
"""Ties of pods that are kept as parsed."""

TieKey = RequiredTerm | HostPort | PodGroup
"""What pods are counted by on each node: a term or host port that excludes others, or the labels that terms select."""


class PodTies(msgspec.Struct, frozen=True):
    """The required affinity, anti-affinity and spread of a new pod, with the labels that selectors see.

    Attributes:
        depends_on_version: True if versions of the scheduler disagree about the pods that its affinity selects.
        selects_unknown: True if it is not known which pods one of its selectors selects.
    """

    namespace: str
    labels: tuple[tuple[str, str], ...]
    affinity: tuple[RequiredTerm, ...] = ()
    anti_affinity: tuple[RequiredTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    depends_on_version: bool = False
    selects_unknown: bool = False

    def __bool__(self) -> bool:
        return bool(self.affinity or self.anti_affinity or self.spread)

    def selections(self) -> tuple[PodSelector, ...]:
        """Return what selects pods in it."""
        return _selections(self.affinity, self.anti_affinity, self.spread)


_known_ties: BoundedCache[tuple[str, bytes, tuple[tuple[str, str], ...]], PodTies] = BoundedCache(MAX_KNOWN_TIES)


def ties_of(pod: Pod, identity: PodIdentity | None = None) -> PodTies:
    """Return what ties a pod to other pods; `identity` replaces its namespace and labels.

    Cached: the pods of one workload have the same.
    """
    own, spec = identity or identity_of(pod), pod.spec
    labels = tuple(own.labels.items())
    if spec.affinity is None and not spec.topology_spread_constraints:
        return PodTies(own.namespace, labels)
    key = own.namespace, msgspec.json.encode((spec.affinity, spec.topology_spread_constraints)), labels
    if (found := _known_ties.get(key)) is None:
        found = _known_ties.store(key, _parse_ties(pod, own, labels))
    return found


def _parse_ties(pod: Pod, own: PodIdentity, labels: tuple[tuple[str, str], ...]) -> PodTies:
    written, spread = required_affinity(pod, own), required_spread(pod, own)
    near = tuple([merge_namespaces(term) for term in written])
    apart = tuple([merge_namespaces(term) for term in required_anti_affinity(pod, own)])
    unknown = any(map(is_unknown_selection, _selections(near, apart, spread)))
    return PodTies(own.namespace, labels, near, apart, spread, near != written, unknown)


def _selections(
    affinity: Iterable[RequiredTerm], anti_affinity: Iterable[RequiredTerm], spread: Iterable[SpreadConstraint]
) -> tuple[PodSelector, ...]:
    return (*[each.pods for each in (*affinity, *anti_affinity)], *[each.pods for each in spread])


class PendingPod(NamedTuple):
    """A pod that was admitted a moment ago, as other pods see it.

    Attributes:
        labels: Its labels; `UNKNOWN_LABELS` for any.
        anti_affinity: Its required anti-affinity.
        ports: Its host ports.
    """

    namespace: str
    labels: PodLabels
    anti_affinity: tuple[RequiredTerm, ...] = ()
    ports: tuple[HostPort, ...] = ()


class ClusterPods(NamedTuple):
    """The pods of a cluster, as affinity and spread see them.

    Attributes:
        labels_of: Returns the labels of a namespace.
        nominated: Those of the groups that only count as nominated pods of one node.
    """

    groups: PodGroups
    anti_affinity: AntiAffinityIndex
    labels_of: Callable[[str], Mapping[str, str]]
    nominated: PodGroups = NO_POD_GROUPS

    def with_nominated(self, pods: Iterable[Pod], fleet: Fleet) -> ClusterPods:
        """Return the pods, including nominated ones, which count as running."""
        return self._replace(nominated=_group_by_node(pods, fleet))

    def with_pod_added(self, pod: Pod, node: str, fleet: Fleet, change: int = 1) -> ClusterPods:
        """Return the pods after one was bound to a node, or with a negative change, without its labels there."""
        group = group_of_pod(pod)
        before = self.groups.count_in_group(group).count_on(fleet.by_name[node]) if node in fleet.by_name else 0
        groups = self.groups.with_changes({group: {node: before + change}}, fleet)
        terms = required_anti_affinity(pod, identity_of(pod)) if change > 0 else ()
        return self._replace(groups=groups, anti_affinity=self.anti_affinity.with_terms_added(terms, node, fleet))

    def without_pods(self, removed: Collection[Pod], remaining: Iterable[Pod], fleet: Fleet) -> ClusterPods:
        """Return the pods without some of them."""
        pods = self
        for each in removed:
            pods = pods.with_pod_added(each, each.spec.node_name, fleet, -1)
        if any(required_anti_affinity(each, identity_of(each)) for each in removed):
            return pods._replace(anti_affinity=index_anti_affinity(count_by_term(remaining), fleet))
        return pods


def index_cluster_pods(
    pods: Collection[Pod], fleet: Fleet, labels_of: Callable[[str], Mapping[str, str]]
) -> ClusterPods:
    """Index the active pods of a snapshot."""
    return ClusterPods(_group_by_node(pods, fleet), index_anti_affinity(count_by_term(pods), fleet), labels_of)


def _group_by_node(pods: Iterable[Pod], fleet: Fleet) -> PodGroups:
    by_group: dict[PodGroup, Counter[str]] = {}
    for pod in pods:
        if pod.spec.node_name:
            by_group.setdefault(group_of_pod(pod), Counter())[pod.spec.node_name] += 1
    return NO_POD_GROUPS.with_changes(by_group, fleet)


def count_by_term(pods: Iterable[Pod]) -> dict[RequiredTerm, Counter[str]]:
    """Return the numbers of pods with each required anti-affinity term by the name of the node."""
    counts: dict[RequiredTerm, Counter[str]] = {}
    for pod in pods:
        for term in required_anti_affinity(pod, identity_of(pod)):
            counts.setdefault(term, Counter())[pod.spec.node_name] += 1
    return counts


class TiedNodes(msgspec.Struct, frozen=True):
    """The nodes to which its ties allow a pod.

    Attributes:
        matching: Mask of the nodes that its affinity allows.
        excluded: Mask of those from which its anti-affinity excludes it.
        allowed: Mask of those that all of its ties allow.
        is_first: True if it is the first of a group with affinity to itself: the others have to follow it.
        on_nodes: How many pods without a node may each exclude it from one node.
        domains: Masks of domains from which others of them may exclude it; () if none may.
        blocked: From how many of these, at most.
    """

    matching: int
    excluded: int
    allowed: int
    is_first: bool = False
    on_nodes: int = 0
    domains: tuple[int, ...] = ()
    blocked: int = 0


UNTIED = TiedNodes(-1, 0, -1)
"""The nodes of a pod without ties: all."""


class Takers(msgspec.Struct, frozen=True):
    """Pods that may get a node before a new pod does.

    Attributes:
        assumed: Numbers of pods that were admitted a moment ago.
        unseen: Pods of the same workload that others may admit at the same time.
        excluding: By topology key, how many pods without a node exclude the new one by their anti-affinity.
    """

    assumed: Mapping[PendingPod, int]
    unseen: int = 0
    excluding: tuple[tuple[str, int], ...] = ()


NO_TAKERS = Takers({})


def find_tied_nodes(
    ties: PodTies,
    pods: ClusterPods,
    fleet: Fleet,
    selections: tuple[int, ...],
    tolerated: int,
    takers: Takers = NO_TAKERS,
) -> tuple[TiedNodes | None, ...]:
    """Return the nodes to which its own ties allow a pod, for each of some selections; None where that is not known.

    Args:
        selections: Masks of the nodes that its node selector and required node affinity select, or will select.
        tolerated: Mask of the nodes whose taints it tolerates.
    """
    unknown = (None,) * len(selections)
    if ties.depends_on_version or ties.selects_unknown:
        return unknown
    nodes, counts = find_own_affinity(ties, pods, fleet), count_spread_pods(ties.spread, pods.groups)
    if nodes is None or counts is None:
        return unknown
    waiting = [each.waiting for each in counts]
    for i, each in enumerate(ties.spread):
        if each.pods.labels:
            waiting[i] += _count_takers(each.pods, pods, takers, each.counts_itself)
    by_key = dict(takers.excluding)
    for term in ties.anti_affinity:
        found, key = pods.groups.count((term.pods,), pods.labels_of) or NO_PODS, term.topology_key
        is_like = takers.unseen > 0 and _selects_itself(term, ties, pods)
        by_key[key] = by_key.get(key, 0) + found.waiting + _count_takers(term.pods, pods, takers, is_like)
    spread = [find_spread_nodes(ties.spread, counts, fleet, each, tolerated) for each in selections]
    return tuple([_with_takers(nodes, by_key, each, waiting, fleet) for each in spread])


def find_own_affinity(ties: PodTies, pods: ClusterPods, fleet: Fleet) -> AffinityNodes | None:
    """Return the nodes that its own affinity and anti-affinity allow a pod; None if that is not known."""
    return find_affinity_nodes(
        *(ties.affinity, ties.anti_affinity, pods.groups, fleet, pods.labels_of),
        lambda term: _selects_itself(term, ties, pods),
    )


def is_checked_for_affinity(pod: Pod, pods: ClusterPods) -> bool:
    """Return whether a pod has any terms of affinity between pods, or the anti-affinity of one that runs selects it."""
    affinity, (namespace, labels) = pod.spec.affinity, identity_of(pod)
    kinds = (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ()
    if any(each is not None and each.required for each in kinds):
        return True
    return bool(pods.anti_affinity.exclusion(namespace, pods.labels_of(namespace), labels).nodes)


DAEMON_LABEL = "pod-template-generation"
"""The label that the controller of DaemonSets gives each pod."""


def allows_new_node(ties: PodTies, pods: ClusterPods, pending: Iterable[PendingPod] = ()) -> bool:
    """Return whether ties keep a pod off no new node, on which only pods of DaemonSets run.

    So it is if anti-affinity and spread are all about single nodes, if they select no pod of a DaemonSet, and if only
    replicas exclude the pod: those with the same anti-affinity.

    Args:
        pending: Pods that were admitted a moment ago.
    """
    keys = {each.topology_key for each in ties.anti_affinity} | {each.topology_key for each in ties.spread}
    if ties.affinity or ties.depends_on_version or not keys <= {HOSTNAME}:
        return False
    if any(_may_select_daemons(selector, pods) for selector in ties.selections()):
        return False
    labels, home = dict(ties.labels), pods.labels_of(ties.namespace)
    excluding = pods.anti_affinity.terms_selecting(ties.namespace, home, labels)
    if excluding is None:
        return False
    assumed = (term for pod in pending for term in pod.anti_affinity if may_select(term, ties.namespace, home, labels))
    return {*excluding, *assumed} <= set(ties.anti_affinity)


def _may_select_daemons(selector: PodSelector, pods: ClusterPods) -> bool:
    of_daemons = selector._replace(labels=(*selector.labels, NodeSelectorRequirement(DAEMON_LABEL, "Exists")))
    found = pods.groups.count((of_daemons,), pods.labels_of)
    return found is None or bool(found.occupied_nodes() or found.waiting)


def _selects_itself(term: RequiredTerm, ties: PodTies, pods: ClusterPods) -> bool:
    return term.pods.selects(ties.namespace, pods.labels_of(ties.namespace), dict(ties.labels))


def self_excluding_keys(ties: PodTies, namespace_labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the topology keys by which pods with these ties exclude each other: one pod in each domain."""
    labels = dict(ties.labels)
    selecting = (each for each in ties.anti_affinity if each.pods.selects(ties.namespace, namespace_labels, labels))
    return tuple(dict.fromkeys(each.topology_key for each in selecting if not is_unknown_selection(each.pods)))


def count_pods_apart(keys: Iterable[str], fitting: int, count: Callable[[int], int], fleet: Fleet) -> int:
    """Return at most how many pods that exclude each other fit on some nodes.

    Args:
        keys: The topology keys by which they do; nodes without the label exclude nothing.
        fitting: Mask of the nodes on which one of them fits.
        count: Returns how many would fit on the nodes of a mask if they did not exclude each other.
    """
    most = count(fitting)
    for key in keys:
        domains = fleet.domains_of_label(key)
        apart = sum(1 for mask in domains.masks if mask & fitting)
        most = min(most, apart + count(fitting & ~domains.nodes))
    return most


def _count_takers(selector: PodSelector, pods: ClusterPods, takers: Takers, is_like: bool) -> int:
    """Return how many selected pods that are not stored yet may get a node; `is_like`: it selects the new pod too."""
    count = takers.unseen if is_like else 0
    for pod, number in takers.assumed.items():
        home = pods.labels_of(pod.namespace)
        if pod.labels == UNKNOWN_LABELS or selector.selects(pod.namespace, home, dict(pod.labels)):
            count += number
    return count


def _with_takers(
    nodes: AffinityNodes,
    by_key: Mapping[str, int],
    spread: Sequence[SpreadNodes],
    waiting: Iterable[int],
    fleet: Fleet,
) -> TiedNodes | None:
    """Return the nodes that ties allow, and from which pods without a node may exclude the pod; None if it may be all.

    Args:
        by_key: By topology key, how many pods without a node exclude it by anti-affinity.
        waiting: How many pods of each spread constraint have no node.
    """
    allowed = exclude_nodes(nodes.matching, nodes.excluded)
    for each in spread:
        allowed &= each.allowed
    on_nodes = 0
    blocked: dict[str, int] = {}
    for key, count in by_key.items():
        domains = fleet.domains_of_label(key)
        if not domains.are_single_nodes:
            blocked[key] = count
        elif domains.nodes:
            on_nodes += count
    for each, more in zip(spread, waiting, strict=True):
        key = each.constraint.topology_key
        if not more:
            continue
        if fleet.domains_of_label(key).are_single_nodes:
            on_nodes += more
        else:
            blocked[key] = blocked.get(key, 0) + each.most_excluded(more, fleet)
    found = TiedNodes(nodes.matching, nodes.excluded, allowed, nodes.is_first, on_nodes)
    keys = [key for key, count in blocked.items() if count]
    if not keys:
        return found
    if len(keys) > 1:
        return None
    masks = fleet.domains_of_label(keys[0]).masks
    return replace(found, domains=masks, blocked=blocked[keys[0]]) if len(masks) <= MAX_DOMAINS else None


def pending_pod(pod: Pod, namespace: str) -> PendingPod:
    """Return what other pods see of a pod that was just admitted to a namespace."""
    terms = required_anti_affinity(pod, PodIdentity(namespace, pod.metadata.labels))
    return PendingPod(namespace, pod_labels(pod), terms, held_ports(pod))


def find_exclusion_by_pending(
    namespace: str,
    labels: Mapping[str, str],
    pods: Mapping[PendingPod, int],
    labels_of: Callable[[str], Mapping[str, str]],
) -> ExclusionByOthers:
    """Return by topology key how many pods that were admitted a moment ago exclude a pod by their anti-affinity."""
    home, found = labels_of(namespace), Counter[str]()
    for pod, number in pods.items():
        for term in pod.anti_affinity:
            if may_select(term, namespace, home, labels):
                found[term.topology_key] += number
    everywhere = -1 if found.pop("", 0) else 0
    return ExclusionByOthers(everywhere, tuple(sorted(found.items())))


NO_CLUSTER_PODS = ClusterPods(NO_POD_GROUPS, AntiAffinityIndex({}), lambda _namespace: {})
