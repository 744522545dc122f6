"""Node selector terms over an index of labels: each expression is one mask.

Source: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`. A term that does not parse there (an
operator with the wrong number of values, a number that Go's ParseInt refuses) matches no node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from webhook.model.masks import LabelIndex, union_masks
from webhook.model.pods import NodeSelectorTerm, NodeSelectorRequirement

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}\Z", re.ASCII)
_MAX_INT64 = 2**63 - 1


def nodes_matching_term(term: NodeSelectorTerm, index: LabelIndex, by_name: Mapping[str, int], everyone: int) -> int:
    """Nodes that a term allows; an empty term allows none."""
    if not term.match_expressions and not term.match_fields:
        return 0
    mask = everyone
    for requirement in term.match_expressions:
        mask &= nodes_matching_expression(requirement, index, everyone)
    for requirement in term.match_fields:
        mask &= _nodes_matching_field(requirement, by_name, everyone)
    return mask


def nodes_matching_expression(requirement: NodeSelectorRequirement, index: LabelIndex, everyone: int) -> int:
    """Nodes that one expression over labels allows."""
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator == "In":
        return union_masks(index.nodes_with(key, value) for value in values)
    if operator == "NotIn":
        return everyone & ~union_masks(index.nodes_with(key, value) for value in values) if values else 0
    if operator == "Exists":
        return index.keys.get(key, 0) if not values else 0
    if operator == "DoesNotExist":
        return everyone & ~index.keys.get(key, 0) if not values else 0
    if operator in ("Gt", "Lt") and len(values) == 1:
        return _nodes_by_comparison(index.values.get(key, {}), values[0], above=operator == "Gt")
    return 0


def _nodes_by_comparison(masks: Mapping[str, int], literal: str, *, above: bool) -> int:
    bound = parse_go_int64(literal)
    if bound is None:
        return 0
    mask = 0
    for value, nodes in masks.items():
        found = parse_go_int64(value)
        if found is not None and (found > bound if above else found < bound):
            mask |= nodes
    return mask


def _nodes_matching_field(requirement: NodeSelectorRequirement, by_name: Mapping[str, int], everyone: int) -> int:
    """Nodes that one expression over fields allows: only metadata.name exists, with exactly one value."""
    if requirement.key != "metadata.name" or len(requirement.values) != 1:
        return 0
    position = by_name.get(requirement.values[0])
    mask = 0 if position is None else 1 << position
    if requirement.operator == "In":
        return mask
    return everyone & ~mask if requirement.operator == "NotIn" else 0


@lru_cache(maxsize=1024)
def parse_go_int64(text: str) -> int | None:
    """Read a number as Go's ParseInt does with base 10 and 64 bits; None where that is an error."""
    if not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -_MAX_INT64 - 1 <= value <= _MAX_INT64 else None
