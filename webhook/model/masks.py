"""Sets of nodes as bit masks, and the index of labels that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from webhook.model.nodelabels import Labels


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
