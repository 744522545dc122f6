"""Past windows of use: what a pod had used by some moment, and what it came to use after it.

A window is known once its end has passed and its future was seen well enough; where a pod was killed for memory the
future peak is not known and counts as the whole card.
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
"""Windows that begin within the length of one. Fewer cost less and add noise."""

SAMPLED_ONE_IN = 3
"""One in so many bins of a future must hold a sample, or its peak says nothing."""

HISTORIES_PER_BATCH = 32
"""Histories that are looked at together: enough that a step for all costs little for each, and few MiB."""

UNKNOWN_PEAK = float("inf")
"""The future peak of a window in which memory ran out: more than there was."""


class UsageWindows(NamedTuple):
    """Windows of one length, one entry each; amounts in MiB, times in Unix seconds.

    Attributes:
        at: The moment between past and future.
        before: Peak of the last window's length before it; NaN for windows of pods that only begin.
        lately: Peak of the last quarter of that.
        after: Peak of the future; `UNKNOWN_PEAK` where memory ran out.
        until: When it became known: the end of its future.
    """

    at: Floats
    before: Floats
    lately: Floats
    after: Floats
    until: Floats

    def select(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> UsageWindows:
        """Those that are chosen."""
        return UsageWindows(*(column[chosen] for column in self))

    def with_known_future(self) -> UsageWindows:
        """Those whose future was seen."""
        known = self.after != GAP
        return self if known.all() else self.select(known)


NO_WINDOWS = UsageWindows(*(np.empty(0) for _ in UsageWindows._fields))


def concatenate_windows(several: list[UsageWindows]) -> UsageWindows:
    """The windows of several pods as one pool."""
    if len(several) == 1:
        return several[0]
    return UsageWindows(*map(np.concatenate, zip(*several, strict=True))) if several else NO_WINDOWS


class WindowRaster(NamedTuple):
    """Where the windows of one history begin, and how long they are, all in bins; the step divides the length."""

    first: int
    step: int
    many: int
    length: int


def windows_of_history(history: UsageHistory, seconds: int, starts: int = STARTS_PER_LENGTH) -> UsageWindows:
    """Every window of a length, from half a length of age on; those that the pod's end cuts off are dropped."""
    length = bins_in(seconds, history)
    raster = _window_raster(history, max(1, length // 2), length, starts)
    if not raster.many:
        return NO_WINDOWS
    ends = raster.first + raster.step * np.arange(raster.many)
    before, lately = (peaks_before(history.readings(), ends, each) for each in (length, max(1, length // 4)))
    (found,) = _windows_without_past([history], raster)
    return found._replace(before=before, lately=lately).with_known_future()


def windows_of_new_pods(histories: Sequence[UsageHistory], seconds: int, now: float) -> list[UsageWindows]:
    """The same for pods that are yet to begin, one for each history: from any age on, and the whole life of a shorter
    one that has ended.
    """
    found = [NO_WINDOWS] * len(histories)
    for places in _group_alike_histories(histories):
        for place, one in zip(
            places, _new_pod_windows([histories[place] for place in places], seconds, now), strict=True
        ):
            found[place] = one
    return found


def _group_alike_histories(histories: Sequence[UsageHistory]) -> Iterator[list[int]]:
    """Places of those with as many bins of one length, some at once."""
    alike: dict[tuple[int, int], list[int]] = {}
    for place, history in enumerate(histories):
        alike.setdefault((len(history.peaks_mib), history.step_seconds), []).append(place)
    for places in alike.values():
        yield from (places[first : first + HISTORIES_PER_BATCH] for first in range(0, len(places), HISTORIES_PER_BATCH))


def _new_pod_windows(alike: Sequence[UsageHistory], seconds: int, now: float) -> list[UsageWindows]:
    whole, length = len(alike[0].peaks_mib), bins_in(seconds, alike[0])
    if whole >= length:
        return [one.with_known_future() for one in _windows_without_past(alike, _window_raster(alike[0], 0, length))]
    if not whole:
        return [NO_WINDOWS] * len(alike)
    lives = _windows_without_past(alike, WindowRaster(0, whole, 1, whole))
    return [
        life.with_known_future() if history.end + 2 * history.step_seconds < now else NO_WINDOWS
        for history, life in zip(alike, lives, strict=True)
    ]


def bins_in(seconds: int, history: UsageHistory) -> int:
    """How many of a history's bins make a length of time, at least one."""
    return max(1, round(seconds / history.step_seconds))


def peaks_before(peaks: NDArray[np.int32], ends: NDArray[np.int64], length: int) -> Floats:
    """Peaks of the bins before each end; NaN where none holds a sample."""
    padded = np.concatenate((np.full(length, GAP, np.int32), peaks))
    found = padded[ends[:, None] + np.arange(length)].max(axis=1).astype(np.float64)
    found[found == GAP] = np.nan
    return np.asarray(found)


def _window_raster(history: UsageHistory, first: int, length: int, starts: int = STARTS_PER_LENGTH) -> WindowRaster:
    step = next(each for each in range(max(1, length // starts), 0, -1) if length % each == 0)
    return WindowRaster(first, step, max(0, (len(history.peaks_mib) - length - first) // step + 1), length)


def _windows_without_past(alike: Sequence[UsageHistory], raster: WindowRaster) -> list[UsageWindows]:
    """Windows without a past; `GAP` is the peak of those whose future too few samples were seen of."""
    readings = np.frombuffer(b"".join([history.peaks_mib for history in alike]), dtype=np.int32)
    futures = _future_peaks(readings.reshape(len(alike), -1), raster)
    return [_with_window_times(history, after, raster) for history, after in zip(alike, futures, strict=True)]


def _with_window_times(history: UsageHistory, after: Floats, raster: WindowRaster) -> UsageWindows:
    at, until, nothing = _window_times(history.start, history.step_seconds, raster)
    for time in history.ooms:
        after[(at < time) & (time <= until)] = UNKNOWN_PEAK
    return UsageWindows(at, nothing, nothing, after, until)


@lru_cache(maxsize=1024)
def _window_times(start: int, step_seconds: int, raster: WindowRaster) -> tuple[Floats, Floats, Floats]:
    """When windows begin and end, and that nothing is known from before them: the same for most of a fleet."""
    at = start + step_seconds * (raster.first + raster.step * np.arange(raster.many, dtype=np.float64))
    found = at, at + raster.length * step_seconds, np.full(raster.many, np.nan)
    for column in found:
        column.setflags(write=False)
    return found


def _future_peaks(readings: NDArray[np.int32], raster: WindowRaster) -> Floats:
    """The peak of each window, from the peaks of the steps that it is made of: a row a history, in and out."""
    each = raster.length // raster.step
    covered = readings[:, raster.first :][:, : (raster.many - 1 + each) * raster.step]
    steps = covered.reshape(len(readings), -1, raster.step)
    within = _steps_of_windows(raster.many, each)
    found = steps.max(axis=2)[:, within].max(axis=1).astype(np.float64)
    if steps.min() == GAP:
        seen = (steps != GAP).sum(axis=2)
        found[SAMPLED_ONE_IN * seen[:, within].sum(axis=1) < raster.length] = GAP
    return np.asarray(found)


@lru_cache(maxsize=64)
def _steps_of_windows(many: int, each: int) -> NDArray[np.int64]:
    """Which steps make each window: a column a window."""
    return np.arange(each)[:, None] + np.arange(many)
