"""PodTopologySpread: the nodes that constraints with `whenUnsatisfiable: DoNotSchedule` allow.

Source: the PodTopologySpread plugin of kube-scheduler. A constraint counts the pods of the new pod's namespace that its
selector selects, without those that are being deleted, by domain: nodes with the same value of its topology key. A node
is allowed if its domain would exceed the least count of a domain by at most `maxSkew`. Only nodes that have all keys
count, and only those that the pod's node affinity selects (`nodeAffinityPolicy`, honored by default) and whose taints
it tolerates (`nodeTaintsPolicy`, ignored by default). With fewer domains than `minDomains`, the least count is 0.

The pods that the default topology spread of a scheduler counts: those that Services and the controller select.

The selectors of all Services that select a pod are merged, and that of its ReplicaSet or StatefulSet is added. For a
ReplicaSet, only the label that distinguishes its pods is known.

Source: `DefaultSelector` of kube-scheduler, `pkg/scheduler/framework/plugins/helper/spread.go`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import itemgetter

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.filters.inter_pod_affinity import PodIdentity, with_label_keys
from webhook.model.fleet import Fleet
from webhook.model.node_masks import NodeCounts, exclude_nodes, union_masks
from webhook.model.pod_groups import (
    NO_POD_GROUPS,
    NOTHING_SELECTED,
    UNKNOWN_KEY,
    PodCounts,
    PodGroups,
    PodSelector,
    satisfies_all,
)
from webhook.model.pods import (
    DEFAULT_NAMESPACE,
    NodeSelectorRequirement,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodLabelSelector,
    TopologySpreadConstraint,
)

SPREAD_VIOLATED = "node(s) didn't match pod topology spread constraints"
SPREAD_KEY_MISSING = f"{SPREAD_VIOLATED} (missing required label)"


class SpreadConstraint(msgspec.Struct, frozen=True):
    """A constraint with `whenUnsatisfiable: DoNotSchedule`.

    Attributes:
        pods: The pods that it counts.
        counts_itself: Whether its selector selects the new pod.
    """

    topology_key: str
    max_skew: int
    pods: PodSelector
    counts_itself: bool
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False


def required_spread(pod: Pod, identity: PodIdentity) -> tuple[SpreadConstraint, ...]:
    """Return the constraints of a pod that keep it from nodes."""
    return tuple(
        [
            _parse_constraint(each, identity)
            for each in pod.spec.topology_spread_constraints
            if each.when_unsatisfiable == "DoNotSchedule"
        ]
    )


def _parse_constraint(written: TopologySpreadConstraint, identity: PodIdentity) -> SpreadConstraint:
    selector, (namespace, own) = written.label_selector, identity
    requirements = NOTHING_SELECTED
    if selector is not None:
        requirements = with_label_keys(selector.requirements(), written.match_label_keys, "In", own)
    return SpreadConstraint(
        written.topology_key,
        written.max_skew,
        PodSelector(requirements, (namespace,)),
        satisfies_all(requirements, own),
        written.min_domains,
        written.node_affinity_policy != "Ignore",
        written.node_taints_policy == "Honor",
    )


class SpreadNodes(msgspec.Struct, frozen=True):
    """The nodes that one constraint allows, by the pods that run.

    Attributes:
        allowed: Their mask.
        counts: Pods of the constraint on each node.
        nodes: Mask of the nodes that count.
        least: The least number of pods of a domain.
        domains: The number of domains that count.
    """

    constraint: SpreadConstraint
    allowed: int
    counts: NodeCounts
    nodes: int
    least: int
    domains: int

    def most_excluded(self, more: int, fleet: Fleet) -> int:
        """Return from how many allowed domains, at most, so many more pods of the constraint exclude the new one.

        The domain with the fewest pods is always allowed, unless there are fewer domains than `minDomains`.
        """
        excluded = 0
        for _, needed in sorted(self.pods_until_excluded(fleet), key=itemgetter(1)):
            more -= max(1, needed)
            excluded += more >= 0
        return excluded if self.domains < self.constraint.min_domains else min(excluded, self.domains - 1)

    def pods_until_excluded(self, fleet: Fleet) -> Iterator[tuple[int, int]]:
        """Yield each allowed domain that counts: its nodes, and how many more pods exclude the new one from it."""
        most = _most_in_domain(self.constraint, self.least)
        for domain in fleet.domains_of_label(self.constraint.topology_key).masks:
            if domain & self.nodes & self.allowed:
                yield domain, most + 1 - self.counts.total(domain & self.nodes)


def count_spread_pods(
    constraints: Iterable[SpreadConstraint], pods: PodGroups, nominated: PodGroups = NO_POD_GROUPS
) -> list[PodCounts] | None:
    """Return the pods that each constraint counts; None if they are not known.

    Args:
        nominated: Those of the pods that are nominated ones.
    """
    found: list[PodCounts] = []
    for each in constraints:
        counts = pods.count((each.pods,), _no_labels)
        if counts is not None and not each.pods.labels:
            # The plugin counts only nominated pods then, though the selector selects all.
            reserved = nominated.count((each.pods,), _no_labels)
            counts = reserved._replace(waiting=counts.waiting) if reserved is not None else None
        if counts is None:
            return None
        found.append(counts)
    return found


def find_spread_nodes(
    constraints: Collection[SpreadConstraint], counts: Iterable[PodCounts], fleet: Fleet, selected: int, tolerated: int
) -> list[SpreadNodes]:
    """Return the nodes that each constraint allows, by the pods that run.

    Args:
        counts: The pods of each constraint.
        selected: Mask of the nodes that the pod's node selector and required node affinity select.
        tolerated: Mask of the nodes whose taints it tolerates.
    """
    with_keys = fleet.all_nodes
    for each in constraints:
        with_keys &= fleet.nodes_with_label(each.topology_key)
    found: list[SpreadNodes] = []
    for each, pods in zip(constraints, counts, strict=True):
        nodes = with_keys & selected if each.honors_affinity else with_keys
        nodes = nodes & tolerated if each.honors_taints else nodes
        found.append(_nodes_of_constraint(each, pods, nodes, fleet))
    return found


def _no_labels(_namespace: str) -> Mapping[str, str]:
    return {}


def _nodes_of_constraint(constraint: SpreadConstraint, pods: PodCounts, nodes: int, fleet: Fleet) -> SpreadNodes:
    domains, counts = fleet.domains_of_label(constraint.topology_key), pods.running
    by_domain: list[tuple[int, int]] = []
    if domains.are_single_nodes:
        number, least = nodes.bit_count(), counts.least(nodes) if nodes else 0
    else:
        by_domain = [(mask, counts.total(inside)) for mask in domains.masks if (inside := mask & nodes)]
        number, least = len(by_domain), min([count for _, count in by_domain], default=0)
    least = least if number >= constraint.min_domains else 0
    most = _most_in_domain(constraint, least)
    if most < 0:
        allowed = 0
    elif domains.are_single_nodes:
        allowed = counts.nodes_with_at_most(most, nodes) | exclude_nodes(domains.nodes, nodes)
    else:
        allowed = exclude_nodes(domains.nodes, union_masks([mask for mask, count in by_domain if count > most]))
    return SpreadNodes(constraint, allowed, counts, nodes, least, number)


def _most_in_domain(constraint: SpreadConstraint, least: int) -> int:
    """Return how many pods of a constraint a domain may have when the new pod comes."""
    return constraint.max_skew + least - constraint.counts_itself


def find_skewed_nodes(spread: Iterable[SpreadNodes], fleet: Fleet) -> tuple[int, int]:
    """Return the masks of the nodes that lack the key of a constraint, and of others that a constraint does not allow.

    The plugin states the first reason that it finds.
    """
    without_key = skewed = 0
    for each in spread:
        lacking = fleet.all_nodes & ~fleet.nodes_with_label(each.constraint.topology_key)
        without_key |= lacking & ~skewed
        skewed |= fleet.all_nodes & ~lacking & ~each.allowed & ~without_key
    return without_key, skewed


TEMPLATE_HASH = "pod-template-hash"
SELECTING_CONTROLLERS = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Kinds of controllers by whose selectors default constraints count pods."""

