"""Required anti-affinity of a cluster's pods: the nodes from which it excludes a new pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_node, make_pod
from webhook.model.filters.inter_pod_affinity import (
    EXCLUDES_ALL,
    MAX_TERM_BYTES,
    MAX_TERMS_CHECKED,
    AntiAffinityIndex,
    ExcludingPods,
    ExclusionByOthers,
    RequiredTerm,
    identity_of,
    index_anti_affinity,
    may_select,
    required_anti_affinity,
)
from webhook.model.fleet import Fleet
from webhook.model.objects import Node
from webhook.model.pod_groups import PodSelector
from webhook.model.pods import NodeSelectorRequirement, parse_pod

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
FLEET = Fleet(
    [
        msgspec.convert(make_node(name, {ZONE: zone} if zone else {}), Node)
        for name, zone in (("a", "east"), ("b", "east"), ("c", "west"), ("d", ""))
    ]
)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
RESEARCH = {"tier": "research", "kubernetes.io/metadata.name": "team"}


def quiet(*terms: Json, namespace: str = "team") -> tuple[RequiredTerm, ...]:
    """Return the required anti-affinity of a pod."""
    data = make_pod().namespace(namespace).spec(affinity={"podAntiAffinity": {REQUIRED: list(terms)}}).build()
    pod = parse_pod(data)
    return required_anti_affinity(pod, identity_of(pod))


def term(key: str = HOST, **fields: Any) -> Json:
    """Return a term that selects noisy pods."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"noisy": "yes"}}} | fields


def expression(key: str, operator: str, *values: str) -> Json:
    """Return the selector of a term."""
    return {"labelSelector": {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}}


class Case(NamedTuple):
    term: Json
    excluded: str
    on: str = "a"
    labels: Mapping[str, str] = {"noisy": "yes"}
    namespace: str = "team"


CASES = {
    "the node of the running pod": Case(term(), "a"),
    "every node of its zone": Case(term(ZONE), "ab"),
    "no node, where its node has no zone": Case(term(ZONE), "", on="d"),
    "no node that is known, where it has none yet": Case(term(), "", on=""),
    "no node, where it is on a node that is gone": Case(term(), "", on="z"),
    "no pod with another value": Case(term(), "", labels={"noisy": "no"}),
    "no pod without the label": Case(term(), "", labels={}),
    "each pod with an empty selector": Case(term(labelSelector={}), "a", labels={}),
    "no pod without a selector": Case({"topologyKey": HOST}, ""),
    "In": Case(term(**expression("noisy", "In", "no", "yes")), "a"),
    "not In": Case(term(**expression("noisy", "In", "no", "maybe")), ""),
    "NotIn": Case(term(**expression("noisy", "NotIn", "no")), "a"),
    "NotIn without the label": Case(term(**expression("noisy", "NotIn", "no")), "a", labels={}),
    "not NotIn": Case(term(**expression("noisy", "NotIn", "yes")), ""),
    "Exists": Case(term(**expression("noisy", "Exists")), "a"),
    "not Exists": Case(term(**expression("loud", "Exists")), ""),
    "DoesNotExist": Case(term(**expression("loud", "DoesNotExist")), "a"),
    "not DoesNotExist": Case(term(**expression("noisy", "DoesNotExist")), ""),
    "the index of a pod, which decisions leave out": Case(
        term(**expression("apps.kubernetes.io/pod-index", "In", "3")), "a", labels={}
    ),
    "not another namespace": Case(term(), "", namespace="other"),
    "a namespace by name": Case(term(namespaces=["other"]), "a", namespace="other"),
    "only namespaces by name": Case(term(namespaces=["other"]), ""),
    "a namespace by label": Case(term(namespaceSelector={"matchLabels": {"tier": "research"}}), "a"),
    "not a namespace with other labels": Case(term(namespaceSelector={"matchLabels": {"tier": "x"}}), ""),
    "all namespaces": Case(term(namespaceSelector={}), "a", namespace="other"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_term_excludes(case: Case) -> None:
    index = index_anti_affinity({each: {case.on: 1} for each in quiet(case.term)}, FLEET)
    namespace_labels = RESEARCH if case.namespace == "team" else {}
    found = index.exclusion(case.namespace, namespace_labels, case.labels)
    assert names(found.nodes) == case.excluded
    assert found.waiting == (((HOST, 1),) if not case.on else ())


def names(mask: int) -> str:
    return "".join(node.name for i, node in enumerate(FLEET.nodes) if mask >> i & 1)


def test_a_pod_without_required_anti_affinity_excludes_nothing() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term()}]}
    for affinity in ({}, {"podAntiAffinity": preferred}, {"podAffinity": {REQUIRED: [term()]}}):
        pod = parse_pod(make_pod().spec(affinity=affinity).build())
        assert required_anti_affinity(pod, identity_of(pod)) == ()


