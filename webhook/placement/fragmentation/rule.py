"""What every rule that values free room has in common."""

from __future__ import annotations

from typing import Protocol

from webhook.placement.needs import PodDemand
from webhook.placement.rooms import FloatArray, IntArray, FreeCapacityArrays, CapacityRows


class NodeScorer(Protocol):
    """Says how good it is to put a pod somewhere.

    Attributes:
        tight: True if a share goes to the fullest of the GPUs of a node that score alike; else to the lowest.
    """

    prefers_full_gpus: bool

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """What free room comes to, in the rule's own unit, shape (n,)."""

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:
        """How good it is to put a pod on nodes, higher is better; equal scores mean equally good places.

        Args:
            was: The value of each node before the pod, shape (n,).
            becomes: The value after it, shape (n,).
            nodes: The nodes, as positions in the site, shape (n,).
            need: What the pod asks for.
        """

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> FloatArray | float:
        """What is added to the scores of all nodes because it cannot be kept by shape, shape (nodes,) or one number.

        Args:
            rooms: What is free before the pod.
            need: What the pod asks for, its memory too.
            turnover: Pods that leave for each that comes, from 0, where whoever has come stays, to 1.
        """
