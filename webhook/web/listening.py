"""What listens: connections come in, and a few tasks run beside them for as long as the process lives."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial

from aiohttp import http_parser

from webhook.web.connection import Connection
from webhook.web.lobby import Lobby

POLL_SECONDS = 2.0
"""A swapped ConfigMap is in use within two looks: well within 10 s."""

SWEEP_SECONDS = 0.25
BACKLOG = 1024
HANDSHAKE_SECONDS = 5.0
GOODBYE_SECONDS = 2.0
"""How long a client may take for its part of closing TLS."""

STEP_SECONDS = 0.01

AGAIN_SECONDS = 5.0
"""The wait before a task that failed by a fault of ours begins anew."""

Look = Callable[[], Awaitable[None]]
"""One look at something that may have changed."""

Companion = Callable[[], Coroutine[None, None, None]]
"""A task of its own, without an end."""

Crashed = Callable[[Exception], None]
"""Told of a fault of ours that ended a task."""


class NoParserError(Exception):
    """aiohttp runs without its C parser, which is the one that this server is tested with."""


@dataclass(slots=True)
class Listener:
    """Something that is not listening yet.

    Attributes:
        context: TLS; None for plain HTTP, which only health and metrics are ever served by.
        crashed: Told of looks and companions that fail; they begin anew after a while.
        looks: Called every `poll` seconds.
        companions: Run beside it for as long as it lives.
        poll: Seconds between two looks.
        sweep: Seconds between two looks at connections whose time is up.
    """

    lobby: Lobby
    context: ssl.SSLContext | None
    crashed: Crashed
    looks: Sequence[Look] = ()
    companions: Sequence[Companion] = ()
    poll: float = POLL_SECONDS
    sweep: float = SWEEP_SECONDS
    _tasks: list[asyncio.Task[None]] = field(init=False, default_factory=list)
    _listening: asyncio.Server | None = field(init=False, default=None)

    async def listen(self, host: str, port: int) -> int:
        """Start; gives the port, which the system chooses where 0 is asked for.

        Raises:
            NoParserError: the C parser is missing.
            OSError: the address cannot be had.
        """
        require_c_parser()
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            lambda: Connection(self.lobby, loop),
            host,
            port,
            backlog=BACKLOG,
            ssl=self.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if self.context else None,
            ssl_shutdown_timeout=GOODBYE_SECONDS if self.context else None,
        )
        lasting: list[Companion] = [
            partial(_every, self.sweep, self._sweep),
            *(partial(_every, self.poll, look) for look in self.looks),
            *self.companions,
        ]
        self._tasks = [loop.create_task(_last(companion, self.crashed)) for companion in lasting]
        return int(self._listening.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._listening is not None:
            self._listening.close()

    async def close(self) -> None:
        """Close every connection and end the tasks. Clients get a moment for their part of the goodbye."""
        self.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.lobby.close_all()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.lobby.limits.close_time
        while self.lobby.guests and loop.time() < end:
            await asyncio.sleep(STEP_SECONDS)
        self.lobby.abort_all()
        await asyncio.sleep(STEP_SECONDS)

    async def _sweep(self) -> None:
        self.lobby.sweep(asyncio.get_running_loop().time())


def require_c_parser() -> None:
    """Refuse to start on aiohttp's pure Python parser: the two have read some requests differently before.

    Raises:
        NoParserError: it is not there.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise NoParserError("aiohttp's C parser is missing: install an aiohttp wheel, and unset AIOHTTP_NO_EXTENSIONS")


async def _last(companion: Companion, crashed: Crashed) -> None:
    """Begin anew after a fault: one that ended a task for good would be noticed when it is too late."""
    while True:
        try:
            return await companion()
        except Exception as error:
            crashed(error)
        await asyncio.sleep(AGAIN_SECONDS)


async def _every(seconds: float, look: Look) -> None:
    while True:
        await asyncio.sleep(seconds)
        await look()
