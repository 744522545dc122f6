"""Windows of past usage: what a pod had used before some moment, and its peak in the time after it.

A window is known once it has ended and enough of it was sampled. If the pod was killed for memory in it, the true peak
is unknown and counts as more than the card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from webhook.usage.history import GAP, UsageHistory

Floats = NDArray[np.float64]

STARTS_PER_LENGTH = 12
"""Windows that start within the length of one. Fewer cost less but add noise."""

SAMPLED_ONE_IN = 3
"""At least one in so many bins of a window must have a sample."""

HISTORIES_PER_BATCH = 32
"""Histories that are processed together: enough to vectorise, and only a few MiB."""

UNKNOWN_PEAK = float("inf")
"""Peak of a window in which memory ran out."""


class UsageWindows(NamedTuple):
    """Windows of one length, one array entry each; amounts in MiB, times in Unix seconds.

    Attributes:
        at: Start of the window.
        before: Peak in the time of one window before it; NaN for windows of new pods.
        recent: Peak in the last quarter of that time.
        after: Peak in the window; `UNKNOWN_PEAK` if memory ran out.
        until: End of the window.
    """

    at: Floats
    before: Floats
    recent: Floats
    after: Floats
    until: Floats

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> UsageWindows:
        """Return the chosen windows."""
        return UsageWindows(*(column[chosen] for column in self))

    def with_known_future(self) -> UsageWindows:
        """Return the windows with enough samples."""
        known = self.after != GAP
        return self if known.all() else self.select(known)


NO_WINDOWS = UsageWindows(*(np.empty(0) for _ in UsageWindows._fields))


def concatenate_windows(several: list[UsageWindows]) -> UsageWindows:
    """Concatenate the windows of several pods."""
    if len(several) == 1:
        return several[0]
    return UsageWindows(*map(np.concatenate, zip(*several, strict=True))) if several else NO_WINDOWS


class WindowRaster(NamedTuple):
    """Positions of the windows of one history, in bins; the step divides the length."""

    first: int
    step: int
    many: int
    length: int


def windows_of_history(history: UsageHistory, seconds: int, starts: int = STARTS_PER_LENGTH) -> UsageWindows:
    """Return all complete windows of a length, starting half a length after the pod's start."""
    length = bins_in(seconds, history)
    raster = _window_raster(history, max(1, length // 2), length, starts)
    if not raster.many:
        return NO_WINDOWS
    ends = raster.first + raster.step * np.arange(raster.many)
    before, recent = (peaks_before(history.readings(), ends, each) for each in (length, max(1, length // 4)))
    (found,) = _windows_without_past([history], raster)
    return found._replace(before=before, recent=recent).with_known_future()


def windows_of_new_pods(histories: Sequence[UsageHistory], seconds: int, now: float) -> list[UsageWindows]:
    """Return the windows that represent new pods, for each history: starting at any age, and the whole life of a pod
    that ended before one length.
    """
    found = [NO_WINDOWS] * len(histories)
    for places in _group_alike_histories(histories):
        for place, one in zip(
            places, _new_pod_windows([histories[place] for place in places], seconds, now), strict=True
        ):
            found[place] = one
    return found


def _group_alike_histories(histories: Sequence[UsageHistory]) -> Iterator[list[int]]:
    """Yield indexes of histories with equal numbers and lengths of bins, in batches."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, history in enumerate(histories):
        groups.setdefault((len(history.peaks_mib), history.step_seconds), []).append(place)
    for places in groups.values():
        yield from (places[first : first + HISTORIES_PER_BATCH] for first in range(0, len(places), HISTORIES_PER_BATCH))


def _new_pod_windows(group: Sequence[UsageHistory], seconds: int, now: float) -> list[UsageWindows]:
    whole, length = len(group[0].peaks_mib), bins_in(seconds, group[0])
    if whole >= length:
        return [one.with_known_future() for one in _windows_without_past(group, _window_raster(group[0], 0, length))]
    if not whole:
        return [NO_WINDOWS] * len(group)
    lives = _windows_without_past(group, WindowRaster(0, whole, 1, whole))
    return [
        life.with_known_future() if history.end + 2 * history.step_seconds < now else NO_WINDOWS
        for history, life in zip(group, lives, strict=True)
    ]


def bins_in(seconds: int, history: UsageHistory) -> int:
    """Return the number of a history's bins in a length of time, at least one."""
    return max(1, round(seconds / history.step_seconds))


def peaks_before(peaks: NDArray[np.int32], ends: NDArray[np.int64], length: int) -> Floats:
    """Return the peaks of the bins before each end; NaN without samples."""
    padded = np.concatenate((np.full(length, GAP, np.int32), peaks))
    found = padded[ends[:, None] + np.arange(length)].max(axis=1).astype(np.float64)
    found[found == GAP] = np.nan
    return np.asarray(found)


def _window_raster(history: UsageHistory, first: int, length: int, starts: int = STARTS_PER_LENGTH) -> WindowRaster:
    step = next(each for each in range(max(1, length // starts), 0, -1) if length % each == 0)
    return WindowRaster(first, step, max(0, (len(history.peaks_mib) - length - first) // step + 1), length)


def _windows_without_past(group: Sequence[UsageHistory], raster: WindowRaster) -> list[UsageWindows]:
    """Return windows without a past; the peak is `GAP` if there are too few samples."""
    readings = np.frombuffer(b"".join([history.peaks_mib for history in group]), dtype=np.int32)
    futures = _future_peaks(readings.reshape(len(group), -1), raster)
    return [_with_window_times(history, after, raster) for history, after in zip(group, futures, strict=True)]


def _with_window_times(history: UsageHistory, after: Floats, raster: WindowRaster) -> UsageWindows:
    at, until, nothing = _window_times(history.start, history.step_seconds, raster)
    for time in history.ooms:
        after[(at < time) & (time <= until)] = UNKNOWN_PEAK
    return UsageWindows(at, nothing, nothing, after, until)


@lru_cache(maxsize=1024)
def _window_times(start: int, step_seconds: int, raster: WindowRaster) -> tuple[Floats, Floats, Floats]:
    """Return start, end and unknown past of windows: equal for most of a fleet."""
    at = start + step_seconds * (raster.first + raster.step * np.arange(raster.many, dtype=np.float64))
    found = at, at + raster.length * step_seconds, np.full(raster.many, np.nan)
    for column in found:
        column.setflags(write=False)
    return found


def _future_peaks(readings: NDArray[np.int32], raster: WindowRaster) -> Floats:
    """Return the peak of each window from the peaks of its steps; one row per history, in and out."""
    each = raster.length // raster.step
    covered = readings[:, raster.first :][:, : (raster.many - 1 + each) * raster.step]
    steps = covered.reshape(len(readings), -1, raster.step)
    within = _steps_of_windows(raster.many, each)
    found = steps.max(axis=2)[:, within].max(axis=1).astype(np.float64)
    if steps.min() == GAP:
        sampled = (steps != GAP).sum(axis=2)
        found[SAMPLED_ONE_IN * sampled[:, within].sum(axis=1) < raster.length] = GAP
    return np.asarray(found)


@lru_cache(maxsize=64)
def _steps_of_windows(many: int, each: int) -> NDArray[np.int64]:
    return np.arange(each)[:, None] + np.arange(many)
