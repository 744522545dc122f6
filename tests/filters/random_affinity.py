"""Random affinity, of nodes and between pods, and topology spread."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.builders import Json

HOSTNAME, ZONE, REGION = "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
LABELS = {"app": ("web", "db", "train"), "tier": ("front", "back"), "version": ("1", "2")}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def random_labels(random: Random) -> dict[str, str]:
    """Return labels of a pod."""
    return {key: random.choice(values) for key, values in LABELS.items() if random.random() < 0.7}


def required_node_affinity(random: Random, nodes: Sequence[str]) -> Json:
    """Return one to three terms; one must match."""
    terms = [_node_term(random, nodes) for _ in range(random.choice((1, 1, 2, 3)))]
    return {REQUIRED: {"nodeSelectorTerms": terms}}


def _node_term(random: Random, nodes: Sequence[str]) -> Json:
    term: Json = {}
    if random.random() < 0.8:
        term["matchExpressions"] = [_node_expression(random) for _ in range(random.choice((1, 1, 2)))]
    if random.random() < 0.3:
        operator = random.choice(("In", "In", "NotIn"))
        term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": [random.choice(nodes)]}]
    return term


def _node_expression(random: Random) -> Json:
    key = random.choice((ZONE, REGION, "disk", "size", HOSTNAME))
    operator = random.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    if operator in ("Gt", "Lt"):
        return {"key": "size", "operator": operator, "values": [random.choice(("0", "3", "5"))]}
    values = {ZONE: "abc", REGION: "xy", "disk": ("ssd", "hdd"), "size": "0159"}.get(
        key, ("node-0", "node-1", "node-2")
    )
    return {"key": key, "operator": operator, "values": random.sample(list(values), k=random.choice((1, 2)))}


def pod_affinity(random: Random) -> Json:
    """Return required affinity to pods, required anti-affinity, or both."""
    kinds = random.choice(
        (("podAffinity",), ("podAntiAffinity",), ("podAntiAffinity",), ("podAffinity", "podAntiAffinity"))
    )
    return {kind: {REQUIRED: [_pod_term(random) for _ in range(random.choice((1, 1, 2)))]} for kind in kinds}


def _pod_term(random: Random) -> Json:
    term: Json = {"topologyKey": random.choice((HOSTNAME, HOSTNAME, ZONE, ZONE, REGION, "disk"))}
    if random.random() < 0.9:
        term["labelSelector"] = _label_selector(random)
        _add_label_keys(random, term)
    if random.random() < 0.3:
        term["namespaces"] = random.sample(["team-a", "team-b", "missing"], k=random.choice((1, 2)))
    if random.random() < 0.3:
        term["namespaceSelector"] = random.choice(
            (
                {},
                {"matchLabels": {"tenant": "x"}},
                {"matchExpressions": [{"key": "tenant", "operator": "DoesNotExist"}]},
            )
        )
    return term


def _add_label_keys(random: Random, term: Json) -> None:
    """Add keys whose values must, or must not, be those of the pod itself."""
    used = {each["key"] for each in term["labelSelector"].get("matchExpressions", ())}
    free = sorted({"version", "tier"} - used - set(term["labelSelector"].get("matchLabels", ())))
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        if free and random.random() < 0.15:
            term[field] = [free.pop()]


def _label_selector(random: Random) -> Json:
    kind = random.random()
    if kind < 0.08:
        return {}
    key = random.choice(list(LABELS))
    if kind < 0.7:
        return {"matchLabels": {key: random.choice(LABELS[key])}}
    operator = random.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    values = {"values": random.sample(LABELS[key], k=random.choice((1, 2)))} if operator in ("In", "NotIn") else {}
    return {"matchExpressions": [{"key": key, "operator": operator, **values}]}


def topology_spread(random: Random) -> list[Json]:
    """Return one or two different constraints; most are required."""
    constraints = [_spread_constraint(random) for _ in range(random.choice((1, 1, 2)))]
    return list({(each["topologyKey"], each["whenUnsatisfiable"]): each for each in constraints}.values())


def _spread_constraint(random: Random) -> Json:
    constraint: Json = {
        "topologyKey": random.choice((HOSTNAME, ZONE, ZONE, REGION, "disk")),
        "maxSkew": random.choice((1, 1, 2, 5)),
        "whenUnsatisfiable": random.choice(("DoNotSchedule",) * 4 + ("ScheduleAnyway",)),
    }
    if random.random() < 0.9:
        constraint["labelSelector"] = selector = _label_selector(random)
        used = {*selector.get("matchLabels", ()), *(each["key"] for each in selector.get("matchExpressions", ()))}
        if random.random() < 0.2 and "version" not in used:
            constraint["matchLabelKeys"] = ["version"]
    if constraint["whenUnsatisfiable"] == "DoNotSchedule" and random.random() < 0.25:
        constraint["minDomains"] = random.choice((1, 2, 3, 5))
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if random.random() < 0.3:
            constraint[field] = random.choice(("Honor", "Ignore"))
    return constraint
