"""Pods of one gang in one domain: where the rest of it still fits, and where some of it is already.

Nodes that share the value of a label are one domain: a multi-node NVLink domain by `nvidia.com/gpu.clique`, a rack or
a zone by others. Where it is known how many pods there are, the smallest domain that takes the rest; where nobody says,
the one with the most room.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from webhook.model.bounded_cache import BoundedCache
from webhook.model.fleet import Fleet
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.placement.capacity import FloatArray, IntArray

DOMAIN_KEY_PARTS = 3
"""Of a key: does the rest fit, how many are there, and how well the domain's room suits."""

MAX_DOMAIN_LABELS = 16
"""Labels by which nodes are told apart, and remembered."""


class GangContext(msgspec.Struct, frozen=True):
    """Those that a pod belongs to.

    Attributes:
        size: How many there are, the pod itself too; 0 where nobody says.
        domain: Node label whose value they should share.
        seated: How many of the others have a place, by position of the node.
        waiting: How many others are known to wait for one.
    """

    size: int
    domain: str = CLIQUE_LABEL
    placed: Mapping[int, int] = {}
    waiting: int = 0

    @property
    def remaining_count(self) -> int:
        """How many still need a place, the pod itself too, as far as anybody knows."""
        return max(self.size - sum(self.placed.values()), self.waiting + 1)


class TopologyDomains:
    """The domain of every node, by label: numbers from 1, and 0 for a node without the label."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_label: BoundedCache[str, IntArray] = BoundedCache(MAX_DOMAIN_LABELS)

    def domains_by_label(self, label: str) -> IntArray:
        """Of shape (nodes,)."""
        known = self._by_label.get(label)
        if known is None:
            numbers: dict[str, int] = {"": 0}
            names = (node.labels.get(label, "") for node in self._fleet.nodes)
            each = [numbers.setdefault(name, len(numbers)) for name in names]
            known = self._by_label.store(label, np.array(each, np.int64))
        return known


def domain_suitability(domains: IntArray, slots: IntArray, gang: GangContext) -> FloatArray:
    """How well the domain of each node suits a pod, the higher the better, shape (nodes, PARTS).

    Args:
        domains: The domain of each node, shape (nodes,).
        slots: How many such pods each node takes, shape (nodes,).
        gang: The others.
    """
    many = int(domains.max(initial=0)) + 1
    room = np.bincount(domains, slots, many)
    there = np.bincount(domains[list(gang.placed)], list(gang.placed.values()), many)
    fits = room >= gang.remaining_count
    suits = np.column_stack([fits, there, np.where(fits & (gang.size > 0), -room, room)])
    suits[0] = 0
    found: FloatArray = suits[domains]
    return found


def nodes_for_remaining(domains: IntArray, slots: IntArray, gang: GangContext, ranked: IntArray) -> list[int]:
    """Where the others would go that still need a place once the pod has the best node; none if not all fit there.

    Args:
        domains: As in `domain_suitability`.
        slots: The same, before the pod has come.
        gang: The others.
        ranked: The nodes, the best first; those of its domain are filled in this order.
    """
    best = int(ranked[0])
    nodes = ranked[domains[ranked] == domains[best]]
    each = np.repeat(nodes, np.minimum(slots[nodes], gang.remaining_count))[1 : gang.remaining_count]
    return each.tolist() if domains[best] and len(each) == gang.remaining_count - 1 else []
