"""Sets of nodes as bit masks: indexes by label and by amount, and node selector terms over them.

Source of node selection: `k8s.io/component-helpers/scheduling/corev1/nodeaffinity`. A term that does not parse there
(an operator with the wrong number of values, a number that Go's ParseInt rejects) matches no node.

Numbers of pods by node, as bit masks: bit n of plane k is bit k of the number of node n.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

from webhook.model.bounded_cache import request_cache
from webhook.model.node_labels import Labels
from webhook.model.pods import NodeSelectorRequirement, NodeSelectorTerm

ALL_NODES = -1
"""The mask of all nodes, however many there are."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,64}\Z", re.ASCII)
_MAX_INT64 = 2**63 - 1


class ThresholdIndex:
    """Masks of nodes by minimum amount.

    Attributes:
        amounts: The distinct amounts, ascending.
        masks: The nodes with at least the amount at the same index.
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
        """Return a changed copy, updating only the masks between old and new amounts.

        Args:
            moves: Node, old amount and new amount.
        """
        changed = ThresholdIndex.__new__(ThresholdIndex)
        changed.amounts, changed.masks = self.amounts.copy(), self.masks.copy()
        for node, before, after in moves:
            changed._move_node(1 << node, before, after)
        return changed

    def _move_node(self, bit: int, before: int, after: int) -> None:
        if before == after:
            return
        index = self._insert_amount(after)
        old = bisect_left(self.amounts, before)
        if before < after:
            for between in range(old + 1, index + 1):
                self.masks[between] |= bit
        else:
            for between in range(index + 1, old + 1):
                self.masks[between] ^= bit
        higher = self.masks[old + 1] if old + 1 < len(self.masks) else 0
        if self.masks[old] == higher:  # no node has exactly this amount any more
            del self.amounts[old], self.masks[old]

    def _insert_amount(self, amount: int) -> int:
        index = bisect_left(self.amounts, amount)
        if index == len(self.amounts) or self.amounts[index] != amount:
            mask = self.masks[index] if index < len(self.masks) else 0
            self.amounts.insert(index, amount)
            self.masks.insert(index, mask)
        return index

    def nodes_with_at_least(self, amount: int) -> int:
        """Return the nodes that have this amount or more."""
        index = bisect_left(self.amounts, amount)
        return self.masks[index] if index < len(self.masks) else 0

    def max_amount(self, nodes: int) -> int:
        """Return the largest amount of one of these nodes; 0 if none has any."""
        for amount, mask in zip(reversed(self.amounts), reversed(self.masks), strict=True):
            if mask & nodes:
                return amount
        return 0

    def amount_of(self, node: int) -> int:
        """Return the amount of a node; 0 if it is negative or not known. Each mask is part of the one before it."""
        reached = bisect_left(self.masks, True, key=lambda mask: not mask >> node & 1)
        return max(0, self.amounts[reached - 1]) if reached else 0

    def total_amount(self, nodes: int) -> int:
        """Return the sum of the positive amounts of these nodes."""
        total, below = 0, 0
        for amount, mask in zip(self.amounts, self.masks, strict=True):
            if amount > below:
                total += (amount - below) * (mask & nodes).bit_count()
                below = amount
        return total

    def count_times(self, amount: int, nodes: int) -> int:
        """Return how many times an amount fits, each time on one of these nodes."""
        total, above = 0, 0
        for each, mask in zip(reversed(self.amounts), reversed(self.masks), strict=True):
            if each < amount:
                break
            total += each // amount * (mask & ~above & nodes).bit_count()
            above = mask
        return total


EMPTY_INDEX = ThresholdIndex({})


def bit_positions(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits, lowest first.

    >>> list(bit_positions(0b1010))
    [1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class LabelIndex:
    """Masks of nodes by label. Bit i is the i-th node.

    Attributes:
        values: Masks by key and value.
        keys: Masks by key.
    """

    __slots__ = ("_nodes", "keys", "values")

    def __init__(self, nodes: Iterable[Labels]) -> None:
        self._nodes = tuple(nodes)
        self.values: dict[str, dict[str, int]] = {}
        for position, labels in enumerate(self._nodes):
            bit = 1 << position
            for key, value in labels.items():
                masks = self.values.setdefault(key, {})
                masks[value] = masks.get(value, 0) | bit
        self.keys = {key: union_masks(masks.values()) for key, masks in self.values.items()}

    def nodes_with(self, key: str, value: str) -> int:
        """Return the nodes with this label."""
        masks = self.values.get(key)
        return masks.get(value, 0) if masks else 0

    def common_value(self, key: str, nodes: int) -> str | None:
        """Return the value of a label on all of these nodes; None if they differ or one lacks it."""
        first = next(bit_positions(nodes), None)
        value = self._nodes[first].get(key) if first is not None else None
        return value if value is not None and not nodes & ~self.nodes_with(key, value) else None


def union_masks(masks: Iterable[int]) -> int:
    """Return the nodes that are in any of the masks."""
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def exclude_nodes(nodes: int, excluded: int) -> int:
    """Return the nodes of a mask that are not in another.

    This takes half as long as `nodes & ~excluded`, because Python copies a mask to complement it.
    """
    return nodes ^ nodes & excluded


def nodes_matching_term(term: NodeSelectorTerm, index: LabelIndex, by_name: Mapping[str, int], all_nodes: int) -> int:
    """Return the nodes that a term matches; an empty term matches none."""
    if not term.match_expressions and not term.match_fields:
        return 0
    mask = all_nodes
    for requirement in term.match_expressions:
        mask &= nodes_matching_expression(requirement, index, all_nodes)
    for requirement in term.match_fields:
        mask &= _nodes_matching_field(requirement, by_name, all_nodes)
    return mask


def nodes_matching_expression(requirement: NodeSelectorRequirement, index: LabelIndex, all_nodes: int) -> int:
    """Return the nodes that an expression over labels matches."""
    key, operator, values = requirement.key, requirement.operator, requirement.values
    if operator == "In":
        return union_masks(index.nodes_with(key, value) for value in values)
    if operator == "NotIn":
        return all_nodes & ~union_masks(index.nodes_with(key, value) for value in values) if values else 0
    if operator == "Exists":
        return index.keys.get(key, 0) if not values else 0
    if operator == "DoesNotExist":
        return all_nodes & ~index.keys.get(key, 0) if not values else 0
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


def _nodes_matching_field(requirement: NodeSelectorRequirement, by_name: Mapping[str, int], all_nodes: int) -> int:
    """Return the nodes that an expression over fields matches: only metadata.name exists, with exactly one value."""
    if requirement.key != "metadata.name" or len(requirement.values) != 1:
        return 0
    position = by_name.get(requirement.values[0])
    mask = 0 if position is None else 1 << position
    if requirement.operator == "In":
        return mask
    return all_nodes & ~mask if requirement.operator == "NotIn" else 0


@request_cache(1024)
def parse_go_int64(text: str) -> int | None:
    """Parse a number as Go's ParseInt does with base 10 and 64 bits; None if that is an error."""
    if not _INTEGER.match(text):
        return None
    value = int(text)
    return value if -_MAX_INT64 - 1 <= value <= _MAX_INT64 else None


