"""CPU time as an idle machine would take it, so that a bound holds on a slow, busy or traced one as well."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from time import process_time, thread_time
from types import TracebackType
from typing import Self

SQUARES = 20_000
IDLE_SECONDS = 0.0008
"""CPU time of the squares on an idle core of a server."""


class CpuTimer:
    """Measures the CPU time of a block, without garbage collections, whose time is that of earlier tests' objects.

    `seconds` is divided by how much longer than on an idle machine a fixed loop takes before and after the block: other
    processes slow down both, as they share the core and its caches.
    """

    seconds: float

    def __enter__(self) -> Self:
        self._collects = gc.isenabled()
        gc.disable()
        self._before, self._start = slowness(), process_time()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        spent = process_time() - self._start
        self.seconds = spent / max(self._before, slowness())
        if self._collects:
            gc.enable()


def slowness() -> float:
    """Return how many times as long as on an idle machine a loop takes now, at least 1: no bound is tightened."""
    return max(1.0, sorted(_loop_seconds() for _ in range(5))[2] / IDLE_SECONDS)


def cpu_seconds_of_processes(call: Callable[[], object]) -> float:
    """Return the CPU time of the processes that a call starts and waits for, as this machine takes it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _loop_seconds() -> float:
    start = thread_time()  # other threads do not slow it down
    sum(number * number for number in range(SQUARES))
    return thread_time() - start
