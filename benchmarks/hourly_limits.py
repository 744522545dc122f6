"""The estimator as a limiter that may change each hour: its windows, distribution and price, in the order of time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.gentd26 import CARD_MIB, HOUR, STEP, Decision, Pod, history_of
from webhook.usage.distribution import (
    PRICES,
    OverrunCounter,
    SizeGrid,
    build_size_grid,
    cheapest_limits,
    fleet_tail,
    peak_distribution,
    recency_weights,
)
from webhook.usage.usage_windows import Floats, UsageWindows, concatenate_windows, windows_of_history

TYPICAL_MIB = 23 * 1024.0
"""Mean use by which the rule's units are GiB."""

RUNG_MIB = 4 * 1024.0

NEAR_BEFORE, NEAR_LATELY = 2.0, 3.0
"""Bandwidths of similarity in units: for the last window's peak, and for its last quarter's."""

ALIKE = 10
"""Windows that count as one. The rule cuts one at each tenth sample, and where it begins moves the figures by chance:
here one is cut at each sample, which is the mean of the ten ways."""

PAST_HOURS = 10
"""How long a window is weighed: older ones, below a thousandth, only count in the tail."""


class Chosen(NamedTuple):
    """What the estimator chose for each decision.

    Attributes:
        at_prices: A row a decision, a column for each of `PRICES`: MiB.
        priced: By target: the limits at the price of the moment.
        stated: By target: their stated risks.
    """

    at_prices: Floats
    priced: dict[float, Floats]
    stated: dict[float, Floats]


def pool_of(pods: list[Pod]) -> UsageWindows:
    """Return the hourly windows of all pods, by the time at which they became known."""
    found = concatenate_windows([windows_of_history(history_of(pod), HOUR, starts=HOUR // STEP) for pod in pods])
    return found.select(np.argsort(found.until, kind="stable"))


def chosen(asked: list[Decision], pool: UsageWindows, targets: tuple[float, ...], *, rungs: bool = False) -> Chosen:
    """Choose every limit from what was known at its time, prices included."""
    grid = build_size_grid(TYPICAL_MIB, CARD_MIB)
    steps = np.flatnonzero(grid.sizes % RUNG_MIB == 0) if rungs else np.arange(grid.sizes.size)
    rows = np.empty((len(asked), PRICES.size))
    priced = {target: np.empty(len(asked)) for target in targets}
    stated = {target: np.empty(len(asked)) for target in targets}
    counted, known, fleet = OverrunCounter(), 0, pool.select(np.argsort(pool.after))
    for index, each in enumerate(asked):
        while asked[known].at + HOUR <= each.at:
            counted.add(rows[known], np.array([asked[known].peak]))
            known += 1
        below = _below(each, pool, fleet.after[fleet.until <= each.at], grid)
        rows[index] = cheapest_limits(below, grid, steps)
        for target in targets:
            limit = rows[index, np.searchsorted(PRICES, counted.least_price(target))]
            priced[target][index] = limit
            stated[target][index] = 1 - below[np.searchsorted(grid.sizes, limit)]
    return Chosen(rows, priced, stated)


def _below(each: Decision, pool: UsageWindows, peaks: Floats, grid: SizeGrid) -> Floats:
    """Chance of the next hour's peak to stay below each size; before any window is known, only a card is safe.

    Args:
        pool: All windows, by the time they became known.
        peaks: Those of the windows that are known, sorted.
    """
    if not peaks.size:
        return np.asarray(grid.sizes >= CARD_MIB, dtype=np.float64)
    first, last = np.searchsorted(pool.until, (each.at - PAST_HOURS * HOUR, each.at), side="right")
    past = pool.select(slice(int(first), int(last)))
    before, recent = (_peak(each.pod.between(each.at - span, each.at)) for span in (HOUR, HOUR / 4))
    weight = recency_weights(past, each.at, HOUR) * similarity_weights(past, before, recent, grid.unit) / ALIKE
    return peak_distribution(past.after, weight, fleet_tail(peaks, grid, ALIKE), grid)


def similarity_weights(pool: UsageWindows, before: float, recent: float, unit: float) -> Floats:
    """Return the weight of each window by similarity to a pod's peak in its last window and last quarter (MiB)."""
    off = ((pool.before - before) / (NEAR_BEFORE * unit)) ** 2 + ((pool.recent - recent) / (NEAR_LATELY * unit)) ** 2
    return np.nan_to_num(np.exp(-0.5 * off))


def _peak(used: Floats) -> float:
    return float(used.max()) if used.size else np.nan
