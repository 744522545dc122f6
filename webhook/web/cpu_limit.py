"""Stops a computation on the event loop that takes too much CPU time, so that other requests are answered.

A timer of the process's CPU time interrupts the main thread every few milliseconds of work, and never while the process
is idle. Once a guarded computation has used its time, the interrupt raises `CpuLimitError` in it. So a request costs
one reading of the clock, and the computation itself needs no checks.

One operation of the interpreter cannot be interrupted, such as decoding a body; these take time in proportion to it.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from types import FrameType
from typing import TypeVar

MAX_CPU_SECONDS = 0.045
"""CPU time of a review, after which it is stopped."""

TICK_SECONDS = 0.004
"""CPU time between two interrupts; the system rounds it up to its own ticks."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class CpuLimitError(BaseException):
    """A guarded computation was stopped. No handler of `Exception` must catch it and go on."""


class CpuLimit:
    """Guards computations of the main thread, one at a time. Nothing is stopped unless it is `installed`."""

    def __init__(self, seconds: float = MAX_CPU_SECONDS) -> None:
        self.seconds = seconds
        self._end = math.inf

    def __str__(self) -> str:
        """Return the time, as messages name it."""
        return f"{self.seconds * 1000:.0f} ms of CPU"

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Run the timer until the block ends. Call it in the main thread, for one limit at a time."""
        before = signal.signal(signal.SIGPROF, self._on_tick)
        signal.setitimer(signal.ITIMER_PROF, TICK_SECONDS, TICK_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def run(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        """Return `function(argument)`.

        Raises:
            CpuLimitError: it took too long; what it did until then is done.
        """
        self._end = thread_time() + self.seconds
        try:
            return function(argument)
        finally:
            self._end = math.inf

    def lift(self) -> None:
        """Let the rest of the current computation take any time, because it must not be stopped halfway."""
        self._end = math.inf

    def _on_tick(self, _number: int, frame: FrameType | None) -> None:
        """Raise if the time is over, and again at the next tick if a destructor ignored it."""
        if thread_time() > self._end and frame is not None and frame.f_code is not _RUN:
            raise CpuLimitError


_RUN = CpuLimit.run.__code__
