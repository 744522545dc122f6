"""How likely the next window's peak stays below each size: past windows of a pool, weighed, over the fleet's tail.

A window weighs by how recent it is; for a pod that runs already also by how near its past is to the pod's. Admission
knows no such pod: nearness is for the backtest, where limits move each hour. The fleet's own peaks, unweighted, and a
few fictitious ones of a whole card stand behind them as much as one window, so that no pool is ever sure.
"""

from __future__ import annotations

from math import ceil, erf, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from webhook.usage.usage_windows import Floats, UsageWindows

PRICES: Floats = np.exp(np.linspace(-3, 6.5, 400))
"""Prices that are tried: window lengths of an unused card that one overrun is worth."""


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


PRIOR_WINDOWS = 1.0
"""Windows that the fleet's tail counts as."""

FICTITIOUS_PEAKS = 20
"""Peaks of a whole card that were never seen, in the fleet's tail."""

TYPICAL_UNITS = 23
"""Units that a pool's mean use is measured as: bandwidths below are GiB where mean use is 23 GiB."""

MIN_LIMIT_UNITS = 16
"""The least limit, units: seven tenths of mean use. Below it what a limit holds has no meaning."""

NEAR_BEFORE, NEAR_LATELY = 2.0, 3.0
"""Bandwidths of nearness, units: of the last window's peak, and of its last quarter's."""

STEPS_PER_UNIT = 4
"""Grid steps in a unit, which is also how far a peak is spread: a Gaussian of one unit."""

MAX_STEPS = 1024
"""Steps of a grid at most: what a pool seldom uses is then measured more coarsely."""

_REACH = 6 * STEPS_PER_UNIT
_SPREAD = np.array([0.5 * (1 + erf((k + 0.5) / STEPS_PER_UNIT / sqrt(2))) for k in range(-_REACH, _REACH + 1)])


class SizeGrid(NamedTuple):
    """Sizes that a limit may take: equal steps up to a whole card.

    Attributes:
        unit: MiB of the unit that bandwidths are in.
        sizes: MiB, ascending; the last is the card.
        typical: Mean use, MiB: what a limit is held against.
    """

    unit: float
    sizes: Floats
    typical: float


def build_size_grid(typical: float, card: float) -> SizeGrid:
    """The grid of a pool by its mean use and its card, both in MiB."""
    unit = max(typical / TYPICAL_UNITS, STEPS_PER_UNIT * card / MAX_STEPS)
    count = ceil(STEPS_PER_UNIT * (card / unit - MIN_LIMIT_UNITS)) + 1
    sizes = card - unit / STEPS_PER_UNIT * np.arange(count - 1, -1, -1, dtype=np.float64)
    return SizeGrid(unit, sizes, typical)


def recency_weights(pool: UsageWindows, now: float, half_life: float) -> Floats:
    """How much each window counts by how recent it is: a half for each half-life, in seconds."""
    return np.exp2((pool.at - now) / half_life)


def similarity_weights(pool: UsageWindows, before: float, lately: float, unit: float) -> Floats:
    """How much each counts for a pod that runs, by how near its past is to its last window and last quarter, in MiB."""
    off = ((pool.before - before) / (NEAR_BEFORE * unit)) ** 2 + ((pool.lately - lately) / (NEAR_LATELY * unit)) ** 2
    return np.nan_to_num(np.exp(-0.5 * off))


def fleet_tail(peaks: Floats, grid: SizeGrid, alike: int = 1) -> Floats:
    """Share of a fleet's peaks, sorted, at or below each size; so many of them count as one."""
    return peaks.searchsorted(grid.sizes, side="right") / (peaks.size + FICTITIOUS_PEAKS * alike)


def peak_distribution(after: Floats, weight: Floats, tail: Floats, grid: SizeGrid) -> Floats:
    """Chance that the next peak is at or below each size; 1 at the card.

    Args:
        after: Peaks of the pool's windows, MiB.
        weight: How much each counts.
        tail: `fleet_tail` the fleet on the same grid.
    """
    at = np.minimum(grid.sizes.searchsorted(after), grid.sizes.size - 1)
    masses = np.bincount(at, weight, minlength=grid.sizes.size).astype(np.float64, copy=False)
    masses[0] += PRIOR_WINDOWS * tail[0]
    masses[1:] += PRIOR_WINDOWS * (tail[1:] - tail[:-1])
    below = _smooth_cumulative(masses / (weight.sum() + PRIOR_WINDOWS))
    below[-1] = 1.0
    return np.minimum(below, 1.0)


def hourly_probability(below: Floats, hours: float) -> Floats:
    """Chance for an hour from the chance for a window of some hours: each that was overrun had one such hour."""
    return below if hours == 1 else 1 - np.minimum(1.0, (1 - below) / hours)


def _smooth_cumulative(masses: Floats) -> Floats:
    """Cumulated masses, each spread by a Gaussian of one unit."""
    count = masses.size
    below = np.convolve(masses, _SPREAD)[_REACH : _REACH + count]
    below[_REACH + 1 :] += masses[: max(0, count - _REACH - 1)].cumsum()
    return below


def cheapest_limits(below: Floats, grid: SizeGrid, rungs: NDArray[np.int64] | None = None) -> Floats:
    """The cheapest limit at each of `PRICES`, MiB; of equals the smaller. `rungs` are the sizes that exist."""
    sizes = grid.sizes if rungs is None else grid.sizes[rungs]
    over = 1 - (below if rungs is None else below[rungs])
    costs = np.outer(PRICES, over)
    costs -= grid.typical / sizes
    return np.asarray(sizes[np.argmin(costs, axis=1)])
