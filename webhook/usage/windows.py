"""Past windows of use: what a pod had used by some moment, and what it came to use after it.

A window is known once its end has passed and its future was seen well enough; where a pod was killed for memory the
future peak is not known and counts as the whole card.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from webhook.usage.history import GAP, History

Floats = NDArray[np.float64]

STARTS = 12
"""Windows that begin within the length of one: every fifth minute for an hour. Fewer cost less and add noise."""

SEEN = 3
"""One in so many bins of a future must hold a sample, or its peak says nothing."""

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
    return Windows(*map(np.concatenate, zip(*several, strict=True))) if several else NONE


def windows(history: History, seconds: int) -> Windows:
    """Every window of a length, from half a length of age on; those that the pod's end cuts off are dropped."""
    length = bins_of(seconds, history)
    starts = np.arange(max(1, length // 2), len(history.peaks_mib) - length + 1, max(1, length // STARTS))
    if not starts.size:
        return NONE
    peaks = history.readings()
    before, lately = past_peaks(peaks, starts, length), past_peaks(peaks, starts, max(1, length // 4))
    return _known(history, starts, length)._replace(before=before, lately=lately).of_known()


def beginnings(history: History, seconds: int, now: float) -> Windows:
    """The same for pods that are yet to begin: from any age on, and the whole life of a shorter one that has ended."""
    length = bins_of(seconds, history)
    whole = len(history.peaks_mib)
    if whole >= length:
        starts = np.arange(0, whole - length + 1, max(1, length // STARTS))
        return _known(history, starts, length).of_known()
    ended = history.end + 2 * history.step_seconds < now
    return _known(history, np.zeros(1, np.int64), whole).of_known() if ended and whole else NONE


def bins_of(seconds: int, history: History) -> int:
    """How many of a history's bins make a length of time, at least one."""
    return max(1, round(seconds / history.step_seconds))


def past_peaks(peaks: NDArray[np.int32], ends: NDArray[np.int64], length: int) -> Floats:
    """Peaks of the bins before each end; NaN where none holds a sample."""
    padded = np.concatenate((np.full(length, GAP, np.int32), peaks))
    found = _largest(_rows(padded, ends, length))
    found[found == GAP] = np.nan
    return found


def _known(history: History, starts: NDArray[np.int64], length: int) -> Windows:
    """Windows without a past; `GAP` is the peak of those whose future too few samples were seen of."""
    futures = _rows(history.readings(), starts, length)
    after = _largest(futures)
    after[SEEN * np.count_nonzero(futures != GAP, axis=1) < length] = GAP
    at = history.start + history.step_seconds * starts.astype(np.float64)
    until = at + length * history.step_seconds
    for time in history.ooms:
        after[(at < time) & (time <= until)] = UNKNOWN
    nothing = np.full(starts.size, np.nan)
    return Windows(at, nothing, nothing, after, until)


def _rows(bins: NDArray[np.int32], starts: NDArray[np.int64], length: int) -> NDArray[np.int32]:
    rows: NDArray[np.int32] = bins[starts[:, None] + np.arange(length)]
    return rows


def _largest(rows: NDArray[np.int32]) -> Floats:
    return np.asarray(rows.max(axis=1), dtype=np.float64)
