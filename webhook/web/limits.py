"""The bounds of the server, and how much of them is in use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one process takes on. Times in seconds.

    Attributes:
        body: Bytes of one request body: two objects of at most 3 MiB each, and 1 MiB for the rest.
        connections: Open connections; one more is closed as soon as it is made.
        in_flight: Requests whose body is still coming, and also requests judged in one turn of the event loop,
            which is how many were waiting at one time. Beyond it: 503, try again. Turns are known by uvloop's time
            only: asyncio's own loop judges whatever was waiting.
        buffered: Bytes of bodies that are still coming, all connections together.
        request_time: From the first byte of a request to its last, however slowly they drip.
        keepalive: An idle connection. API servers drop theirs after 90 s, and one that we drop first costs them
            a failed call.
        close_time: For a client to take its last answer.
        stall_time: For a client that does not take its answers.
        chunk_memory: Half of what the parser may hold before it calls a body too finely chopped.
    """

    body: int = 7 * MIB
    connections: int = 2000
    in_flight: int = 256
    buffered: int = 64 * MIB
    request_time: float = 5.0
    keepalive: float = 150.0
    close_time: float = 2.0
    stall_time: float = 10.0
    chunk_memory: int = 8 * MIB


class ServerLoad:
    """How much is going on, in one event loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.reading = 0
        self.buffered = 0
        self._turn = 0.0
        self._answered_in_turn = 0

    def can_read_body(self) -> bool:
        """Is there room for one more body that comes in pieces?"""
        return self.reading < self._limits.in_flight and self.buffered < self._limits.buffered

    def can_answer(self, turn: float) -> bool:
        """Count one more request of this turn of the loop; False where too many were waiting already.

        Args:
            turn: The loop's time. It stands still during a turn of uvloop; on asyncio's own loop, where the agent
                answers probes, each request is a turn of its own.
        """
        if turn != self._turn:
            self._turn = turn
            self._answered_in_turn = 0
        self._answered_in_turn += 1
        return self._answered_in_turn <= self._limits.in_flight


_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@lru_cache(maxsize=64)
def request_deadline(query: str, most: float) -> float:
    """The time a request allows itself in `?timeout=`, a Go duration, and never more than `most` seconds.

    >>> deadline("timeout=1m30s", 200.0), deadline("timeout=3s", 5.0), deadline("timeout=soon", 5.0)
    (90.0, 3.0, 5.0)
    """
    text = dict(parse_qsl(query[:1024])).get("timeout", "")
    if not _DURATION.fullmatch(text):
        return most
    wanted = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    return min(wanted, most) if wanted > 0 else most
