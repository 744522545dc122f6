"""Node masks equal a plain check of each node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model.nodes import names
from webhook.model.fleet import Fleet
from webhook.model.objects import Node, NodeMetadata, NodeSpec, Taint
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm, Toleration

KEYS, VALUES = st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "x", "1", "-1", "10", "1_0", str(2**63), "٣"])
LABELS = st.dictionaries(KEYS, VALUES)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "", "gt"])
EXPRESSIONS = st.builds(NodeSelectorRequirement, KEYS, OPERATORS, st.lists(VALUES, max_size=2).map(tuple))
FIELDS = st.builds(
    NodeSelectorRequirement,
    st.sampled_from(["metadata.name", "spec.unschedulable"]),
    st.sampled_from(["In", "NotIn", "Exists"]),
    st.lists(st.sampled_from(["n0", "n1", "n9"]), max_size=2).map(tuple),
)
TERMS = st.builds(
    NodeSelectorTerm, st.lists(EXPRESSIONS, max_size=3).map(tuple), st.lists(FIELDS, max_size=1).map(tuple)
)
EFFECTS = st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])
TAINTS = st.builds(Taint, KEYS, st.sampled_from(["", "x", "y"]), EFFECTS)
TOLERATIONS = st.builds(
    Toleration,
    st.sampled_from(["", "a", "b", "c"]),
    st.sampled_from(["", "Equal", "Exists", "Gt"]),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
)


def _integer(text: str) -> int | None:
    if not text.isascii() or not text.lstrip("+-").isdigit() or len(text) - len(text.lstrip("+-")) > 1:
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def _expression_holds(expression: NodeSelectorRequirement, labels: dict[str, str]) -> bool:
    value, values = labels.get(expression.key), expression.values
    match expression.operator:
        case "In":
            return value in values
        case "NotIn":
            return len(values) > 0 and value not in values
        case "Exists":
            return not values and value is not None
        case "DoesNotExist":
            return not values and value is None
        case "Gt" | "Lt" if len(values) == 1 and value is not None:
            found, bound = _integer(value), _integer(values[0])
            if found is None or bound is None:
                return False
            return found > bound if expression.operator == "Gt" else found < bound
    return False


def _field_holds(field: NodeSelectorRequirement, name: str) -> bool:
    if field.key != "metadata.name" or len(field.values) != 1 or field.operator not in ("In", "NotIn"):
        return False
    return (name == field.values[0]) == (field.operator == "In")


def _term_holds(term: NodeSelectorTerm, name: str, labels: dict[str, str]) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_expression_holds(e, labels) for e in term.match_expressions) and all(
        _field_holds(field, name) for field in term.match_fields
    )


@settings(max_examples=200)
@given(st.lists(LABELS, max_size=5), LABELS, st.none() | st.lists(TERMS, max_size=3))
def test_selection_equals_a_plain_check(
    nodes: list[dict[str, str]], selector: dict[str, str], terms: list[NodeSelectorTerm] | None
) -> None:
    made = [Node(metadata=NodeMetadata(name=f"n{i}", labels=labels)) for i, labels in enumerate(nodes)]
    want = {
        f"n{i}"
        for i, labels in enumerate(nodes)
        if selector.items() <= labels.items()
        and (terms is None or any(_term_holds(term, f"n{i}", labels) for term in terms))
    }
    fleet = Fleet(made)
    assert names(fleet, fleet.select_nodes(selector, terms)) == want


def _covers(toleration: Toleration, taint: Taint) -> bool:
    same_effect = toleration.effect in ("", taint.effect)
    same_key = toleration.key in ("", taint.key)
    same_value = toleration.operator == "Exists" or (
        toleration.operator in ("", "Equal") and toleration.value == taint.value
    )
    return same_effect and same_key and same_value


@settings(max_examples=200)
@given(st.lists(st.lists(TAINTS, max_size=3), max_size=5), st.lists(TOLERATIONS, max_size=3))
def test_toleration_equals_a_plain_check(nodes: list[list[Taint]], tolerations: list[Toleration]) -> None:
    made = [Node(metadata=NodeMetadata(name=f"n{i}"), spec=NodeSpec(taints=tuple(t))) for i, t in enumerate(nodes)]
    want = {
        f"n{i}"
        for i, taints in enumerate(nodes)
        if all(t.effect == "PreferNoSchedule" or any(_covers(tol, t) for tol in tolerations) for t in taints)
    }
    fleet = Fleet(made)
    assert names(fleet, fleet.tolerated_nodes(tuple(tolerations))) == want
