"""Runs a serving process: its socket, background tasks, garbage collection, limit of open files, and graceful shutdown.

Shutdown: report not ready, keep serving for a while, finish open requests, and exit with 0. API servers send requests
over pooled connections until the change of endpoints has reached them. So the process keeps serving, closes each
connection after its response, and exits afterwards. A pooled connection that is not in use is left to its client: if we
closed it while the client sends a request, that call would fail, as no client repeats a POST.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from aiohttp import http_parser

from webhook.telemetry.logs import StructuredLogger
from webhook.web.acceptor import ConnectionAcceptor
from webhook.web.connection import ConnectionRegistry
from webhook.web.limits import RETURN_SECONDS
from webhook.web.tls import ServerTls

POLL_SECONDS = 2.0
"""A changed ConfigMap is in use after two polls, well within 10 s."""

SWEEP_SECONDS = 0.25
CLOSE_POLL_SECONDS = 0.01

RESTART_SECONDS = 5.0
"""The delay before a task that raised an exception is restarted."""

Poll = Callable[[], Awaitable[None]]
"""Checks once whether something has changed."""

BackgroundTask = Callable[[], Coroutine[None, None, None]]
"""A task that runs until it is cancelled."""

OnCrash = Callable[[Exception], None]
"""Called with an unexpected exception of a task."""


class NoParserError(Exception):
    """aiohttp's C parser, with which the server is tested, is missing."""


@dataclass(slots=True)
class HttpListener:
    """A server socket and its background tasks; call `listen` to start.

    Attributes:
        tls: TLS; None for plain HTTP, only for health and metrics.
        on_crash: Called when a poll or task raises an exception; it is restarted after a delay.
        polls: Called every `poll_seconds`.
        tasks: Run until the server closes.
        sweep_seconds: The interval for closing expired connections.
        before_listen: Awaited in order before a connection is accepted; they must end in seconds and raise nothing.
    """

    registry: ConnectionRegistry
    tls: ServerTls | None
    on_crash: OnCrash
    polls: Sequence[Poll] = ()
    tasks: Sequence[BackgroundTask] = ()
    poll_seconds: float = POLL_SECONDS
    sweep_seconds: float = SWEEP_SECONDS
    before_listen: Sequence[Poll] = field(init=False, default=())
    _running: list[asyncio.Task[None]] = field(init=False, default_factory=list)
    _acceptor: ConnectionAcceptor | None = field(init=False, default=None)

    async def listen(self, host: str, port: int) -> int:
        """Start, and return the port; 0 lets the system choose one.

        Raises:
            NoParserError: aiohttp's C parser is missing.
            OSError: the address cannot be bound.
        """
        require_c_parser()
        for prepare in self.before_listen:
            await prepare()
        loop = asyncio.get_running_loop()
        self._acceptor = acceptor = ConnectionAcceptor(self.registry, self.tls, loop)
        port = await acceptor.listen(host, port)
        tasks: list[BackgroundTask] = [
            partial(_poll_forever, self.sweep_seconds, self.registry.close_expired),
            partial(_poll_forever, self.sweep_seconds, acceptor.close_expired),
            partial(_poll_forever, self.sweep_seconds, self.registry.load.free_memory.return_if_large),
            partial(_poll_forever, RETURN_SECONDS, self.registry.load.free_memory.return_all),
            *(partial(_poll_forever, self.poll_seconds, poll) for poll in self.polls),
            *self.tasks,
        ]
        self._running = [loop.create_task(_restart_on_error(task, self.on_crash)) for task in tasks]
        return port

    @property
    def has_new_connections(self) -> bool:
        """True while there is a connection without a request so far."""
        return bool(self.registry.untrusted) or (self._acceptor is not None and bool(self._acceptor.pending))

    def stop_listening(self) -> None:
        """Accept no more connections; those that clients have opened are served."""
        if self._acceptor is not None:
            self._acceptor.stop_listening()

    async def close(self) -> None:
        """Cancel the tasks and close all connections; clients get a moment to close TLS."""
        self.stop_listening()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if self._acceptor is not None:
            await self._acceptor.close()
        for connection in self.registry.connections:
            connection.close_after_write()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.registry.limits.close_time
        while self.registry.connections and loop.time() < end:
            await asyncio.sleep(CLOSE_POLL_SECONDS)
        for connection in self.registry.connections:
            connection.abort()
        await asyncio.sleep(CLOSE_POLL_SECONDS)


def require_c_parser() -> None:
    """Check that aiohttp does not use its pure Python parser: the two have parsed some requests differently before.

    Raises:
        NoParserError: the C parser is missing.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise NoParserError("aiohttp's C parser is missing: install an aiohttp wheel, and unset AIOHTTP_NO_EXTENSIONS")


async def _restart_on_error(task: BackgroundTask, on_crash: OnCrash) -> None:
    """Restart a task after an exception: a task that stays stopped would be noticed too late."""
    while True:
        try:
            return await task()
        except Exception as error:
            on_crash(error)
        await asyncio.sleep(RESTART_SECONDS)


async def _poll_forever(seconds: float, poll: Poll) -> None:
    while True:
        await asyncio.sleep(seconds)
        await poll()


CLIENT_IDLE_SECONDS = 95.0
"""From the signal on, for clients to close connections that they no longer use: API servers do after 90 s."""

FINISH_SECONDS = 6.0
"""For requests that have started: the longest request time and a second."""

DRAIN_POLL_SECONDS = 0.02

YOUNG_GENERATION_THRESHOLD = 50_000
"""Allocations between two collections of young objects: a few hundred requests."""

SPARE_DESCRIPTORS = 64
"""For the listening socket, the event loop, and files that are read while all connections are open."""


async def serve_until_signal(server: HttpListener, drain_seconds: float, log: StructuredLogger) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal stops draining."""
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await stop.wait()
    log.info("shutting down", drain_seconds=drain_seconds)
    await drain_connections(server, drain_seconds, stop_now)
    log.info("stopped")


async def drain_connections(server: HttpListener, seconds: float, stop_now: asyncio.Event) -> None:
    """Report not ready, serve for `seconds` more and while clients keep connections, finish open requests, and close.

    With no seconds, idle connections are closed at once.
    """
    registry, time = server.registry, asyncio.get_running_loop().time
    registry.draining = True
    idle_end = time() + CLIENT_IDLE_SECONDS
    with suppress(TimeoutError):
        await asyncio.wait_for(stop_now.wait(), seconds)
    while seconds and registry.connections and not stop_now.is_set() and time() < idle_end:
        await asyncio.sleep(DRAIN_POLL_SECONDS)
    server.stop_listening()
    end = time() + FINISH_SECONDS
    while (registry.busy or (seconds and server.has_new_connections)) and not stop_now.is_set() and time() < end:
        await asyncio.sleep(DRAIN_POLL_SECONDS)
    await server.close()


def freeze_and_tune_gc() -> None:
    """Exclude all current objects from collection, and collect young ones seldom. Call it when everything is loaded.

    Loaded objects live as long as the process, and a request leaves hardly any reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_GENERATION_THRESHOLD, 20, 100)


def raise_descriptor_limit(connections: int) -> int:
    """Raise the soft limit of open files for a number of connections; return how many are possible."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft == RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == RLIM_INFINITY else min(wanted, hard)
    setrlimit(RLIMIT_NOFILE, (limit, hard))
    return max(1, limit - SPARE_DESCRIPTORS)
