"""How many nodes have at least so much of something: one sorted list, so that asking costs one bisection."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping


class Levels:
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

    def at_least(self, amount: int) -> int:
        """Nodes that have this amount or more."""
        place = bisect_left(self.amounts, amount)
        return self.masks[place] if place < len(self.masks) else 0

    def most(self, nodes: int) -> int:
        """The largest amount that one of these nodes has; 0 if none has any."""
        for amount, mask in zip(reversed(self.amounts), reversed(self.masks), strict=True):
            if mask & nodes:
                return amount
        return 0

    def total(self, nodes: int, beyond: int = 0) -> int:
        """What these nodes have together, of each what exceeds `beyond`."""
        whole, below = 0, beyond
        for amount, mask in zip(self.amounts, self.masks, strict=True):
            if amount > below:
                whole += (amount - below) * (mask & nodes).bit_count()
                below = amount
        return whole


NO_LEVELS = Levels({})
