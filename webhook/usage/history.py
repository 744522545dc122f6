"""What one container of one pod was measured to use of its GPU: the value between who reads use and who judges it.

Whoever fills it (Prometheus, a recorded file, a trace) brings time in equal bins. A bin without a sample is a gap and
not zero use; NaN, infinities and negative readings are gaps too. The worst GPU of the container counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import ceil

import msgspec
import numpy as np
from numpy.typing import NDArray

GAP = -1
"""The reading of a bin that nothing was seen in."""

MIB_TYPECODE = "i"
"""Type code of `UsageHistory.peaks_mib`: signed 32 bits reach 2 PiB, and 4 bytes a bin keep 20,000 containers small."""

MAX_MIB = 16 * 1024 * 1024
"""16 TiB: more than any GPU; a larger reading is a broken one."""


MAX_FAILURES = 1000
"""Kills and faults of one container together."""


class UsageHistory(msgspec.Struct, frozen=True, gc=False):
    """One container of one pod, over the time it was looked at.

    Attributes:
        workload: "Deployment/serve", as `UsageView` has it; "Pod/name" where nothing owns the pod.
        pod: The pod's name, or anything else that tells pods of one workload apart.
        image: As the pod names it; "" if unknown.
        start: Unix seconds of the start of the first bin.
        step_seconds: Length of a bin, at least 1; the same for all that are estimated together.
        peaks_mib: Largest GPU memory in use in each bin, MiB; `GAP` where nothing was seen.
        mean_mib: Mean GPU memory in use over the bins that were seen; None if unknown.
        capacity_mib: Memory of the GPU or MIG instance that it ran on; None if unknown.
        compute_milli: 95th percentile of compute use, thousandths of the whole card; None if unknown.
        active_milli: Largest engine activity that was seen, thousandths; None if no profiling field was there.
            Near zero is an idle GPU. `GPU_UTIL` does not count.
        ooms: Unix seconds at which it was killed for memory, or ran out of GPU memory.
        xids: Unix seconds and code of each GPU fault that was reported under it.
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

    @property
    def workload_key(self) -> tuple[str, str, str]:
        """Namespace, workload and container: what use is kept by."""
        return self.namespace, self.workload, self.container

    @property
    def peak_mib(self) -> int:
        """Largest GPU memory in use; 0 where nothing was seen."""
        return max(0, int(self.readings().max())) if self.peaks_mib else 0

    @property
    def lacks_readings(self) -> bool:
        """Was nothing of its memory seen? Its kills and faults count all the same."""
        return not self.peaks_mib or int(self.readings().max()) == GAP

    @property
    def end(self) -> int:
        """Unix seconds of the end of the last bin."""
        return self.start + self.step_seconds * len(self.peaks_mib)

    @property
    def observed_seconds(self) -> int:
        """Time that it was seen: a gap is none."""
        return self.step_seconds * int(np.count_nonzero(self.readings() > GAP))

    @property
    def observed_until(self) -> int:
        """Unix seconds of the end of the last bin that something was seen in; of its start where nothing was."""
        there = np.flatnonzero(self.readings() > GAP)
        return self.start + self.step_seconds * (int(there[-1]) + 1 if there.size else 0)

    def readings(self) -> NDArray[np.int32]:
        """`peaks_mib` as an array of numpy's, without a copy."""
        return np.frombuffer(self.peaks_mib, dtype=np.int32)


def peaks_from_readings(readings: Iterable[float | None]) -> array[int]:
    """Readings in MiB as `UsageHistory` holds them: rounded up, and a gap for whatever is no amount of memory."""
    return array(MIB_TYPECODE, [_mib_or_gap(reading) for reading in readings])


def _mib_or_gap(reading: float | None) -> int:
    if reading is None or not 0 <= reading <= MAX_MIB:  # false for NaN too
        return GAP
    return ceil(reading)


def count_pods(histories: Iterable[UsageHistory]) -> int:
    """How many pods something was seen of: each has a history for each of its containers."""
    return len({(one.namespace, one.workload, one.pod) for one in histories if not one.lacks_readings})
