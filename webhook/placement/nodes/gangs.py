"""Topology domains of gangs: where the rest of a gang still fits, and where some of its pods are already.

Nodes with the same value of a label are one domain: a multi-node NVLink domain by `nvidia.com/gpu.clique`, a rack or
zone by others. If the gang's size is known, the smallest domain that fits the rest is best; otherwise the one with the
most free capacity.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from webhook.model.bounded_cache import BoundedCache
from webhook.model.fleet import Fleet
from webhook.model.node_labels import CLIQUE_LABEL
from webhook.placement.capacity import FloatArray, IntArray

MAX_DOMAIN_LABELS = 16


class GangContext(msgspec.Struct, frozen=True):
    """The other pods of a pod's gang.

    Attributes:
        size: Number of pods, this one included; 0 if unknown.
        domain: Node label whose value they should share.
        placed: Other pods with a node or reservation, by node position.
        waiting: Other pods known to wait for a node.
    """

    size: int
    domain: str = CLIQUE_LABEL
    placed: Mapping[int, int] = {}
    waiting: int = 0

    @property
    def remaining_count(self) -> int:
        """Pods that still need a node, this one included, as far as known."""
        return max(self.size - sum(self.placed.values()), self.waiting + 1)


class TopologyDomains:
    """The domain of every node, by label: numbers from 1; 0 for a node without the label."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._by_label: BoundedCache[str, IntArray] = BoundedCache(MAX_DOMAIN_LABELS)

    def domains_by_label(self, label: str) -> IntArray:
        """Return the domain numbers, shape (nodes,)."""
        if (domains := self._by_label.get(label)) is None:
            numbers: dict[str, int] = {"": 0}
            names = (node.labels.get(label, "") for node in self._fleet.nodes)
            each = [numbers.setdefault(name, len(numbers)) for name in names]
            domains = self._by_label.store(label, np.array(each, np.int64))
        return domains


def domain_suitability(domains: IntArray, pod_capacity: IntArray, gang: GangContext) -> FloatArray:
    """Return how well each node's domain suits a pod, higher is better, shape (nodes, 3).

    The columns: whether the rest of the gang fits, how many of its pods are there, and how well the capacity matches.
    `domains` and `pod_capacity` have the domain of each node and how many such pods fit on it, shape (nodes,).
    """
    domain_count = int(domains.max(initial=0)) + 1
    free_capacity = np.bincount(domains, pod_capacity, domain_count)
    gang_pods = np.bincount(domains[list(gang.placed)], list(gang.placed.values()), domain_count)
    fits = free_capacity >= gang.remaining_count
    suits = np.column_stack([fits, gang_pods, np.where(fits & (gang.size > 0), -free_capacity, free_capacity)])
    suits[0] = 0
    found: FloatArray = suits[domains]
    return found
