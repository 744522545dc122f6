"""From the recorded usage of a workload's pods to bands over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from webhook.report.console.usage_band import BandPoint, UsageBand
from webhook.usage.history import GAP, UsageHistory

MAX_POINTS = 200
"""Periods of a band: more than that are less than four pixels wide each."""

MAX_HISTORIES = 500
"""Pods of a container whose usage is summed up: those with the newest readings."""


def usage_bands(histories: Iterable[UsageHistory]) -> list[UsageBand]:
    """Return a band for each container with readings, by name."""
    by_container: defaultdict[str, list[UsageHistory]] = defaultdict(list)
    for each in histories:
        if not each.lacks_readings:
            by_container[each.container].append(each)
    return [_band(name, members) for name, members in sorted(by_container.items())]


def _band(container: str, histories: Sequence[UsageHistory]) -> UsageBand:
    newest = sorted(histories, key=lambda each: -each.end)[:MAX_HISTORIES]
    start, end = min(each.start for each in newest), max(each.end for each in newest)
    step = max(max(each.step_seconds for each in newest), -(-(end - start) // MAX_POINTS))
    grid = np.stack([_peaks_on_grid(each, start, step, -(-(end - start) // step)) for each in newest])
    capacity = max(each.capacity_mib or 0 for each in newest)
    pods = len({each.pod for each in histories})
    return UsageBand(container, pods, capacity, tuple(_points(grid, start, step)), step)


def _peaks_on_grid(history: UsageHistory, start: int, step: int, periods: int) -> NDArray[np.int32]:
    """Return the largest reading of each period, or `GAP`."""
    readings = history.readings()
    seconds = history.start + history.step_seconds * np.arange(len(readings)) - start
    peaks = np.full(periods, GAP, dtype=np.int32)
    np.maximum.at(peaks, np.minimum(seconds // step, periods - 1), readings)
    return peaks


def _points(grid: NDArray[np.int32], start: int, step: int) -> Iterator[BandPoint]:
    for i, column in enumerate(grid.T):
        known = column[column > GAP]
        if known.size:
            middle = int(np.sort(known)[known.size // 2])
            yield BandPoint(start + i * step, int(known.min()), middle, int(known.max()))
