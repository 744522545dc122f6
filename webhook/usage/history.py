"""Measured GPU usage of one container of one pod: the value between the readers of usage and the estimator.

Readers (Prometheus, a recorded file, a trace) divide time into equal bins. A bin without a sample is a gap, not zero
usage; NaN, infinite and negative readings are gaps too. Of several GPUs the one with the most memory in use counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

GAP = -1
"""The reading of a bin without samples."""

MIB_TYPECODE = "i"
"""Type code of `UsageHistory.peaks_mib`: 4 bytes per bin keep 20,000 containers small, and reach 2 PiB."""

MAX_MIB = 16 * 1024 * 1024
"""16 TiB: more than any GPU has. Larger readings are invalid."""


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