MAX_COUNT = (1 << 20) - 1
"""Most pods of one node. A kubelet runs a few hundred at most."""


class NodeCounts:
    """A number for each node of a fleet; 0 where none is given. Immutable.

    A sum or a comparison over all nodes takes as many operations on masks as the largest number has bits.
    """

    __slots__ = ("planes",)

    def __init__(self, planes: Iterable[int] = ()) -> None:
        kept = list(planes)
        while kept and not kept[-1]:
            kept.pop()
        self.planes = tuple(kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeCounts) and self.planes == other.planes

    def __hash__(self) -> int:
        return hash(self.planes)

    def __bool__(self) -> bool:
        return bool(self.planes)

    def count_on(self, node: int) -> int:
        """Return the number of one node."""
        return sum((plane >> node & 1) << power for power, plane in enumerate(self.planes))

    def counted_nodes(self) -> int:
        """Return the mask of the nodes with any."""
        return union_masks(self.planes)

    def total(self, nodes: int) -> int:
        """Return the sum over the nodes of a mask."""
        total = 0
        for power, plane in enumerate(self.planes):
            total += (plane & nodes).bit_count() << power
        return total

    def least(self, nodes: int) -> int:
        """Return the least number of a node of a mask that has at least one node."""
        least = 0
        for power, plane in reversed(tuple(enumerate(self.planes))):
            lower = exclude_nodes(nodes, plane)
            least |= 0 if lower else 1 << power
            nodes = lower or nodes
        return least

    def nodes_with_at_most(self, most: int, nodes: int) -> int:
        """Return the nodes of a mask with at most this number."""
        if most < 0:
            return 0
        if most >> len(self.planes):
            return nodes
        found, undecided = 0, nodes
        for power, plane in reversed(tuple(enumerate(self.planes))):
            lower = exclude_nodes(undecided, plane)
            if most >> power & 1:
                found |= lower
                undecided &= plane
            else:
                undecided = lower
        return found | undecided

    def with_counts(self, counts: Mapping[int, int]) -> NodeCounts:
        """Return the numbers with those of some nodes replaced."""
        if not counts:
            return self
        bounded = {node: min(count, MAX_COUNT) for node, count in counts.items()}
        size = max(len(self.planes), max(bounded.values()).bit_length())
        planes = [*self.planes, *[0] * (size - len(self.planes))]
        changed = mask_of_nodes(bounded)
        for power in range(size):
            ones = mask_of_nodes(node for node, count in bounded.items() if count >> power & 1)
            planes[power] = planes[power] & ~changed | ones
        return NodeCounts(planes)

    def __add__(self, other: NodeCounts) -> NodeCounts:
        if not self.planes or not other.planes:
            return self if self.planes else other
        size = max(len(self.planes), len(other.planes))
        planes, carry = [], 0
        for power in range(size):
            one = self.planes[power] if power < len(self.planes) else 0
            two = other.planes[power] if power < len(other.planes) else 0
            planes.append(one ^ two ^ carry)
            carry = one & two | carry & (one ^ two)
        return NodeCounts((*planes, carry))


NO_COUNTS = NodeCounts()


def mask_of_nodes(nodes: Iterable[int]) -> int:
    """Return the mask of nodes by index. Many of them cost one conversion."""
    few = list(nodes)
    if len(few) < 16:
        return union_masks(1 << node for node in few)
    bits = bytearray(max(few) // 8 + 1)
    for node in few:
        bits[node >> 3] |= 1 << (node & 7)
    return int.from_bytes(bits, "little")