def test_terms_that_are_too_large_exclude_everything() -> None:
    large = term(**expression("noisy", "In", *(f"value-{i}" for i in range(MAX_TERM_BYTES // 8))))
    assert quiet(large) == (EXCLUDES_ALL,)
    assert index_anti_affinity({EXCLUDES_ALL: {"d": 1}}, FLEET).exclusion("other", {}, {}).nodes == FLEET.all_nodes
    assert index_anti_affinity({EXCLUDES_ALL: {"": 1}}, FLEET).exclusion("other", {}, {}).nodes == FLEET.all_nodes


KEYS, VALUES = st.sampled_from(["app", "noisy"]), st.sampled_from(["x", "y"])
EXPRESSIONS = st.builds(
    NodeSelectorRequirement,
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.lists(VALUES, min_size=1).map(tuple),
)
TERMS = st.builds(
    RequiredTerm,
    st.sampled_from([HOST, ZONE]),
    st.builds(
        PodSelector,
        st.lists(EXPRESSIONS, max_size=2).map(tuple),
        st.sampled_from([(), ("team",)]),
        st.sampled_from([None, ()]),
    ),
)
LABELS = st.dictionaries(KEYS, VALUES)
EXCLUDING = st.builds(ExcludingPods, st.integers(0, 15), st.integers(0, 3))
CLUSTERS = st.dictionaries(TERMS, EXCLUDING, max_size=MAX_TERMS_CHECKED)


@given(CLUSTERS, CLUSTERS, LABELS, st.sampled_from(["team", "other"]))
def test_the_index_finds_the_nodes_of_every_term_that_selects_the_pod(
    before: dict[RequiredTerm, ExcludingPods],
    changes: dict[RequiredTerm, ExcludingPods],
    labels: dict[str, str],
    namespace: str,
) -> None:
    index = AntiAffinityIndex(before).with_changes(changes)
    nodes, waiting = 0, Counter[str]()
    for each, excluding in (before | changes).items():
        if may_select(each, namespace, {}, labels):
            nodes |= excluding.nodes
            waiting[each.topology_key] += excluding.waiting
    assert index.exclusion(namespace, {}, labels) == ExclusionByOthers(nodes, tuple(sorted((+waiting).items())))
    assert bool(index.pods) is any(map(any, (before | changes).values()))
    assert all(index._terms.values()), "labels of ended pods take no memory"


@given(st.integers(MAX_TERMS_CHECKED + 1, 200), LABELS)
def test_many_terms_for_one_label_exclude_every_pod_with_it(count: int, labels: dict[str, str]) -> None:
    noisy = NodeSelectorRequirement("noisy", "In", ("x",))
    terms = [RequiredTerm(HOST, PodSelector((noisy,), (f"ns-{i}",))) for i in range(count)]
    index = AntiAffinityIndex({each: ExcludingPods(1 << i % 4) for i, each in enumerate(terms)})
    assert index.exclusion("other", {}, labels).nodes == (0b1111 if labels.get("noisy") == "x" else 0)
