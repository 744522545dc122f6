"""Measured GPU usage of one container of one pod, and windows of it: the values between the readers of usage and the
estimator.

Readers (Prometheus, a recorded file, a trace) divide time into equal bins. A bin without a sample is a gap, not zero
usage; NaN, infinite and negative readings are gaps too. If there are several GPUs, the one with the most memory in use
counts.

A window is known once it has ended and enough of it was sampled. If the pod was killed for memory in it, the true peak
is unknown and counts as more than the card.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

GAP = -1
"""The reading of a bin without samples."""

MIB_TYPECODE = "i"
"""Type code of `UsageHistory.peaks_mib`: 4 bytes per bin keep 20,000 containers small, and reach 2 PiB."""

MAX_MIB = 16 * 1024 * 1024
"""16 TiB: more than any GPU has. Larger readings are invalid."""


MAX_GPUS = 1024
"""GPUs and MIG instances of one container; no node has as many."""

MAX_FAILURES = 1000
"""Limit of kills and XIDs of one container together."""


class UsageHistory(msgspec.Struct, frozen=True, gc=False):
    """One container of one pod over the look-back period.

    Attributes:
        workload: For example "Deployment/serve"; "Pod/name" if the pod has no owner.
        pod: The pod's name, or another unique id within the workload.
        image: The image as written in the pod; "" if unknown.
        start: Unix seconds of the start of the first bin.
        step_seconds: Length of a bin, at least 1; equal for all histories that are estimated together.
        peaks_mib: Largest GPU memory in use in each bin, MiB, or `GAP`.
        mean_mib: Mean GPU memory in use over the bins with samples; None if unknown.
        capacity_mib: Memory of the GPU or MIG instance that it ran on; None if unknown.
        compute_milli: 95th percentile of compute use, thousandths of the whole card; None if unknown.
        active_milli: Largest engine activity, thousandths; None without a profiling field.
            Near zero means idle. `GPU_UTIL` does not count.
        ooms: Unix seconds at which it was killed for memory, or ran out of GPU memory.
        xids: Unix seconds and code of each GPU error while it ran.
        gpus: GPUs and MIG instances that it had.
    """

    namespace: str
    workload: str
    container: str
    pod: str
    start: int
    step_seconds: int
    peaks_mib: array[int]
    image: str = ""
    mean_mib: int | None = None
    capacity_mib: int | None = None
    compute_milli: int | None = None
    active_milli: int | None = None
    ooms: tuple[int, ...] = ()
    xids: tuple[tuple[int, int], ...] = ()
    gpus: int = 1

    @property
    def workload_key(self) -> tuple[str, str, str]:
        """Namespace, workload and container: the key of a `UsageView`."""
        return self.namespace, self.workload, self.container

    @property
    def peak_mib(self) -> int:
        """Largest GPU memory in use; 0 without readings."""
        return max(0, int(self.readings().max())) if self.peaks_mib else 0

    @property
    def lacks_readings(self) -> bool:
        """True if no bin has a sample. Kills and XIDs count nevertheless."""
        return not self.peaks_mib or int(self.readings().max()) == GAP

    @property
    def end(self) -> int:
        """Unix seconds of the end of the last bin."""
        return self.start + self.step_seconds * len(self.peaks_mib)

    @property
    def observed_seconds(self) -> int:
        """Time with samples."""
        return self.step_seconds * int(np.count_nonzero(self.readings() > GAP))

    @property
    def observed_until(self) -> int:
        """Unix seconds of the end of the last bin with a sample; the start if there is none."""
        there = np.flatnonzero(self.readings() > GAP)
        return self.start + self.step_seconds * (int(there[-1]) + 1 if there.size else 0)

    def readings(self) -> NDArray[np.int32]:
        """Return `peaks_mib` as a numpy array, without a copy."""
        return np.frombuffer(self.peaks_mib, dtype=np.int32)


def count_pods(histories: Iterable[UsageHistory]) -> int:
    """Count the pods with readings; each has one history per container."""
    return len({(one.namespace, one.workload, one.pod) for one in histories if not one.lacks_readings})


Floats = NDArray[np.float64]

STARTS_PER_LENGTH = 12
"""Windows that start within the length of one. Fewer cost less but add noise."""

SAMPLED_ONE_IN = 3
"""The part of a window's bins that must have a sample is one divided by this number."""

HISTORIES_PER_BATCH = 32
"""Histories that are processed together: enough to vectorize, and only a few MiB."""

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
