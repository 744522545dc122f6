"""Answers large requests one at a time, and reads from all other connections in between.

A large request may take tens of milliseconds. If several were answered in one iteration of the event loop, a small one
would wait for all of them, and again for as many once the rest of it arrives.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

LONG_SECONDS = 0.005
"""After an answer that took longer, the next large request waits for `PAUSE_SECONDS`."""

PAUSE_SECONDS = 0.002
"""Time in which the head and the body of a small request, which take two iterations of the event loop, are read."""


class LargeRequests:
    """The large requests of one event loop that were received and not answered yet, the first one first."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, answer: Callable[[], None]) -> None:
        """Call `answer` once all others have been answered."""
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._answer_first)

    def _answer_first(self) -> None:
        start, loop = perf_counter(), asyncio.get_running_loop()
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting and perf_counter() - start > LONG_SECONDS:
                loop.call_later(PAUSE_SECONDS, self._answer_first)
            elif self._waiting:
                loop.call_soon(self._answer_first)
