"""Windows of past usage, each with its peak.

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
"""The part of a window's bins that must have a sample is one divided by this number."""

HISTORIES_PER_BATCH = 32
"""Histories that are processed together: enough to vectorise, and only a few MiB."""

UNKNOWN_PEAK = float("inf")
"""Peak of a window in which memory ran out."""


class UsageWindows(NamedTuple):
    """Windows of one length, one array entry each; amounts in MiB, times in Unix seconds.

    Attributes:
        at: Start of the window.
        after: Peak in the window; `UNKNOWN_PEAK` if memory ran out.
        until: End of the window.
    """

    at: Floats
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
    """Windows of one history, the first at its start, in bins; the step divides the length."""

    step: int
    many: int
    length: int


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
    whole, length = len(group[0].peaks_mib), max(1, round(seconds / group[0].step_seconds))
    if whole >= length:
        step = next(each for each in range(max(1, length // STARTS_PER_LENGTH), 0, -1) if length % each == 0)
        raster = WindowRaster(step, (whole - length) // step + 1, length)
        return [one.with_known_future() for one in _windows_on_raster(group, raster)]
    if not whole:
        return [NO_WINDOWS] * len(group)
    lives = _windows_on_raster(group, WindowRaster(whole, 1, whole))
    return [
        life.with_known_future() if history.end + 2 * history.step_seconds < now else NO_WINDOWS
        for history, life in zip(group, lives, strict=True)
    ]


def _windows_on_raster(group: Sequence[UsageHistory], raster: WindowRaster) -> list[UsageWindows]:
    """Return the windows of each history; a peak is `GAP` if there are too few samples."""
    readings = np.frombuffer(b"".join([history.peaks_mib for history in group]), dtype=np.int32)
    windows = []
    for history, peaks in zip(group, _peaks_on_raster(readings.reshape(len(group), -1), raster), strict=True):
        at, until = _window_times(history.start, history.step_seconds, raster)
        for time in history.ooms:
            peaks[(at < time) & (time <= until)] = UNKNOWN_PEAK
        windows.append(UsageWindows(at, peaks, until))
    return windows


@lru_cache(maxsize=1024)
def _window_times(start: int, step_seconds: int, raster: WindowRaster) -> tuple[Floats, Floats]:
    """Return start and end of windows: equal for most of a fleet."""
    at = start + step_seconds * raster.step * np.arange(raster.many, dtype=np.float64)
    found = at, at + raster.length * step_seconds
    for column in found:
        column.setflags(write=False)
    return found


def _peaks_on_raster(readings: NDArray[np.int32], raster: WindowRaster) -> Floats:
    """Return the peak of each window from the peaks of its steps; one row per history, in and out."""
    each = raster.length // raster.step
    steps = readings[:, : (raster.many - 1 + each) * raster.step].reshape(len(readings), -1, raster.step)
    within = _steps_of_windows(raster.many, each)
    found = steps.max(axis=2)[:, within].max(axis=1).astype(np.float64)
    if steps.min() == GAP:
        sampled = (steps != GAP).sum(axis=2)
        found[SAMPLED_ONE_IN * sampled[:, within].sum(axis=1) < raster.length] = GAP
    return np.asarray(found)


@lru_cache(maxsize=64)
def _steps_of_windows(many: int, each: int) -> NDArray[np.int64]:
    return np.arange(each)[:, None] + np.arange(many)
