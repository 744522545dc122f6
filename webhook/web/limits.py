"""The limits of a server and its current load, fairness between client addresses, and the return of free memory.

Stops a computation on the event loop that takes too much CPU time, so that other requests are answered.

A timer of the process's CPU time interrupts the main thread every few milliseconds of work, and never while the process
is idle. Once a guarded computation has used its time, the interrupt raises `CpuLimitError` in it. So a request costs
one reading of the clock, and the computation itself needs no checks.

One operation of the interpreter cannot be interrupted, such as decoding a body; these take time in proportion to it.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import re
import signal
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter, thread_time
from types import FrameType
from typing import Generic, TypeVar
from urllib.parse import parse_qsl

LARGE_BODY = 16 * 1024
"""Bytes. Smaller bodies leave no holes that others do not fill."""

LARGE_BODIES_BYTES = 1024 * 1024
"""Bytes of large bodies after which memory is returned."""


RETURN_SECONDS = 60.0
"""After this time, memory is returned in any case: what a burst or a list of all objects has used does not stay."""


class FreeMemory:
    """Counts large bodies, and returns free memory after `LARGE_BODIES_BYTES` of them, and every minute."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def count_body(self, size: int) -> None:
        """Count a body of more than `LARGE_BODY` bytes."""
        self._bytes += size

    async def return_if_large(self) -> None:
        """Return what large bodies have left: about 1 ms of CPU, so this is called between requests."""
        if self._bytes > LARGE_BODIES_BYTES:
            await self.return_all()

    async def return_all(self) -> None:
        """Return what anything has left."""
        self._bytes = 0
        return_free_memory()


def return_free_memory() -> None:
    """Return all whole free pages of the heap to the system, where the C library can."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


MIB = 1024 * 1024

LONG_SECONDS = 0.005
"""After an answer that took longer, the next large request waits for `PAUSE_SECONDS`."""

PAUSE_SECONDS = 0.002
"""Time to read the head and the body of a small request, in two iterations of the event loop."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one process. Times in seconds.

    Attributes:
        body: Bytes of one request body: two objects of at most 3 MiB each, and 1 MiB for the rest.
        connections: Open connections. An eighth of them is for clients that are not trusted (see
            `webhook.web.connection`), the others for those that are. A further one replaces one of its own kind.
        handshakes: TLS handshakes that have started, about 60 KB each. An API server on a busy machine starts up to 200
            before it continues the first: it opens a connection for each write that it evaluates at once.
        handshake_time: From accepting a connection to its first byte, and from there to the end of the handshake.
        in_flight: Requests whose body is being received, and also requests evaluated in one iteration of the event
            loop, that is, how many were waiting at the same time, and large requests that wait for their turn. Further
            ones get 503. Only uvloop's clock shows where an iteration ends: asyncio's own loop evaluates all waiting
            requests.
        buffered: Bytes of large bodies that are not answered, and of what TLS keeps (see `tls_memory`), all connections
            together. Further bodies get 503; above half as much again, connections are closed without a response,
            because waiting for a client to read its response takes memory too.
        retained: Bytes that TLS keeps. Above it, a connection that had a large body is closed after its response, and
            the client connects again for its next request. Closing each of them would cost every large review of an
            API server a handshake; a few MiB are enough for its idle connections, of which it keeps 25 per webhook.
        request_time: From the first byte of a request to the last, and for a client that may send no reviews to start.
        keepalive: An idle connection. API servers close theirs after 90 s; if we closed first, a call would fail. They
            also open connections for requests that another connection then takes, so it may not have had a request.
        close_time: For a client to read its last response; a quarter of it if TLS keeps memory for it.
        stall_time: For a client that does not read its responses.
        chunk_memory: Half of the memory that the parser may use before a body counts as split into too many chunks.
    """

    body: int = 7 * MIB
    connections: int = 2000
    handshakes: int = 256
    handshake_time: float = 5.0
    in_flight: int = 256
    buffered: int = 32 * MIB
    retained: int = 16 * MIB
    request_time: float = 5.0
    keepalive: float = 150.0
    close_time: float = 2.0
    stall_time: float = 10.0
    chunk_memory: int = 8 * MIB

    @property
    def untrusted(self) -> int:
        """Open connections of clients that are not trusted."""
        return -(-self.connections // 8)

    @property
    def trusted(self) -> int:
        """Open connections of trusted clients."""
        return max(1, self.connections - self.untrusted)

    @property
    def pending(self) -> int:
        """Accepted connections whose TLS handshake is not complete, besides the open ones."""
        return -(-self.connections // 2)


class LargeRequests:
    """The large requests of one event loop that were received and not answered yet, the first one first.

    Each may take tens of milliseconds. One is answered at a time, and all other connections are read in between: if
    several were answered in one iteration, a small request would wait for all of them, and again for as many once the
    rest of it arrives.
    """

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


def tls_memory(largest_read: int) -> int:
    """Return the bytes that TLS keeps of the most that was read at once, for as long as a connection is open.

    uvloop reads into a buffer of the connection, whose pages stay, and copies it into one of OpenSSL, which grows by a
    third more than it must and never shrinks.

    >>> tls_memory(300_000)
    700000
    """
    return largest_read * 7 // 3


class ServerLoad:
    """The current load of one event loop.

    Attributes:
        reading: Requests whose body is being received.
        buffered: Bytes of bodies that are not answered.
        retained: Bytes that TLS keeps of large reads, also of those that were answered.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.reading = 0
        self.buffered = 0
        self.retained = 0
        self.free_memory = FreeMemory()
        self.large_requests = LargeRequests()
        self._iteration = 0.0
        self._answered = 0

    def can_read_body(self) -> bool:
        """Return whether one more body may be received in pieces."""
        return self.reading < self._limits.in_flight

    @property
    def is_full(self) -> bool:
        """True if no more of a large body may be received."""
        return self.buffered + self.retained > self._limits.buffered

    @property
    def is_overfull(self) -> bool:
        """True if a connection with a large body must be closed at once."""
        return (self.buffered + self.retained) * 2 > self._limits.buffered * 3

    def can_answer(self, now: float) -> bool:
        """Count a request of this iteration of the event loop; False if too many were waiting.

        Args:
            now: The loop's time. uvloop does not advance it during an iteration; on asyncio's own loop, where the agent
                answers probes, each request counts as an iteration.
        """
        if now != self._iteration:
            self._iteration = now
            self._answered = 0
        self._answered += 1
        return self._answered <= self._limits.in_flight and len(self.large_requests) < self._limits.in_flight


