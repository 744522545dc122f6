"""Distribution of the next peak of GPU memory, and the cheapest limit for a price of running out of memory.

The distribution comes from the past windows of a pool, weighted by recency. The fleet's peaks and a few fictitious
peaks of a whole card are added with the weight of one window, so that no probability is ever exactly one.

A limit minimizes price x probability of a larger peak, plus the memory beyond typical usage. The price is the smallest
at which the limits of the past, each chosen from what was known then, were overrun no more often than a target.
"""

from __future__ import annotations

from math import ceil, erf, sqrt
from typing import NamedTuple

import numpy as np

from webhook.usage.history import Floats, UsageWindows

PRICES: Floats = np.exp(np.linspace(-3, 6.5, 400))
"""Prices to try: the window lengths of an unused card that one overrun is worth."""


PRIOR_WINDOWS = 1.0
"""Weight of the fleet's tail, in windows."""

FICTITIOUS_PEAKS = 20
"""Peaks of a whole card that are added to the fleet's tail."""

TYPICAL_UNITS = 23
"""Units in a pool's mean usage: the bandwidths below are GiB if mean usage is 23 GiB."""

MIN_LIMIT_UNITS = 16
"""Smallest limit in units: seven tenths of mean usage."""

STEPS_PER_UNIT = 4
"""Grid steps per unit. A peak is smoothed by a Gaussian of one unit."""

MAX_STEPS = 1024
"""Most steps of a grid; a pool that uses little of its card gets coarser steps."""

_REACH = 6 * STEPS_PER_UNIT
_SPREAD = np.array([0.5 * (1 + erf((k + 0.5) / STEPS_PER_UNIT / sqrt(2))) for k in range(-_REACH, _REACH + 1)])


class SizeGrid(NamedTuple):
    """Candidate limits: equal steps up to a whole card.

    Attributes:
        unit: MiB of the unit that bandwidths are in.
        sizes: MiB, ascending; the last is the card.
        typical: Mean usage, MiB.
    """

    unit: float
    sizes: Floats
    typical: float


def build_size_grid(typical: float, card: float) -> SizeGrid:
    """Build the grid for a pool's mean usage and card, both in MiB."""
    unit = max(typical / TYPICAL_UNITS, STEPS_PER_UNIT * card / MAX_STEPS)
    count = ceil(STEPS_PER_UNIT * (card / unit - MIN_LIMIT_UNITS)) + 1
    sizes = card - unit / STEPS_PER_UNIT * np.arange(count - 1, -1, -1, dtype=np.float64)
    return SizeGrid(unit, sizes, typical)


def recency_weights(pool: UsageWindows, now: float, half_life: float) -> Floats:
    """Return the weight of each window by age: halved for each half-life (seconds)."""
    return np.exp2((pool.at - now) / half_life)


def fleet_tail(peaks: Floats, grid: SizeGrid) -> Floats:
    """Return the share of the fleet's sorted peaks at or below each size."""
    return peaks.searchsorted(grid.sizes, side="right") / (peaks.size + FICTITIOUS_PEAKS)


def peak_distribution(after: Floats, weight: Floats, tail: Floats, grid: SizeGrid) -> Floats:
    """Return the probability that the next peak, smoothed by a Gaussian, is at or below each size; 1 at the card.

    Args:
        after: Peaks of the pool's windows, MiB.
        tail: `fleet_tail` on the same grid.
    """
    at = np.minimum(grid.sizes.searchsorted(after), grid.sizes.size - 1)
    masses = np.bincount(at, weight, minlength=grid.sizes.size).astype(np.float64, copy=False)
    masses[0] += PRIOR_WINDOWS * tail[0]
    masses[1:] += PRIOR_WINDOWS * (tail[1:] - tail[:-1])
    masses /= weight.sum() + PRIOR_WINDOWS
    below = np.convolve(masses, _SPREAD)[_REACH : _REACH + masses.size]
    below[_REACH + 1 :] += masses[: max(0, masses.size - _REACH - 1)].cumsum()
    below[-1] = 1.0
    return np.minimum(below, 1.0)


def hourly_probability(below: Floats, hours: float) -> Floats:
    """Convert a probability per window to one per hour, assuming one overrun hour in each overrun window."""
    return below if hours == 1 else 1 - np.minimum(1.0, (1 - below) / hours)


def cheapest_limits(below: Floats, grid: SizeGrid) -> Floats:
    """Return the cheapest limit at each of `PRICES`, MiB."""
    costs = np.outer(PRICES, 1 - below)
    costs -= grid.typical / grid.sizes
    return np.asarray(grid.sizes[np.argmin(costs, axis=1)])


class OverrunCounter:
    """Counts how often past limits were overrun, at every price."""

    def __init__(self) -> None:
        self.hours = 0.0
        self.overrun_hours = np.zeros(PRICES.size)

    def add(self, limits: Floats, peaks: Floats, hours: float = 1.0) -> None:
        """Count some hours with one choice: its limits at each price, and the peaks that followed."""
        self.hours += hours
        self.overrun_hours += hours * (peaks[:, None] > limits).mean(axis=0)

    def least_price(self, target: float) -> float:
        """Return the smallest price that met a target (overruns per hour); the largest if none did."""
        met = (1 + self.overrun_hours) / (1 + self.hours) <= target
        return float(PRICES[np.argmax(met)] if met.any() else PRICES[-1])
