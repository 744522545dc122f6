"""Affinity terms between pods, and the nodes from which the anti-affinity of the cluster's pods excludes a new pod.

Source: the InterPodAffinity plugin of kube-scheduler. A pod with required anti-affinity excludes every pod that a term
selects from all nodes with the same value of the term's topology key as its own node.

Terms are text of users, so they are bounded: the pods of one workload share their terms, and a pod whose terms are too
large, or one too many in the cluster, counts as if it excluded every pod from every node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from webhook.model.api_struct import ApiStruct
from webhook.model.fleet import Fleet
from webhook.model.node_masks import union_masks
from webhook.model.pods import DEFAULT_NAMESPACE, NodeSelectorRequirement, Pod
from webhook.model.workloads import INDEX_KEYS

MAX_TERM_BYTES = 4096
"""Bytes of a pod's required anti-affinity terms. Usual ones have 100 to 300."""

MAX_TERMS = 8192
"""Different terms in a cluster."""

MAX_TERMS_CHECKED = 64
"""Terms that select one label before all of them count as selecting each pod with it."""

LabelRequirements = tuple[NodeSelectorRequirement, ...]


class PodLabelSelector(ApiStruct, frozen=True):
    """Labels that a pod or a namespace must have."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()

    def requirements(self) -> LabelRequirements:
        """Return all of it as expressions."""
        equal = [NodeSelectorRequirement(key, "In", (value,)) for key, value in sorted(self.match_labels.items())]
        return (*equal, *self.match_expressions)


class PodAffinityTerm(ApiStruct, frozen=True):
    """A term of affinity or anti-affinity between pods. A term without a selector selects no pod."""

    topology_key: str = ""
    label_selector: PodLabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: PodLabelSelector | None = None


def parse_affinity_term(data: Any) -> PodAffinityTerm:
    """Parse a term; one that cannot be parsed selects no pod."""
    try:
        return msgspec.convert(data, PodAffinityTerm)
    except msgspec.ValidationError:
        return PodAffinityTerm()


class AntiAffinityTerm(msgspec.Struct, frozen=True, gc=False):
    """A required anti-affinity term: pods that it selects cannot run where a pod with it runs.

    Attributes:
        topology_key: Node label whose value is that of the pod's node; "" for all nodes.
        labels: What the labels of a selected pod must satisfy.
        namespaces: Names of the namespaces of selected pods.
        namespace_labels: Namespaces with such labels are meant too; None for none, () for all.
    """

    topology_key: str
    labels: LabelRequirements
    namespaces: tuple[str, ...] = ()
    namespace_labels: LabelRequirements | None = None

    def selects(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> bool:
        """Return whether it selects a pod with these labels in a namespace."""
        return all(_is_satisfied(one, labels) for one in self.labels) and (
            namespace in self.namespaces
            or (
                self.namespace_labels is not None
                and all(_is_satisfied(one, namespace_labels) for one in self.namespace_labels)
            )
        )


EXCLUDES_ALL = AntiAffinityTerm("", (), (), ())
"""Excludes every pod from every node."""


def _is_satisfied(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Test labels. The index of a pod satisfies everything: decisions about the pods of a workload are shared."""
    key, operator = requirement.key, requirement.operator
    if key in INDEX_KEYS:
        return True
    if operator == "In":
        return labels.get(key) in requirement.values
    if operator == "NotIn":
        return labels.get(key) not in requirement.values
    return (key in labels) is (operator == "Exists")


def anti_affinity_terms(pod: Pod) -> tuple[AntiAffinityTerm, ...]:
    """Return the required anti-affinity of a pod, each term once."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    if affinity is None or not affinity.required:
        return ()
    if len(msgspec.json.encode(affinity.required)) > MAX_TERM_BYTES:
        return (EXCLUDES_ALL,)
    namespace = pod.metadata.namespace or DEFAULT_NAMESPACE
    found = (_anti_affinity_term(parse_affinity_term(data), namespace) for data in affinity.required)
    return tuple(dict.fromkeys(term for term in found if term is not None))


def _anti_affinity_term(term: PodAffinityTerm, namespace: str) -> AntiAffinityTerm | None:
    selector, others = term.label_selector, term.namespace_selector
    if selector is None or not term.topology_key:
        return None
    names = term.namespaces if term.namespaces or others is not None else (namespace,)
    return AntiAffinityTerm(
        term.topology_key, selector.requirements(), names, None if others is None else others.requirements()
    )


def excluded_nodes(term: AntiAffinityTerm, on: Collection[str], fleet: Fleet) -> int:
    """Return the mask of the nodes from which pods on some nodes exclude the pods that a term selects.

    Args:
        on: Names of the nodes; "" for a pod that has no node yet and may get any.
    """
    if not term.topology_key or "" in on:
        return fleet.all_nodes
    return union_masks(fleet.nodes_in_domain(term.topology_key, node) for node in on)


class AntiAffinityIndex:
    """The required anti-affinity of all pods of a cluster: terms, and the nodes that they exclude. Immutable."""

    __slots__ = ("_by_label", "_nodes", "_others", "_unions")

    def __init__(self, nodes: Mapping[AntiAffinityTerm, int]) -> None:
        self._nodes = {term: mask for term, mask in nodes.items() if mask}
        self._by_label: dict[tuple[str, str], list[AntiAffinityTerm]] = {}
        self._others: list[AntiAffinityTerm] = []
        self._unions: dict[tuple[str, str], int] = {}
        for term in self._nodes:
            equal = next((one for one in term.labels if one.operator == "In" and one.key not in INDEX_KEYS), None)
            if equal is None:
                self._others.append(term)
            else:
                for value in equal.values:
                    self._by_label.setdefault((equal.key, value), []).append(term)

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def with_changes(self, nodes: Mapping[AntiAffinityTerm, int]) -> AntiAffinityIndex:
        """Return the index with the excluded nodes of some terms replaced."""
        return AntiAffinityIndex({**self._nodes, **nodes}) if nodes else self

    def excluded_nodes(self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]) -> int:
        """Return the mask of the nodes from which a new pod with these labels is excluded."""
        excluded = self._excluded_by(("", ""), self._others, namespace, namespace_labels, labels)
        for pair in labels.items():
            terms = self._by_label.get(pair)
            if terms is not None:
                excluded |= self._excluded_by(pair, terms, namespace, namespace_labels, labels)
        return excluded

    def _excluded_by(
        self,
        pair: tuple[str, str],
        terms: Collection[AntiAffinityTerm],
        namespace: str,
        namespace_labels: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> int:
        if len(terms) <= MAX_TERMS_CHECKED:
            selecting = (term for term in terms if term.selects(namespace, namespace_labels, labels))
            return union_masks(self._nodes[term] for term in selecting)
        if pair not in self._unions:
            self._unions[pair] = union_masks(self._nodes[term] for term in terms)
        return self._unions[pair]


def index_anti_affinity(nodes_by_term: Mapping[AntiAffinityTerm, Iterable[str]], fleet: Fleet) -> AntiAffinityIndex:
    """Index the required anti-affinity of the pods of a cluster, by term with the names of their nodes."""
    masks = {term: excluded_nodes(term, tuple(on), fleet) for term, on in nodes_by_term.items()}
    return AntiAffinityIndex(masks)
