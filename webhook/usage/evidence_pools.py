"""Choose the evidence for a container: windows of its workload, else of its image, else of the fleet.

The nearest pool with enough windows is used; the workload's own windows are kept separately. Windows are as long as the
workload's pods usually run (the horizon), because a pod keeps for life what admission gave it.

Distribution of the next peak of GPU memory, and the cheapest limit for a price of running out of memory.

The distribution comes from the past windows of a pool, weighted by recency. The fleet's peaks and a few fictitious
peaks of a whole card are added with the weight of one window, so that no probability is ever exactly one.

A limit minimizes price x probability of a larger peak, plus the memory beyond typical usage. The price is the smallest
at which the limits of the past, each chosen from what was known then, were overrun no more often than a target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from math import ceil, erf, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np

from webhook.usage.history import (
    STARTS_PER_LENGTH,
    Floats,
    UsageHistory,
    UsageWindows,
    concatenate_windows,
    windows_of_new_pods,
)

HOUR = 3600
HORIZONS = (1, 4, 24, 72)
"""Window lengths in hours. Longer runs are evaluated three days at a time."""

MIN_WINDOWS = 36
"""Fewest windows of a usable pool: three horizons of one pod."""

MIN_FILLED_HORIZONS = 4
"""Horizons that the longest run must fill, so that its windows are not all from one time."""

MIN_OBSERVED_SECONDS = 6 * HOUR
"""Least observation time of a workload, all pods together."""

MAX_WINDOWS = 15_000
"""Most windows of a shared pool and of a backtest; evenly sampled."""


class WindowSpan(NamedTuple):
    """Windows of one length in order of their end, and that length in hours."""

    windows: UsageWindows
    hours: float


class EvidencePool(NamedTuple):
    """Windows that are the evidence for a container.

    Attributes:
        name: Source of the windows: "workload", "image" or "fleet".
        run: Windows as long as a typical run.
        hour: Windows of an hour; the same object if runs are no longer.
    """

    name: str
    run: WindowSpan
    hour: WindowSpan

    @property
    def size(self) -> int:
        """The number of windows of runs."""
        return int(self.run.windows.at.size)

    def map_spans(self, change: Callable[[WindowSpan], WindowSpan]) -> EvidencePool:
        """Return a copy with both spans changed; if they are one object, they stay one."""
        run = change(self.run)
        return self._replace(run=run, hour=run if self.hour is self.run else change(self.hour))


class PoolChoice(NamedTuple):
    """The nearest pool with enough windows, and the workload's own pool, which is the same or has too few."""

    nearest: EvidencePool
    own: EvidencePool


def usual_horizon(members: Sequence[UsageHistory]) -> int:
    """Return the longest horizon (hours) that a typical run fills, and the longest run `MIN_FILLED_HORIZONS` times."""
    runs = [member.end - member.start for member in members]
    usual = min(median(runs), max(runs) / MIN_FILLED_HORIZONS)
    return max((hours for hours in HORIZONS if hours * HOUR <= usual), default=HORIZONS[0])


def build_pools(name: str, several: Sequence[Sequence[UsageHistory]], hours: int, now: float) -> list[EvidencePool]:
    """Build a pool for each group of pods, with windows of a horizon and of an hour."""
    runs = _window_spans(several, hours, now)
    hourly = runs if hours == 1 else _window_spans(several, 1, now)
    return [EvidencePool(name, run, hour) for run, hour in zip(runs, hourly, strict=True)]


def _window_spans(several: Sequence[Sequence[UsageHistory]], hours: int, now: float) -> list[WindowSpan]:
    """Return the windows of each group; the whole life of shorter pods. All groups are processed together."""
    by_pod = iter(windows_of_new_pods(list(chain.from_iterable(several)), hours * HOUR, now))
    spans = []
    for members in several:
        found = concatenate_windows(list(islice(by_pod, len(members))))
        if len(members) > 1:
            found = found.select(np.argsort(found.until, kind="stable"))
        length = float((found.until - found.at).sum()) / found.at.size / HOUR if found.at.size else float(hours)
        spans.append(WindowSpan(found, length))
    return spans


def thin_span(span: WindowSpan) -> WindowSpan:
    """Sample windows evenly, to bound repeated scans."""
    every = -(-span.windows.at.size // MAX_WINDOWS)
    return span if every <= 1 else span._replace(windows=span.windows.select(slice(None, None, every)))


def _group_by_horizon(workloads: Sequence[Sequence[UsageHistory]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for place, members in enumerate(workloads):
        if sum([member.observed_seconds for member in members]) >= MIN_OBSERVED_SECONDS:
            found.setdefault(usual_horizon(members), []).append(place)
    return found


class PoolIndex:
    """The pools of all histories. Shared pools are built on first use."""

    def __init__(self, histories: Sequence[UsageHistory], now: float) -> None:
        self._now = now
        self._all = histories
        self._by_image: dict[str, list[UsageHistory]] = {}
        self._pools: dict[tuple[str, int], EvidencePool] = {}
        self._tails: dict[int, UsageWindows] = {}
        for history in histories:
            if history.image:
                self._by_image.setdefault(history.image, []).append(history)

    def choose_pools(self, workloads: Sequence[Sequence[UsageHistory]]) -> list[PoolChoice | None]:
        """Choose pools for each workload; None if no pool has enough windows, or it was observed too briefly."""
        found: list[PoolChoice | None] = [None] * len(workloads)
        for hours, places in _group_by_horizon(workloads).items():
            owned = build_pools("workload", [workloads[place] for place in places], hours, self._now)
            for place, own in zip(places, owned, strict=True):
                nearest = own if own.size >= MIN_WINDOWS else self._wider_pool(workloads[place][0].image, hours)
                found[place] = PoolChoice(nearest, own) if nearest else None
        return found

    def _wider_pool(self, image: str, hours: int) -> EvidencePool | None:
        wider = ([self._shared_pool("image", image, hours)] if image else []) + [self._shared_pool("fleet", "", hours)]
        return next((pool for pool in wider if pool.size >= MIN_WINDOWS), None)

    def fleet_peaks(self, hours: float, now: float) -> Floats:
        """Return the fleet's sorted peaks known by a given time, for the horizon nearest to some hours."""
        near = min(HORIZONS, key=lambda each: abs(each - hours))
        fleet = self._tails.get(near)
        if fleet is None:
            found = self._shared_pool("fleet", "", near).run.windows
            fleet = self._tails[near] = found.select(np.argsort(found.after))
        return fleet.after if now >= self._now else fleet.after[fleet.until <= now]

    def _shared_pool(self, name: str, image: str, hours: int) -> EvidencePool:
        found = self._pools.get((image, hours))
        if found is None:
            members = self._by_image[image] if image else self._all
            windows = STARTS_PER_LENGTH * sum([member.end - member.start for member in members]) // (hours * HOUR)
            sample = members[:: -(-max(1, windows) // MAX_WINDOWS)]
            (found,) = build_pools(name, [sample], hours, self._now)
            self._pools[image, hours] = found
        return found


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
    """Return the cheapest limit at each of `PRICES`, MiB: of sizes with one probability, the smallest is."""
    rises = np.flatnonzero(np.diff(below, prepend=-1.0))
    costs = np.outer(PRICES, 1 - below[rises])
    costs -= grid.typical / grid.sizes[rises]
    return np.asarray(grid.sizes[rises[np.argmin(costs, axis=1)]])


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
