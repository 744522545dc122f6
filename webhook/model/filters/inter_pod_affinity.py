"""InterPodAffinity: the nodes that required affinity and anti-affinity allow, of a new pod and of the cluster's pods.

Source: the InterPodAffinity plugin of kube-scheduler, and the API server for `matchLabelKeys`.

* Affinity: each term needs a pod that all terms select, in the same domain: on nodes with the same value of the term's
  topology key. If there is none in the cluster and the pod selects itself, any node with the keys will do.
* Anti-affinity excludes the domains of pods that a term selects. It works both ways: a pod of the cluster excludes each
  new pod that one of its terms selects.

Terms are text of users, so they are bounded: the pods of one workload share their terms, and a pod whose terms are too
large, or one too many in the cluster, counts as if it excluded every pod from every node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.model.pod_groups import (
    EVERY_POD,
    NOTHING_SELECTED,
    LabelRequirements,
    PodGroups,
    PodSelector,
    satisfies,
    satisfies_all,
)
from webhook.model.pods import DEFAULT_NAMESPACE, NodeSelectorRequirement, Pod, PodLabelSelector
from webhook.model.workloads import INDEX_KEYS

AFFINITY_UNMATCHED = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_VIOLATED = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY_VIOLATED = "node(s) didn't satisfy existing pods anti-affinity rules"

MAX_TERM_BYTES = 4096
"""Bytes of a pod's required anti-affinity terms. Usual ones have 100 to 300."""

MAX_TERMS = 8192
"""Different terms in a cluster."""

MAX_TERMS_CHECKED = 64
"""Terms that select one label before all of them count as selecting each pod with it."""


class PodAffinityTerm(ApiStruct, frozen=True):
    """A term of affinity or anti-affinity between pods. A term without a selector selects no pod."""

    topology_key: str = ""
    label_selector: PodLabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: PodLabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    mismatch_label_keys: tuple[str, ...] = ()


def parse_affinity_term(data: Any) -> PodAffinityTerm:
    """Parse a term; one that cannot be parsed selects no pod."""
    try:
        return msgspec.convert(data, PodAffinityTerm)
    except msgspec.ValidationError:
        return PodAffinityTerm()


class RequiredTerm(NamedTuple):
    """A required term of affinity or anti-affinity.

    Attributes:
        topology_key: Node label whose value makes a domain; "" for all nodes.
        pods: The pods that it selects.
    """

    topology_key: str
    pods: PodSelector


EXCLUDES_ALL = RequiredTerm("", EVERY_POD)
"""Excludes every pod from every node."""


class PodIdentity(NamedTuple):
    """The namespace and labels of a new pod, as they will be stored: selectors see nothing else."""

    namespace: str
    labels: Mapping[str, str]


def identity_of(pod: Pod) -> PodIdentity:
    """Return what selectors see of a pod. Files leave "default" out."""
    return PodIdentity(pod.metadata.namespace or DEFAULT_NAMESPACE, pod.metadata.labels)


def required_affinity(pod: Pod, identity: PodIdentity) -> tuple[RequiredTerm, ...]:
    """Return the required affinity of a pod, each term once."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    return _parse_terms(affinity.required, identity) if affinity is not None and affinity.required else ()


def required_anti_affinity(pod: Pod, identity: PodIdentity) -> tuple[RequiredTerm, ...]:
    """Return the required anti-affinity of a pod, each term once. A term without a selector excludes no pod."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    terms = _parse_terms(affinity.required, identity) if affinity is not None and affinity.required else ()
    return tuple([term for term in terms if term.pods.labels != NOTHING_SELECTED])


def _parse_terms(written: tuple[Any, ...], identity: PodIdentity) -> tuple[RequiredTerm, ...]:
    if len(msgspec.json.encode(written)) > MAX_TERM_BYTES:
        return (EXCLUDES_ALL,)
    return tuple(dict.fromkeys([_required_term(parse_affinity_term(data), identity) for data in written]))


def _required_term(term: PodAffinityTerm, identity: PodIdentity) -> RequiredTerm:
    """Return a term as the scheduler reads it."""
    selector, others, own = term.label_selector, term.namespace_selector, identity.labels
    if selector is None or not term.topology_key:
        return RequiredTerm(term.topology_key, PodSelector(NOTHING_SELECTED))
    labels = with_label_keys(selector.requirements(), term.match_label_keys, "In", own)
    labels = with_label_keys(labels, term.mismatch_label_keys, "NotIn", own)
    names = term.namespaces if term.namespaces or others is not None else (identity.namespace,)
    return RequiredTerm(
        term.topology_key, PodSelector(labels, names, None if others is None else others.requirements())
    )


