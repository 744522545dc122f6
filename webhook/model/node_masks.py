"""Sets of nodes as bit masks, and the index of labels that makes them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from webhook.model.node_labels import Labels
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}\Z", re.ASCII)
_MAX_INT64 = 2**63 - 1


class ThresholdIndex:
    """Masks of nodes by the amount they have at least.

    Attributes:
        amounts: The distinct amounts, rising.
        masks: Nodes with at least the amount at the same place.
    """

    __slots__ = ("amounts", "masks")

    def __init__(self, by_node: Mapping[int, int]) -> None:
        exactly: dict[int, int] = {}
        for node, amount in by_node.items():
            exactly[amount] = exactly.get(amount, 0) | 1 << node
        self.amounts = sorted(exactly)
        self.masks: list[int] = []
        mask = 0
        for amount in reversed(self.amounts):
            mask |= exactly[amount]
            self.masks.append(mask)
        self.masks.reverse()

    def with_changes(self, moves: Iterable[tuple[int, int, int]]) -> ThresholdIndex:
        """The levels after some nodes have changed; costs what lies between the amounts, and not all nodes.

        Args:
            moves: Node, the amount it has here, and the amount it has from now on.
        """
        levels = ThresholdIndex.__new__(ThresholdIndex)
        levels.amounts, levels.masks = self.amounts.copy(), self.masks.copy()
        for node, before, after in moves:
            levels._move_node(1 << node, before, after)
        return levels

    def _move_node(self, bit: int, before: int, after: int) -> None:
        if before == after:
            return
        place = self._insert_amount(after)
        old = bisect_left(self.amounts, before)
        if before < after:
            for between in range(old + 1, place + 1):
                self.masks[between] |= bit
        else:
            for between in range(place + 1, old + 1):
                self.masks[between] ^= bit
        higher = self.masks[old + 1] if old + 1 < len(self.masks) else 0
        if self.masks[old] == higher:  # nobody has exactly this any more
            del self.amounts[old], self.masks[old]

    def _insert_amount(self, amount: int) -> int:
        """Where the amount stands, made room for if it is new."""
        place = bisect_left(self.amounts, amount)
        if place == len(self.amounts) or self.amounts[place] != amount:
            mask = self.masks[place] if place < len(self.masks) else 0
            self.amounts.insert(place, amount)
            self.masks.insert(place, mask)
        return place

    def nodes_with_at_least(self, amount: int) -> int:
        """Nodes that have this amount or more."""
        place = bisect_left(self.amounts, amount)
        return self.masks[place] if place < len(self.masks) else 0

    def max_amount(self, nodes: int) -> int:
        """The largest amount that one of these nodes has; 0 if none has any."""
        for amount, mask in zip(reversed(self.amounts), reversed(self.masks), strict=True):
            if mask & nodes:
                return amount
        return 0

    def total_amount(self, nodes: int, beyond: int = 0) -> int:
        """What these nodes have together, of each what exceeds `beyond`."""
        whole, below = 0, beyond
        for amount, mask in zip(self.amounts, self.masks, strict=True):
            if amount > below:
                whole += (amount - below) * (mask & nodes).bit_count()
                below = amount
        return whole


EMPTY_INDEX = ThresholdIndex({})


def bit_positions(mask: int) -> Iterator[int]:
    """The positions of the bits that are set, lowest first.

    >>> list(bits(0b1010))
    [1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class LabelIndex:
    """Masks of nodes by label key and value. Bit i is the i-th node given.

    Attributes:
        values: Mask by value, by key.
        keys: Mask of the nodes that carry a key.
    """

    __slots__ = ("keys", "values")

    values: Mapping[str, Mapping[str, int]]
    keys: Mapping[str, int]

    def __init__(self, nodes: Iterable[Labels]) -> None:
        values: dict[str, dict[str, int]] = {}
        for position, labels in enumerate(nodes):
            bit = 1 << position
            for key, value in labels.items():
                masks = values.setdefault(key, {})
                masks[value] = masks.get(value, 0) | bit
        self.values = values
        self.keys = {key: union_masks(masks.values()) for key, masks in values.items()}

    def nodes_with(self, key: str, value: str) -> int:
        """Nodes that carry this pair."""
        masks = self.values.get(key)
        return masks.get(value, 0) if masks else 0

    def common_value(self, key: str, nodes: int) -> str | None:
        """The value that all of these nodes carry under a key; None if they differ or one lacks it."""
        for value, mask in self.values.get(key, {}).items():
            if mask & nodes:
                return value if not nodes & ~mask else None
        return None


def union_masks(masks: Iterable[int]) -> int:
    """All nodes that are in any of the masks."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


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
