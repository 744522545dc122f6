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

from webhook.usage.history import GAP, History

Floats = NDArray[np.float64]

STARTS = 12
"""Windows that begin within the length of one. Fewer cost less and add noise."""

SEEN = 3
"""One in so many bins of a future must hold a sample, or its peak says nothing."""

AT_ONCE = 32
"""Histories that are looked at together: enough that a step for all costs little for each, and few MiB."""

UNKNOWN = float("inf")
"""The future peak of a window in which memory ran out: more than there was."""


class Windows(NamedTuple):
    """Windows of one length, one entry each; amounts in MiB, times in Unix seconds.

    Attributes:
        at: The moment between past and future.
        before: Peak of the last window's length before it; NaN for windows of pods that only begin.
        lately: Peak of the last quarter of that.
        after: Peak of the future; `UNKNOWN` where memory ran out.
        until: When it became known: the end of its future.
    """

    at: Floats
    before: Floats
    lately: Floats
    after: Floats
    until: Floats

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.int64] | slice) -> Windows:
        """Those that are chosen."""
        return Windows(*(column[chosen] for column in self))

    def of_known(self) -> Windows:
        """Those whose future was seen."""
        known = self.after != GAP
        return self if known.all() else self.some(known)


NONE = Windows(*(np.empty(0) for _ in Windows._fields))


def together(several: list[Windows]) -> Windows:
    """The windows of several pods as one pool."""
    if len(several) == 1:
        return several[0]
    return Windows(*map(np.concatenate, zip(*several, strict=True))) if several else NONE


class Raster(NamedTuple):
    """Where the windows of one history begin, and how long they are, all in bins; the step divides the length."""

    first: int
    step: int
    many: int
    length: int


def windows(history: History, seconds: int, starts: int = STARTS) -> Windows:
    """Every window of a length, from half a length of age on; those that the pod's end cuts off are dropped."""
    length = bins_of(seconds, history)
    raster = _raster(history, max(1, length // 2), length, starts)
    if not raster.many:
        return NONE
    ends = raster.first + raster.step * np.arange(raster.many)
    before, lately = (past_peaks(history.readings(), ends, each) for each in (length, max(1, length // 4)))
    (found,) = _known([history], raster)
    return found._replace(before=before, lately=lately).of_known()


def beginnings(histories: Sequence[History], seconds: int, now: float) -> list[Windows]:
    """The same for pods that are yet to begin, one for each history: from any age on, and the whole life of a shorter
    one that has ended.
    """
    found = [NONE] * len(histories)
    for places in _alike(histories):
        for place, one in zip(places, _beginnings([histories[place] for place in places], seconds, now), strict=True):
            found[place] = one
    return found


def _alike(histories: Sequence[History]) -> Iterator[list[int]]:
    """Places of those with as many bins of one length, some at once."""
    alike: dict[tuple[int, int], list[int]] = {}
    for place, history in enumerate(histories):
        alike.setdefault((len(history.peaks_mib), history.step_seconds), []).append(place)
    for places in alike.values():
        yield from (places[first : first + AT_ONCE] for first in range(0, len(places), AT_ONCE))


def _beginnings(alike: Sequence[History], seconds: int, now: float) -> list[Windows]:
    whole, length = len(alike[0].peaks_mib), bins_of(seconds, alike[0])
    if whole >= length:
        return [one.of_known() for one in _known(alike, _raster(alike[0], 0, length))]
    if not whole:
        return [NONE] * len(alike)
    lives = _known(alike, Raster(0, whole, 1, whole))
    return [
        life.of_known() if history.end + 2 * history.step_seconds < now else NONE
        for history, life in zip(alike, lives, strict=True)
    ]


def bins_of(seconds: int, history: History) -> int:
    """How many of a history's bins make a length of time, at least one."""
    return max(1, round(seconds / history.step_seconds))


def past_peaks(peaks: NDArray[np.int32], ends: NDArray[np.int64], length: int) -> Floats:
    """Peaks of the bins before each end; NaN where none holds a sample."""
    padded = np.concatenate((np.full(length, GAP, np.int32), peaks))
    found = padded[ends[:, None] + np.arange(length)].max(axis=1).astype(np.float64)
    found[found == GAP] = np.nan
    return np.asarray(found)


def _raster(history: History, first: int, length: int, starts: int = STARTS) -> Raster:
    step = next(each for each in range(max(1, length // starts), 0, -1) if length % each == 0)
    return Raster(first, step, max(0, (len(history.peaks_mib) - length - first) // step + 1), length)


def _known(alike: Sequence[History], raster: Raster) -> list[Windows]:
    """Windows without a past; `GAP` is the peak of those whose future too few samples were seen of."""
    readings = np.frombuffer(b"".join([history.peaks_mib for history in alike]), dtype=np.int32)
    futures = _futures(readings.reshape(len(alike), -1), raster)
    return [_dated(history, after, raster) for history, after in zip(alike, futures, strict=True)]


def _dated(history: History, after: Floats, raster: Raster) -> Windows:
    at, until, nothing = _moments(history.start, history.step_seconds, raster)
    for time in history.ooms:
        after[(at < time) & (time <= until)] = UNKNOWN
    return Windows(at, nothing, nothing, after, until)


@lru_cache(maxsize=1024)
def _moments(start: int, step_seconds: int, raster: Raster) -> tuple[Floats, Floats, Floats]:
    """When windows begin and end, and that nothing is known from before them: the same for most of a fleet."""
    at = start + step_seconds * (raster.first + raster.step * np.arange(raster.many, dtype=np.float64))
    found = at, at + raster.length * step_seconds, np.full(raster.many, np.nan)
    for column in found:
        column.setflags(write=False)
    return found


def _futures(readings: NDArray[np.int32], raster: Raster) -> Floats:
    """The peak of each window, from the peaks of the steps that it is made of: a row a history, in and out."""
    each = raster.length // raster.step
    covered = readings[:, raster.first :][:, : (raster.many - 1 + each) * raster.step]
    steps = covered.reshape(len(readings), -1, raster.step)
    within = _within(raster.many, each)
    found = steps.max(axis=2)[:, within].max(axis=1).astype(np.float64)
    if steps.min() == GAP:
        seen = (steps != GAP).sum(axis=2)
        found[SEEN * seen[:, within].sum(axis=1) < raster.length] = GAP
    return np.asarray(found)


@lru_cache(maxsize=64)
def _within(many: int, each: int) -> NDArray[np.int64]:
    """Which steps make each window: a column a window."""
    return np.arange(each)[:, None] + np.arange(many)
