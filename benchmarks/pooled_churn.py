"""Share of the churn's pods that would wait in a cluster without fragmentation: one pool of GPUs.

    python -m benchmarks.pooled_churn --traces ../shared/traces/openb

The pool has the capacity that any placement can allocate at most (the bound in benchmarks/openb_results.py). The pod
that has waited longest among those that fit starts first, as in benchmarks/churn.py, with the same pods. A rule under
which fewer pods wait than here has not placed them better: it makes the large ones wait.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import deque
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from benchmarks.churn import LOADS, SEEDS, WARM, Pod, part_of, stream
from benchmarks.openb import WHERE, traces
from benchmarks.openb_results import KNOWN


class Pool:
    """GPUs without nodes, in thousandths."""

    def __init__(self, milli: float) -> None:
        self._free = milli
        self._ends: list[tuple[float, int, int]] = []
        self._waiting: dict[int, deque[tuple[int, Pod]]] = {}
        self._number = 0

    def arrive(self, pod: Pod) -> bool:
        """Start a pod; return False if it has to wait."""
        while self._ends and self._ends[0][0] <= pod.arrives:
            self._end()
        self._number += 1
        if pod.need.total_milli <= self._free:
            self._start(pod.arrives, pod)
            return True
        self._waiting.setdefault(pod.need.total_milli, deque()).append((self._number, pod))
        return False

    def _start(self, now: float, pod: Pod) -> None:
        self._free -= pod.need.total_milli
        self._number += 1
        heapq.heappush(self._ends, (now + pod.lifetime, self._number, pod.need.total_milli))

    def _end(self) -> None:
        now, _, milli = heapq.heappop(self._ends)
        self._free += milli
        while fitting := [size for size, queue in self._waiting.items() if queue and size <= self._free]:
            _, pod = self._waiting[min(fitting, key=lambda size: self._waiting[size][0][0])].popleft()
            self._start(now, pod)


def waited(pods: list[Pod], milli: float) -> float:
    """Return the percentage of pods that had to wait."""
    pool = Pool(milli)
    had = [not pool.arrive(pod) for pod in pods]
    return 100 * fmean(wait for wait, pod in zip(had, pods, strict=True) if pod.arrives > WARM)


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help=f"folder of the openb lists ({WHERE})")
    parser.add_argument("--loads", nargs="*", type=int, default=LOADS, help="percent (default: 80 90 95)")
    parser.add_argument("--part", type=int, default=1, help="as large as every Nth node (default: 1, all)")
    flags = parser.parse_args()
    known = part_of(traces(flags.traces), flags.part)
    for name, needs in known.lists.items():
        if name not in KNOWN:
            continue
        most = known.capacity.total_milli * KNOWN[name].bound / 100
        for load in flags.loads:
            runs = [
                waited(stream(needs, known.capacity.total_milli, load, np.random.default_rng(seed)), most)
                for seed in SEEDS
            ]
            print(f"{name}, {load} %: {fmean(runs):.2f} ± {stdev(runs):.2f} % of the pods had to wait", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