def merge_namespaces(term: RequiredTerm) -> RequiredTerm:
    """Return a term of a new pod as the scheduler evaluates it.

    It lists the namespaces that the selector selects, and still applies the selector to pods as if their namespaces had
    no labels: a selector that these satisfy, such as one with DoesNotExist, selects every namespace. So in 1.36;
    1.37.2 applies the list alone.
    """
    selector = term.pods.namespace_labels
    if not selector or not satisfies_all(selector, {}):
        return term
    return term._replace(pods=term.pods._replace(namespace_labels=()))


def with_label_keys(
    written: LabelRequirements, keys: Collection[str], operator: str, own: Mapping[str, str]
) -> LabelRequirements:
    """Return a selector with what `matchLabelKeys` ("In") or `mismatchLabelKeys` ("NotIn") add for a pod's labels.

    The API server adds it to the selector of a pod that it stores, and rejects a pod that has it already.
    """
    if not keys:
        return written
    added = {one.key for one in written}
    return (
        *written,
        *(NodeSelectorRequirement(key, operator, (own[key],)) for key in keys if key in own and key not in added),
    )


class AffinityNodes(msgspec.Struct, frozen=True):
    """The nodes that a pod's own required affinity and anti-affinity allow.

    Attributes:
        matching: Nodes that its affinity allows.
        excluded: Nodes from which its anti-affinity excludes it.
        is_first: True if no running pod satisfies its affinity, and the pod itself does.
    """

    matching: int
    excluded: int = 0
    is_first: bool = False


def find_affinity_nodes(
    affinity: Collection[RequiredTerm],
    anti_affinity: Iterable[RequiredTerm],
    pods: PodGroups,
    fleet: Fleet,
    labels_of: Callable[[str], Mapping[str, str]],
    selects_itself: Callable[[RequiredTerm], bool],
) -> AffinityNodes | None:
    """Return the nodes that a pod's terms allow, by the pods that run; None if that is not known.

    Args:
        labels_of: Returns the labels of a namespace.
        selects_itself: Tests whether a term selects the new pod.
    """
    excluded = 0
    for term in anti_affinity:
        found = pods.count((term.pods,), labels_of)
        if found is None or not term.topology_key:
            return None
        excluded |= fleet.nodes_in_domains(term.topology_key, found.occupied_nodes())
    if not affinity:
        return AffinityNodes(fleet.all_nodes, excluded)
    found = pods.count([term.pods for term in affinity], labels_of)
    if found is None or EXCLUDES_ALL in affinity:
        return None
    keys, occupied = {term.topology_key for term in affinity}, found.occupied_nodes()
    matching = with_keys = fleet.all_nodes
    for key in keys:
        matching &= fleet.nodes_in_domains(key, occupied)
    is_met = matching or any(occupied & fleet.nodes_with_label(key) for key in keys)
    if is_met or not all(map(selects_itself, affinity)):
        return AffinityNodes(matching, excluded)
    for key in keys:
        with_keys &= fleet.nodes_with_label(key)
    return AffinityNodes(with_keys, excluded, is_first=True)


def _may_satisfy(requirements: LabelRequirements, labels: Mapping[str, str]) -> bool:
    """Test labels. The index of a pod satisfies everything: decisions about the pods of a workload are shared."""
    return all(one.key in INDEX_KEYS or satisfies(one, labels) for one in requirements)


def may_select(
    term: RequiredTerm, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]
) -> bool:
    """Return whether a term selects a pod of a workload, whatever its index."""
    return _may_satisfy(term.pods.labels, labels) and term.pods.selects_namespace(namespace, namespace_labels)


class ExcludingPods(NamedTuple):
    """Pods that exclude others by one term.

    Attributes:
        nodes: The nodes from which those on nodes exclude them.
        waiting: How many have no node yet, and may get any.
    """

    nodes: int = 0
    waiting: int = 0


class ExclusionByOthers(NamedTuple):
    """The nodes from which other pods exclude a new one.

    Attributes:
        nodes: Their mask.
        waiting: By topology key, how many pods without a node may exclude it from one more domain each.
    """

    nodes: int = 0
    waiting: tuple[tuple[str, int], ...] = ()


NOT_EXCLUDED = ExclusionByOthers()


def excluding_pods(term: RequiredTerm, by_node: Mapping[str, int], fleet: Fleet) -> ExcludingPods:
    """Return what pods with a term exclude, from their numbers by the name of the node; "" for those without one."""
    if not term.topology_key:
        return ExcludingPods(fleet.all_nodes if by_node else 0)
    on = union_masks(1 << fleet.by_name[node] for node in by_node if node in fleet.by_name)
    return ExcludingPods(fleet.nodes_in_domains(term.topology_key, on), by_node.get("", 0))


NO_LABEL = ("", "")
"""Stands for the label of terms that require none."""


