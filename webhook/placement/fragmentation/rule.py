"""What every rule that values free room has in common."""

from __future__ import annotations

from typing import Protocol

from webhook.placement.needs import Need
from webhook.placement.rooms import Floats, Ints, Rooms, Rows


class Rule(Protocol):
    """Says how good it is to put a pod somewhere.

    Attributes:
        tight: True if a share goes to the fullest of the GPUs of a node that score alike; else to the lowest.
    """

    tight: bool

    def value(self, rows: Rows) -> Floats:
        """What free room comes to, in the rule's own unit, shape (n,)."""

    def score(self, was: Floats, becomes: Floats, nodes: Ints, need: Need) -> Floats:
        """How good it is to put a pod on nodes, higher is better; equal scores mean equally good places.

        Args:
            was: The value of each node before the pod, shape (n,).
            becomes: The value after it, shape (n,).
            nodes: The nodes, as positions in the site, shape (n,).
            need: What the pod asks for.
        """

    def beside(self, rooms: Rooms, need: Need, turnover: float) -> Floats | float:
        """What is added to the scores of all nodes because it cannot be kept by shape, shape (nodes,) or one number.

        Args:
            rooms: What is free before the pod.
            need: What the pod asks for, its memory too.
            turnover: Pods that leave for each that comes, from 0, where whoever has come stays, to 1.
        """