_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ns|us|µs|ms|s|m|h))+", re.ASCII)
_PART = re.compile(r"([0-9.]+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@lru_cache(maxsize=64)
def request_deadline(query: str, maximum: float) -> float:
    """Return the seconds of `?timeout=`, a Go duration, at most `maximum`.

    >>> request_deadline("timeout=1m30s", 200.0), request_deadline("timeout=soon", 5.0)
    (90.0, 5.0)
    """
    text = dict(parse_qsl(query[:1024])).get("timeout", "")
    if not _DURATION.fullmatch(text):
        return maximum
    wanted = sum(float(amount) * _SECONDS[unit] for amount, unit in _PART.findall(text))
    return min(wanted, maximum) if wanted > 0 else maximum


Item = TypeVar("Item", bound=Hashable)


class ClientQueues(Generic[Item]):
    """Items by the address of their client, in the order in which they were last used."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[Item, None]] = {}
        self._used: dict[Item, None] = {}

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._used)

    def add(self, address: str, item: Item) -> None:
        """Add an item as the one used last."""
        self._queues.setdefault(address, {})[item] = None
        self._used[item] = None

    def discard(self, address: str, item: Item) -> bool:
        """Remove an item; return whether it was there."""
        queue = self._queues.get(address, {})
        if item not in queue:
            return False
        del queue[item], self._used[item]
        if not queue:
            del self._queues[address]
        return True

    def surplus(self) -> Iterator[Item]:
        """Return the items to give up for others, the longest unused first: those of an address that has over half.

        If none has, those of all addresses: while an attacker has many, the API server may have the most connections of
        one address, but uses them more often.
        """
        largest = max(self._queues.values(), key=len, default={})
        return iter(largest if len(largest) * 2 > len(self) else self._used)

    def pop_next(self) -> Item:
        """Remove and return the longest waiting item of the address whose turn it is; every address gets its turn."""
        address = next(iter(self._queues))
        queue = self._queues.pop(address)
        item = next(iter(queue))
        del queue[item], self._used[item]
        if queue:
            self._queues[address] = queue
        return item


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