def _terms_by_label(terms: Iterable[RequiredTerm]) -> dict[tuple[str, str], list[RequiredTerm]]:
    """Return terms by a label of which each requires one, so that few have to be checked for a pod."""
    found: dict[tuple[str, str], list[RequiredTerm]] = {}
    for term in terms:
        equal = next((one for one in term.pods.labels if one.operator == "In" and one.key not in INDEX_KEYS), None)
        for label in {(equal.key, value) for value in equal.values} if equal is not None else {NO_LABEL}:
            found.setdefault(label, []).append(term)
    return found


class AntiAffinityIndex:
    """The required anti-affinity of all pods of a cluster. Immutable.

    Attributes:
        pods: What the pods with a term exclude, by term; empty without anti-affinity.
    """

    __slots__ = ("_terms", "_unions", "pods")

    def __init__(self, pods: Mapping[RequiredTerm, ExcludingPods]) -> None:
        self.pods = {term: excluding for term, excluding in pods.items() if any(excluding)}
        self._terms = _terms_by_label(self.pods)
        self._unions: dict[tuple[str, str], ExclusionByOthers] = {}

    def with_changes(self, pods: Mapping[RequiredTerm, ExcludingPods]) -> AntiAffinityIndex:
        """Return the index with the excluded nodes of some terms replaced."""
        if not pods:
            return self
        present = {term: excluding for term, excluding in pods.items() if any(excluding)}
        added = [term for term in present if term not in self.pods]
        removed = {term for term in pods if term in self.pods and term not in present}
        changed = AntiAffinityIndex({})
        changed.pods = {**self.pods, **present}
        for term in removed:
            del changed.pods[term]
        changed._terms = dict(self._terms)  # the lists are shared
        for label, terms in _terms_by_label(added).items():
            changed._terms[label] = [*changed._terms.get(label, ()), *terms]
        for label in _terms_by_label(removed):
            changed._terms[label] = [term for term in changed._terms[label] if term not in removed]
            if not changed._terms[label]:
                del changed._terms[label]
        return changed

    def with_terms_added(self, terms: Iterable[RequiredTerm], node: str, fleet: Fleet) -> AntiAffinityIndex:
        """Return the index after a pod with these terms was bound to a node."""
        more = {term: excluding_pods(term, {node: 1}, fleet) for term in terms}
        before = {term: self.pods.get(term, ExcludingPods()) for term in more}
        return self.with_changes(
            {term: ExcludingPods(before[term].nodes | each.nodes, before[term].waiting) for term, each in more.items()}
        )

    def exclusion(
        self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]
    ) -> ExclusionByOthers:
        """Return the nodes from which a new pod with these labels is excluded."""
        found = []
        for pair in (NO_LABEL, *labels.items()):
            terms = self._terms.get(pair)
            if terms is not None:
                found.append(self._exclusion_by(pair, terms, namespace, namespace_labels, labels))
        return combine_exclusions(found)

    def terms_selecting(
        self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]
    ) -> list[RequiredTerm] | None:
        """Return the terms that select a new pod with these labels; None if they are too many to be checked."""
        found = [self._terms.get(pair, []) for pair in (NO_LABEL, *labels.items())]
        if any(len(terms) > MAX_TERMS_CHECKED for terms in found):
            return None
        return [term for terms in found for term in terms if may_select(term, namespace, namespace_labels, labels)]

    def _exclusion_by(
        self,
        pair: tuple[str, str],
        terms: Collection[RequiredTerm],
        namespace: str,
        namespace_labels: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> ExclusionByOthers:
        if len(terms) <= MAX_TERMS_CHECKED:
            return self._sum_exclusions(term for term in terms if may_select(term, namespace, namespace_labels, labels))
        if pair not in self._unions:
            self._unions[pair] = self._sum_exclusions(terms)
        return self._unions[pair]

    def _sum_exclusions(self, terms: Iterable[RequiredTerm]) -> ExclusionByOthers:
        nodes, waiting = 0, Counter[str]()
        for term in terms:
            excluding = self.pods[term]
            nodes |= excluding.nodes
            waiting[term.topology_key] += excluding.waiting
        return ExclusionByOthers(nodes, tuple(sorted((key, count) for key, count in waiting.items() if count)))


def combine_exclusions(found: Collection[ExclusionByOthers]) -> ExclusionByOthers:
    """Return all of several exclusions."""
    if not any(map(any, found)):
        return NOT_EXCLUDED
    waiting: Counter[str] = Counter()
    for each in found:
        waiting.update(dict(each.waiting))
    return ExclusionByOthers(union_masks(each.nodes for each in found), tuple(sorted(waiting.items())))


def index_anti_affinity(pods_by_term: Mapping[RequiredTerm, Mapping[str, int]], fleet: Fleet) -> AntiAffinityIndex:
    """Index the required anti-affinity of the pods of a cluster: by term, their numbers by the name of the node."""
    return AntiAffinityIndex({term: excluding_pods(term, by_node, fleet) for term, by_node in pods_by_term.items()})
