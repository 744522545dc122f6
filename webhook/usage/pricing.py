"""What running out of memory costs, learnt from how often it would have happened.

A limit minimises price x chance of a peak above it, and what it holds beyond typical use. The price is the least at
which the limits of the past, each chosen from what was known then, were overrun no more often than a target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from webhook.usage.distribution import SizeGrid
from webhook.usage.windows import Floats

PRICES: Floats = np.exp(np.linspace(-3, 6.5, 400))
"""Prices that are tried: window lengths of an unused card that one overrun is worth."""


def cheapest_limits(below: Floats, grid: SizeGrid, rungs: NDArray[np.int64] | None = None) -> Floats:
    """The cheapest limit at each of `PRICES`, MiB; of equals the smaller. `rungs` are the sizes that exist."""
    sizes = grid.sizes if rungs is None else grid.sizes[rungs]
    over = 1 - (below if rungs is None else below[rungs])
    costs = np.outer(PRICES, over)
    costs -= grid.typical / sizes
    return np.asarray(sizes[np.argmin(costs, axis=1)])


class OverrunCounter:
    """Past limits at every price, and which of them were overrun."""

    def __init__(self) -> None:
        self.hours = 0.0
        self.overrun_hours = np.zeros(PRICES.size)

    def add(self, limits: Floats, peaks: Floats, hours: float = 1.0) -> None:
        """Count some hours under one choice: its limits at each price, and the peaks that came, evenly over them."""
        self.hours += hours
        self.overrun_hours += hours * (peaks[:, None] > limits).mean(axis=0)

    def least_price(self, target: float) -> float:
        """The least price that met a target (overruns an hour); the largest where none did."""
        met = (1 + self.overrun_hours) / (1 + self.hours) <= target
        return float(PRICES[np.argmax(met)] if met.any() else PRICES[-1])
