"""InterPodAffinity and PodTopologySpread by masks equal an evaluation pod by pod and node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, make_node, make_pod
from webhook.cache.stored_objects import StoredPod
from webhook.model.bounded_cache import clear_request_caches
from webhook.model.filters.inter_pod_affinity import (
    AFFINITY_UNMATCHED,
    ANTI_AFFINITY_VIOLATED,
    EXISTING_ANTI_AFFINITY_VIOLATED,
    PodIdentity,
)
from webhook.model.filters.pod_ties import find_tied_nodes, index_cluster_pods, ties_of
from webhook.model.filters.pod_topology_spread import SPREAD_KEY_MISSING, SPREAD_VIOLATED
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.objects import Node
from webhook.model.pods import Pod, parse_pod
from webhook.placement.nodes.filtering import pod_tie_reasons

HOST, ZONE, RACK = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "rack"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAMESPACES = {"red": {"team": "a"}, "blue": {"team": "b"}}
PLUGIN = {
    AFFINITY_UNMATCHED: "affinity",
    ANTI_AFFINITY_VIOLATED: "anti-affinity",
    EXISTING_ANTI_AFFINITY_VIOLATED: "existing",
    SPREAD_KEY_MISSING: "spread",
    SPREAD_VIOLATED: "spread",
}

KEYS, VALUES = st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y"])
LABELS = st.dictionaries(KEYS, VALUES)
EXPRESSION = st.one_of(
    st.fixed_dictionaries(
        {"key": KEYS, "operator": st.sampled_from(["In", "NotIn"]), "values": st.lists(VALUES, min_size=1, max_size=2)}
    ),
    st.fixed_dictionaries({"key": KEYS, "operator": st.sampled_from(["Exists", "DoesNotExist"])}),
)
SELECTOR = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(EXPRESSION, max_size=2)}
)
NOT_OF_A_TEAM = {"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}
TERM = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from([HOST, ZONE, RACK])},
    optional={
        "labelSelector": SELECTOR,
        "namespaces": st.lists(st.sampled_from(list(NAMESPACES)), max_size=2),
        "namespaceSelector": st.sampled_from([{}, {"matchLabels": {"team": "b"}}, NOT_OF_A_TEAM]),
        "matchLabelKeys": st.lists(KEYS, max_size=1),
        "mismatchLabelKeys": st.lists(KEYS, max_size=1),
    },
)
CONSTRAINT = st.fixed_dictionaries(
    {"topologyKey": st.sampled_from([HOST, ZONE, RACK]), "maxSkew": st.integers(1, 2)},
    optional={
        "labelSelector": SELECTOR,
        "minDomains": st.integers(1, 4),
        "matchLabelKeys": st.lists(KEYS, max_size=1),
        "nodeAffinityPolicy": st.sampled_from(["Honor", "Ignore"]),
        "nodeTaintsPolicy": st.sampled_from(["Honor", "Ignore"]),
        "whenUnsatisfiable": st.sampled_from(["DoNotSchedule", "DoNotSchedule", "ScheduleAnyway"]),
    },
)
NODE = st.fixed_dictionaries(
    {}, optional={ZONE: st.sampled_from(["1", "2", "3"]), RACK: st.sampled_from(["r", "s"]), "pool": st.just("gpu")}
)


@st.composite
def pods(draw: st.DrawFn, *, on: Sequence[str] | None = None) -> Json:
    """Return a pod, on one of some nodes or new."""
    pod = make_pod().namespace(draw(st.sampled_from(list(NAMESPACES))))
    for key, value in draw(LABELS).items():
        pod = pod.label(key, value)
    anti = draw(st.lists(TERM, max_size=1 if on is not None else 2))
    affinity: dict[str, Any] = {"podAntiAffinity": {REQUIRED: anti}} if anti else {}
    if on is not None:
        built = pod.spec(nodeName=draw(st.sampled_from(on)), affinity=affinity).build()
        if draw(st.booleans()):
            built["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return built
    if near := draw(st.lists(TERM, max_size=2)):
        affinity["podAffinity"] = {REQUIRED: near}
    spec: dict[str, Any] = {"topologySpreadConstraints": draw(st.lists(CONSTRAINT, max_size=2))}
    for each in spec["topologySpreadConstraints"]:
        each.setdefault("whenUnsatisfiable", "DoNotSchedule")
    if draw(st.booleans()):
        spec["nodeSelector"] = {"pool": "gpu"}
    return pod.spec(affinity=affinity, **spec).build()


@given(st.data())
def test_masks_equal_an_evaluation_node_by_node(data: st.DataObject) -> None:
    labels = data.draw(st.lists(NODE, min_size=1, max_size=6))
    tainted = data.draw(st.sets(st.integers(0, len(labels) - 1)))
    nodes = [make_node(f"n{i}", {HOST: f"n{i}", **each}) for i, each in enumerate(labels)]
    for i in tainted:
        nodes[i].setdefault("spec", {})["taints"] = [{"key": "reserved", "effect": "NoSchedule"}]
    fleet = Fleet([msgspec.convert(each, Node) for each in nodes])
    names = [node.name for node in fleet.nodes] + ["gone"]
    running = [msgspec.convert(each, StoredPod) for each in data.draw(st.lists(pods(on=names), max_size=8))]
    pod = parse_pod(data.draw(pods()))
    found = pod_tie_reasons(pod, index_cluster_pods(running, fleet, NAMESPACES.__getitem__), fleet)
    plugins = [{PLUGIN[reason.scheduler_message] for reason in found.get(i, ())} for i in range(len(nodes))]
    assert plugins == [
        {name for name, passes in FILTERS.items() if not passes(pod, node, nodes, running)} for node in nodes
    ]


@given(st.data())
def test_ties_allow_the_nodes_that_the_filters_allow_for_each_selection(data: st.DataObject) -> None:
    labels = data.draw(st.lists(NODE, min_size=1, max_size=6))
    fleet = Fleet([msgspec.convert(make_node(f"n{i}", {HOST: f"n{i}", **each}), Node) for i, each in enumerate(labels)])
    names = [node.name for node in fleet.nodes]
    running = [msgspec.convert(each, StoredPod) for each in data.draw(st.lists(pods(on=names), max_size=8))]
    written, cluster = data.draw(pods()), index_cluster_pods(running, fleet, NAMESPACES.__getitem__)
    picks = data.draw(st.lists(st.lists(st.sampled_from(names), unique=True), min_size=1, max_size=3))
    selecting = [parse_pod(selecting_only(written, each)) for each in picks]
    selections = tuple(fleet.nodes_selected_by(each.spec) for each in selecting)
    found = find_tied_nodes(ties_of(parse_pod(written)), cluster, fleet, selections, fleet.all_nodes)
    for pod, tied in zip(selecting, found, strict=True):
        reasons = pod_tie_reasons(pod, cluster, fleet)
        messages = [{each.scheduler_message for each in reasons.get(i, ())} for i in range(len(names))]
        allowed = [i for i, each in enumerate(messages) if each <= {EXISTING_ANTI_AFFINITY_VIOLATED}]
        assert tied is None or [*bit_positions(tied.allowed)] == allowed


def selecting_only(pod: Json, names: Sequence[str]) -> Json:
    """Return a pod whose required node affinity selects nodes by name."""
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names]
    node = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms or [{}]}}}
    return pod | {"spec": pod["spec"] | {"affinity": pod["spec"]["affinity"] | node}}


@given(pods(), LABELS, st.sampled_from(list(NAMESPACES)))
def test_ties_that_are_kept_are_those_of_the_same_pod(pod: Json, labels: dict[str, str], namespace: str) -> None:
    read, identities = parse_pod(pod), (None, PodIdentity(namespace, labels), PodIdentity(namespace, {}))
    parsed = []
    for each in identities:
        clear_request_caches()
        parsed.append(ties_of(read, each))
    assert [ties_of(read, each) for each in identities * 2] == parsed * 2


# The scheduler's filters as they are defined: by pods, and without any index.


def selected(selector: Json | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    for each in selector.get("matchExpressions", ()):
        key, operator, values = each["key"], each["operator"], each.get("values", ())
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds[operator]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def with_label_keys(term: Json, owner: Pod) -> Json | None:
    """Return the selector of a term as the API server stores it; it rejects a key that the selector has already."""
    selector = term.get("labelSelector")
    if selector is None:
        return None
    own, expressions = owner.metadata.labels, list(selector.get("matchExpressions", ()))
    for keys, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")):
        known = {*selector.get("matchLabels", {}), *(each["key"] for each in expressions)}
        added = [key for key in term.get(keys, ()) if key in own and key not in known]
        expressions += [{"key": key, "operator": operator, "values": [own[key]]} for key in added]
    return {**selector, "matchExpressions": expressions}


def term_selects(term: Json, owner: Pod, pod: Pod) -> bool:
    names, namespaces = term.get("namespaces", ()), term.get("namespaceSelector")
    if not names and namespaces is None:
        names = [owner.metadata.namespace]
    home = pod.metadata.namespace
    # The scheduler evaluates the selector of a new pod's term also as if namespaces had no labels.
    known = [NAMESPACES[home], {}] if not owner.spec.node_name else [NAMESPACES[home]]
    if home not in names and not any(selected(namespaces, labels) for labels in known):
        return False
    return selected(with_label_keys(term, owner), pod.metadata.labels)


def written_terms(pod: Pod, kind: str) -> tuple[Any, ...]:
    part = getattr(pod.spec.affinity, kind) if pod.spec.affinity else None
    return part.required if part else ()


def labels_of(node: Json) -> Mapping[str, str]:
    found: Mapping[str, str] = node["metadata"]["labels"]
    return found


def in_domain(key: str, node: Json, nodes: Sequence[Json], running: Sequence[Pod]) -> list[Pod]:
    """Return the pods on nodes with the same value of a label."""
    value = labels_of(node).get(key)
    names = {each["metadata"]["name"] for each in nodes if value is not None and labels_of(each).get(key) == value}
    return [pod for pod in running if pod.spec.node_name in names]


def passes_affinity(pod: Pod, node: Json, nodes: Sequence[Json], running: Sequence[Pod]) -> bool:
    terms = written_terms(pod, "pod_affinity")
    if not all(term["topologyKey"] in labels_of(node) for term in terms):
        return False
    matching = [each for each in running if all(term_selects(term, pod, each) for term in terms)]
    if all(in_domain(term["topologyKey"], node, nodes, matching) for term in terms):
        return True
    anywhere = any(in_domain(term["topologyKey"], each, nodes, matching) for term in terms for each in nodes)
    return not anywhere and all(term_selects(term, pod, pod) for term in terms)


def passes_anti_affinity(pod: Pod, node: Json, nodes: Sequence[Json], running: Sequence[Pod]) -> bool:
    return not any(
        term_selects(term, pod, each)
        for term in written_terms(pod, "pod_anti_affinity")
        for each in in_domain(term["topologyKey"], node, nodes, running)
    )


def passes_anti_affinity_of_others(pod: Pod, node: Json, nodes: Sequence[Json], running: Sequence[Pod]) -> bool:
    return not any(
        term_selects(term, each, pod)
        for each in running
        for term in written_terms(each, "pod_anti_affinity")
        if each in in_domain(term["topologyKey"], node, nodes, [each])
    )


def passes_spread(pod: Pod, node: Json, nodes: Sequence[Json], running: Sequence[Pod]) -> bool:
    constraints = msgspec.to_builtins(pod.spec)["topologySpreadConstraints"]
    constraints = [c for c in constraints if c["whenUnsatisfiable"] == "DoNotSchedule"]
    return all(passes_constraint(each, constraints, pod, node, nodes, running) for each in constraints)


def passes_constraint(
    constraint: Json, constraints: Sequence[Json], pod: Pod, node: Json, nodes: Sequence[Json], running: Sequence[Pod]
) -> bool:
    key, selector = constraint["topologyKey"], constraint["labelSelector"]
    if selector is not None:
        selector = {k: v for k, v in selector.items() if v}
        selector = with_label_keys({"labelSelector": selector, "matchLabelKeys": constraint["matchLabelKeys"]}, pod)
    if key not in labels_of(node):
        return False
    domains: Counter[str] = Counter()
    for each in nodes:
        if not all(one["topologyKey"] in labels_of(each) for one in constraints):
            continue
        wanted = pod.spec.node_selector.items() <= labels_of(each).items()
        if constraint["nodeAffinityPolicy"] == "Honor" and not wanted:
            continue
        if constraint["nodeTaintsPolicy"] == "Honor" and each.get("spec", {}).get("taints"):
            continue
        name = each["metadata"]["name"]
        on_node = [one for one in running if one.spec.node_name == name and one.metadata.deletion_timestamp is None]
        is_empty = selector is not None and not any(selector.values())
        domains[labels_of(each)[key]] += sum(
            one.metadata.namespace == pod.metadata.namespace
            and not is_empty
            and selected(selector, one.metadata.labels)
            for one in on_node
        )
    least = min(domains.values(), default=0) if len(domains) >= constraint["minDomains"] else 0
    own = selected(selector, pod.metadata.labels)
    most: int = constraint["maxSkew"]
    return domains[labels_of(node)[key]] + own - least <= most


Filter = Callable[[Pod, Json, Sequence[Json], Sequence[Pod]], bool]
FILTERS: dict[str, Filter] = {
    "affinity": passes_affinity,
    "anti-affinity": passes_anti_affinity,
    "existing": passes_anti_affinity_of_others,
    "spread": passes_spread,
}
