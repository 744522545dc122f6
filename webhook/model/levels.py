"""How many nodes have at least so much of something: one sorted list, so that asking costs one bisection."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping


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
