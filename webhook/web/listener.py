"""What listens: connections come in, and a few tasks run beside them for as long as the process lives."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial

from aiohttp import http_parser

from webhook.web.connection import HttpConnection
from webhook.web.connection_registry import ConnectionRegistry

POLL_SECONDS = 2.0
"""A swapped ConfigMap is in use within two looks: well within 10 s."""

SWEEP_SECONDS = 0.25
BACKLOG = 1024
HANDSHAKE_SECONDS = 5.0
TLS_SHUTDOWN_SECONDS = 2.0
"""How long a client may take for its part of closing TLS."""

CLOSE_POLL_SECONDS = 0.01

RESTART_SECONDS = 5.0
"""The wait before a task that failed by a fault of ours begins anew."""

Poll = Callable[[], Awaitable[None]]
"""One look at something that may have changed."""

BackgroundTask = Callable[[], Coroutine[None, None, None]]
"""A task of its own, without an end."""

OnCrash = Callable[[Exception], None]
"""Told of a fault of ours that ended a task."""


class NoParserError(Exception):
    """aiohttp runs without its C parser, which is the one that this server is tested with."""


@dataclass(slots=True)
class HttpListener:
    """Something that is not listening yet.

    Attributes:
        context: TLS; None for plain HTTP, which only health and metrics are ever served by.
        crashed: Told of looks and companions that fail; they begin anew after a while.
        looks: Called every `poll` seconds.
        companions: Run beside it for as long as it lives.
        poll: Seconds between two looks.
        sweep: Seconds between two looks at connections whose time is up.
    """

    registry: ConnectionRegistry
    context: ssl.SSLContext | None
    on_crash: OnCrash
    polls: Sequence[Poll] = ()
    tasks: Sequence[BackgroundTask] = ()
    poll_seconds: float = POLL_SECONDS
    sweep_seconds: float = SWEEP_SECONDS
    _running: list[asyncio.Task[None]] = field(init=False, default_factory=list)
    _server: asyncio.Server | None = field(init=False, default=None)

    async def listen(self, host: str, port: int) -> int:
        """Start; gives the port, which the system chooses where 0 is asked for.

        Raises:
            NoParserError: the C parser is missing.
            OSError: the address cannot be had.
        """
        require_c_parser()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self.registry, loop),
            host,
            port,
            backlog=BACKLOG,
            ssl=self.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self.context else None,
            ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS if self.context else None,
        )
        lasting: list[BackgroundTask] = [
            partial(_poll_forever, self.sweep_seconds, self._close_expired),
            *(partial(_poll_forever, self.poll_seconds, look) for look in self.polls),
            *self.tasks,
        ]
        self._running = [loop.create_task(_restart_on_error(companion, self.on_crash)) for companion in lasting]
        return int(self._server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close every connection and end the tasks. Clients get a moment for their part of the goodbye."""
        self.stop_listening()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self.registry.close_all()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.registry.limits.close_time
        while self.registry.connections and loop.time() < end:
            await asyncio.sleep(CLOSE_POLL_SECONDS)
        self.registry.abort_all()
        await asyncio.sleep(CLOSE_POLL_SECONDS)

    async def _close_expired(self) -> None:
        self.registry.close_expired(asyncio.get_running_loop().time())


def require_c_parser() -> None:
    """Refuse to start on aiohttp's pure Python parser: the two have read some requests differently before.

    Raises:
        NoParserError: it is not there.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise NoParserError("aiohttp's C parser is missing: install an aiohttp wheel, and unset AIOHTTP_NO_EXTENSIONS")


async def _restart_on_error(companion: BackgroundTask, crashed: OnCrash) -> None:
    """Begin anew after a fault: one that ended a task for good would be noticed when it is too late."""
    while True:
        try:
            return await companion()
        except Exception as error:
            crashed(error)
        await asyncio.sleep(RESTART_SECONDS)


async def _poll_forever(seconds: float, look: Poll) -> None:
    while True:
        await asyncio.sleep(seconds)
        await look()
