"""Numbers of pods by node, as bit masks: bit n of plane k is bit k of the number of node n."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.model.node_masks import union_masks

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

    def within(self, nodes: int) -> NodeCounts:
        """Return the numbers of the nodes of a mask; 0 for others."""
        return NodeCounts(plane & nodes for plane in self.planes) if self.planes else self

    def total(self, nodes: int) -> int:
        """Return the sum over the nodes of a mask."""
        return sum((plane & nodes).bit_count() << power for power, plane in enumerate(self.planes))

    def least(self, nodes: int) -> int:
        """Return the least number of a node of a mask that has at least one node."""
        least = 0
        for power, plane in reversed(tuple(enumerate(self.planes))):
            lower = nodes & ~plane
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
            if most >> power & 1:
                found |= undecided & ~plane
                undecided &= plane
            else:
                undecided &= ~plane
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