UNKNOWN_SELECTOR = PodLabelSelector(match_expressions=(NodeSelectorRequirement(UNKNOWN_KEY, "Exists"),))
"""Stands for a selector that is not known."""


class ServiceSpec(ApiStruct, frozen=True):
    """The pods of a Service; none without a selector."""

    selector: dict[str, str] = {}


class Service(ApiStruct, frozen=True):
    """A Service."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class StatefulSetSpec(ApiStruct, frozen=True):
    """The pods of a StatefulSet."""

    selector: PodLabelSelector = PodLabelSelector()


class StatefulSet(ApiStruct, frozen=True):
    """A StatefulSet."""

    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()


class PeerSelectors:
    """The selectors of a cluster. Immutable.

    Attributes:
        are_known: False if Services or StatefulSets are not known.
    """

    __slots__ = ("_services", "_stateful_sets", "are_known")

    def __init__(
        self, services: Iterable[Service] = (), stateful_sets: Iterable[StatefulSet] = (), *, are_known: bool = True
    ) -> None:
        """Index the selectors by namespace."""
        self.are_known = are_known
        self._services: dict[str, list[dict[str, str]]] = {}
        for each in services:
            if each.spec.selector:
                self._services.setdefault(each.metadata.namespace or DEFAULT_NAMESPACE, []).append(each.spec.selector)
        self._stateful_sets = {
            (each.metadata.namespace or DEFAULT_NAMESPACE, each.metadata.name): each.spec.selector
            for each in stateful_sets
        }

    def find(self, namespace: str, labels: Mapping[str, str], owner: OwnerReference | None) -> PodLabelSelector | None:
        """Return what selects the peers of a pod; None if nothing does, so that default constraints do not apply.

        Args:
            labels: Its labels as they are stored.
            owner: Its controller.
        """
        kind, merged = owner.kind if owner is not None else "", dict[str, str]()
        for selector in self._services.get(namespace, ()):
            if selector.items() <= labels.items():
                merged |= selector
        if kind == "ReplicaSet" and TEMPLATE_HASH in labels:
            return PodLabelSelector(merged | {TEMPLATE_HASH: labels[TEMPLATE_HASH]})
        if not self.are_known:
            return UNKNOWN_SELECTOR if labels or kind in SELECTING_CONTROLLERS else None
        if kind not in SELECTING_CONTROLLERS or owner is None:
            return PodLabelSelector(merged) if merged else None
        own = self._stateful_sets.get((namespace, owner.name)) if kind == "StatefulSet" else None
        return (
            PodLabelSelector(merged | own.match_labels, own.match_expressions) if own is not None else UNKNOWN_SELECTOR
        )

    def find_of_pod(self, pod: Pod) -> PodLabelSelector | None:
        """Return what selects the peers of a pod with the labels and the namespace that it has."""
        return self.find(pod.metadata.namespace or DEFAULT_NAMESPACE, pod.metadata.labels, controller_of(pod))


def controller_of(pod: Pod) -> OwnerReference | None:
    """Return the controller of a pod; None without one."""
    return next((each for each in pod.metadata.owner_references if each.controller), None)


NO_PEERS = PeerSelectors(are_known=False)
