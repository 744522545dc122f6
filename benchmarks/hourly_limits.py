"""The estimator as a limiter that may change each hour: its windows, distribution and price, in the order of time.

A running pod has a past, so its windows are weighted by similarity to it too; admission has no such past.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from benchmarks.gentd26 import CARD_MIB, HOUR, STEP, Decision, Pod, history_of
from webhook.usage.evidence_pools import (
    FICTITIOUS_PEAKS,
    PRICES,
    OverrunCounter,
    SizeGrid,
    build_size_grid,
    cheapest_limits,
    peak_distribution,
    recency_weights,
)
from webhook.usage.history import GAP, SAMPLED_ONE_IN, Floats, UsageWindows

TYPICAL_MIB = 23 * 1024.0
"""Mean use by which the rule's units are GiB."""

RUNG_MIB = 4 * 1024.0

NEAR_BEFORE, NEAR_LATELY = 2.0, 3.0
"""Bandwidths of similarity in units: for the last window's peak, and for its last quarter's."""

ALIKE = 10
"""Windows that count as one. The rule cuts one at each tenth sample, and where it begins moves the figures by chance:
here one is cut at each sample, which is the mean of the ten ways."""

PAST_HOURS = 10
"""Age up to which a window has a weight: older ones, below a thousandth, only count in the tail."""


class PastWindows(NamedTuple):
    """Windows of an hour that have a past.

    Attributes:
        windows: Start, peak and end of each.
        before: Peak in the hour before it, MiB; NaN without samples.
        recent: Peak in the last quarter of that hour.
    """

    windows: UsageWindows
    before: Floats
    recent: Floats

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> PastWindows:
        """Return the chosen windows."""
        return PastWindows(self.windows.select(chosen), self.before[chosen], self.recent[chosen])


class Chosen(NamedTuple):
    """The estimator's choice for each decision.

    Attributes:
        at_prices: A row a decision, a column for each of `PRICES`: MiB.
        priced: By target: the limits at the price of the moment.
        stated: By target: their stated risks.
    """

    at_prices: Floats
    priced: dict[float, Floats]
    stated: dict[float, Floats]


def pool_of(pods: list[Pod]) -> PastWindows:
    """Return the hourly windows of all pods, by the time at which they became known."""
    columns = zip(*(np.stack(_window_columns(pod)) for pod in pods), strict=True)
    at, peaks, until, before, recent = (np.concatenate(column) for column in columns)
    found = PastWindows(UsageWindows(at, peaks, until), before, recent)
    return found.select(np.argsort(until, kind="stable"))


def _window_columns(pod: Pod) -> list[Floats]:
    """Return start, peak, end and past peaks of the windows at each sample, from half an hour after the first one."""
    history, bins = history_of(pod), HOUR // STEP
    readings = history.readings()
    first = np.arange(bins // 2, max(bins // 2, readings.size - bins + 1))
    padded = np.concatenate((np.full(bins, GAP), readings, np.full(bins, GAP)))
    hours = sliding_window_view(padded, bins)
    first = first[SAMPLED_ONE_IN * (hours[first + bins] != GAP).sum(axis=1) >= bins]
    at = np.asarray(history.start + STEP * first, dtype=np.float64)
    pasts = (hours[first].max(axis=1), hours[first][:, -bins // 4 :].max(axis=1))
    before, recent = (np.where(past == GAP, np.nan, past) for past in pasts)
    return [at, hours[first + bins].max(axis=1).astype(np.float64), at + HOUR, before, recent]


def chosen(cases: list[Decision], pool: PastWindows, targets: tuple[float, ...], *, rungs: bool = False) -> Chosen:
    """Choose every limit from what was known at its time, prices included."""
    grid = build_size_grid(TYPICAL_MIB, CARD_MIB)
    steps = np.flatnonzero(grid.sizes % RUNG_MIB == 0) if rungs else np.arange(grid.sizes.size)
    rows = np.empty((len(cases), PRICES.size))
    priced = {target: np.empty(len(cases)) for target in targets}
    stated = {target: np.empty(len(cases)) for target in targets}
    counted, known, fleet = OverrunCounter(), 0, pool.windows.select(np.argsort(pool.windows.after))
    for index, each in enumerate(cases):
        while cases[known].at + HOUR <= each.at:
            counted.add(rows[known], np.array([cases[known].peak]))
            known += 1
        below = _below(each, pool, fleet.after[fleet.until <= each.at], grid)
        rows[index] = cheapest_limits(below[steps], grid._replace(sizes=grid.sizes[steps]))
        for target in targets:
            limit = rows[index, np.searchsorted(PRICES, counted.least_price(target))]
            priced[target][index] = limit
            stated[target][index] = 1 - below[np.searchsorted(grid.sizes, limit)]
    return Chosen(rows, priced, stated)


def _below(each: Decision, pool: PastWindows, peaks: Floats, grid: SizeGrid) -> Floats:
    """Chance of the next hour's peak to stay below each size; before any window is known, only a card is safe.

    Args:
        pool: All windows, by the time they became known.
        peaks: Those of the windows that are known, sorted.
    """
    if not peaks.size:
        return np.asarray(grid.sizes >= CARD_MIB, dtype=np.float64)
    first, last = np.searchsorted(pool.windows.until, (each.at - PAST_HOURS * HOUR, each.at), side="right")
    past = pool.select(slice(int(first), int(last)))
    before, recent = (_peak(each.pod.between(each.at - span, each.at)) for span in (HOUR, HOUR / 4))
    weight = recency_weights(past.windows, each.at, HOUR) * similarity_weights(past, before, recent, grid.unit) / ALIKE
    tail = peaks.searchsorted(grid.sizes, side="right") / (peaks.size + FICTITIOUS_PEAKS * ALIKE)
    return peak_distribution(past.windows.after, weight, tail, grid)


def similarity_weights(pool: PastWindows, before: float, recent: float, unit: float) -> Floats:
    """Return the weight of each window by similarity to a pod's peak in its last window and last quarter (MiB)."""
    off = ((pool.before - before) / (NEAR_BEFORE * unit)) ** 2 + ((pool.recent - recent) / (NEAR_LATELY * unit)) ** 2
    return np.nan_to_num(np.exp(-0.5 * off))


def _peak(used: Floats) -> float:
    return float(used.max()) if used.size else np.nan
