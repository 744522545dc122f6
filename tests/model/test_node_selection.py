"""Fleet.select_nodes: node selectors and affinity terms, case by case."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.model.nodes import names, node
from webhook.model.fleet import Fleet
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm

ONE, TWO, NONE = node("one", {"size": "10", "a": "x"}), node("two", {"size": "-3", "a": "y"}), node("none")
NODES = (ONE, TWO, NONE)


class Select(NamedTuple):
    expressions: tuple[NodeSelectorRequirement, ...]
    want: set[str]
    fields: tuple[NodeSelectorRequirement, ...] = ()


def _is(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key if key == "metadata.name" else f"nvidia.com/{key}", operator, values)


SELECTIONS = {
    "In": Select((_is("a", "In", "x", "z"),), {"one"}),
    "NotIn takes nodes without the key": Select((_is("a", "NotIn", "x"),), {"two", "none"}),
    "Exists": Select((_is("a", "Exists"),), {"one", "two"}),
    "DoesNotExist": Select((_is("a", "DoesNotExist"),), {"none"}),
    "Gt": Select((_is("size", "Gt", "9"),), {"one"}),
    "Gt is strict": Select((_is("size", "Gt", "10"),), set()),
    "Lt, below zero, without nodes that lack the label": Select((_is("size", "Lt", "0"),), {"two"}),
    "a label that is not a number does not match": Select((_is("a", "Lt", "9"),), set()),
    "a literal that is not a number never matches": Select((_is("size", "Gt", "1.5"),), set()),
    "underscores are not a number": Select((_is("size", "Gt", "1_0"),), set()),
    "blanks are not a number": Select((_is("size", "Gt", " 1"),), set()),
    "non-ASCII digits are not a number": Select((_is("size", "Gt", "٣"),), set()),
    "a number beyond 64 bits never matches": Select((_is("size", "Lt", str(2**63)),), set()),
    "the largest 64-bit number": Select((_is("size", "Lt", str(2**63 - 1)),), {"one", "two"}),
    "Gt takes one value": Select((_is("size", "Gt", "1", "2"),), set()),
    "In without values does not parse": Select((_is("a", "In"),), set()),
    "NotIn without values does not parse": Select((_is("a", "NotIn"),), set()),
    "Exists with a value does not parse": Select((_is("a", "Exists", "x"),), set()),
    "DoesNotExist with a value does not parse": Select((_is("b", "DoesNotExist", "x"),), set()),
    "an unknown operator": Select((_is("a", "in", "x"),), set()),
    "all expressions of a term must match": Select((_is("a", "Exists"), _is("size", "Gt", "0")), {"one"}),
    "an empty term matches nothing": Select((), set()),
    "a name": Select((), {"two"}, (_is("metadata.name", "In", "two"),)),
    "not a name": Select((), {"one", "none"}, (_is("metadata.name", "NotIn", "two"),)),
    "a name and an expression": Select((_is("a", "In", "x"),), set(), (_is("metadata.name", "In", "two"),)),
    "two names do not parse": Select((), set(), (_is("metadata.name", "In", "one", "two"),)),
    "an unknown name": Select((), set(), (_is("metadata.name", "In", "three"),)),
    "not an unknown name": Select((), {"one", "two", "none"}, (_is("metadata.name", "NotIn", "three"),)),
    "no other field exists": Select((), set(), (_is("metadata.uid", "NotIn", "three"),)),
    "fields support only In and NotIn": Select((), set(), (_is("metadata.name", "Exists", "one"),)),
}


@pytest.mark.parametrize("case", SELECTIONS.values(), ids=SELECTIONS)
def test_select(case: Select) -> None:
    fleet = Fleet(NODES)
    assert names(fleet, fleet.select_nodes({}, (NodeSelectorTerm(case.expressions, case.fields),))) == case.want


def test_a_node_selector_needs_every_pair_and_terms_need_one() -> None:
    fleet = Fleet(NODES)
    terms = tuple(NodeSelectorTerm((_is("a", "In", value),)) for value in ("x", "y"))
    assert names(fleet, fleet.select_nodes({"nvidia.com/a": "x", "nvidia.com/size": "10"}, None)) == {"one"}
    assert fleet.select_nodes({"nvidia.com/a": "x", "nvidia.com/size": "-3"}, None) == 0
    assert names(fleet, fleet.select_nodes({}, terms)) == {"one", "two"}
    assert fleet.select_nodes({}, None) == fleet.all_nodes
    assert fleet.select_nodes({}, ()) == 0
