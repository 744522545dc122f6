"""The stock scheduler's own rules, as baselines: MostAllocated on GPUs, and its default, which spreads."""

from __future__ import annotations

import numpy as np

from webhook.placement.fragmentation.mixes import Mix
from webhook.placement.needs import Need
from webhook.placement.rooms import Floats, Ints, Rooms, Rows, Site


class MostAllocated:
    """NodeResourcesFit with MostAllocated on the GPUs alone: whole hundredths of the node's GPUs in use."""

    tight = True

    def __init__(self, site: Site, mix: Mix) -> None:  # noqa: ARG002 - built as every rule is
        self._all = np.maximum(site.gpus.sum(1), 1)

    def value(self, rows: Rows) -> Floats:
        """Hundredths of the node's GPUs in use."""
        all_ = self._all[rows.nodes]
        used: Floats = np.floor(100 * (all_ - rows.gpus.sum(1)) / all_)
        return used

    def score(self, was: Floats, becomes: Floats, nodes: Ints, need: Need) -> Floats:  # noqa: ARG002 - a rule's face
        """The value after the pod."""
        return becomes

    def beside(self, rooms: Rooms, need: Need, turnover: float) -> float:  # noqa: ARG002 - a rule's face
        """Nothing."""
        return 0.0


class StockDefault:
    """The scheduler as it comes: LeastAllocated and BalancedAllocation on CPU and memory.

    Each is a whole number from 0 to 100. GPUs take no part in the default.
    """

    tight = True

    def __init__(self, site: Site, mix: Mix) -> None:
        """Nothing of either is needed."""

    def value(self, rows: Rows) -> Floats:
        """Nothing."""
        return np.zeros(len(rows.nodes))

    def score(self, was: Floats, becomes: Floats, nodes: Ints, need: Need) -> Floats:  # noqa: ARG002 - a rule's face
        """Nothing."""
        return becomes

    def beside(self, rooms: Rooms, need: Need, turnover: float) -> Floats:  # noqa: ARG002 - a rule's face
        """Everything: memory is no part of a shape."""
        cpu = 1 - (rooms.cpu - need.cpu_milli) / np.maximum(rooms.site.cpu, 1)
        memory = 1 - (rooms.memory - need.memory_mib) / np.maximum(rooms.site.memory, 1)
        least = np.floor((np.floor(100 * (1 - cpu)) + np.floor(100 * (1 - memory))) / 2)
        balanced: Floats = np.floor(100 * (1 - np.abs(cpu - memory) / 2))
        return least + balanced
