"""The server: everything it needs is handed in, it listens, and its few tasks keep it fresh."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from aiohttp import http_parser

from webhook.engine.remembering import Memory
from webhook.server.clients import Clients
from webhook.server.connection import Connection
from webhook.server.handlers import routes
from webhook.server.health import Check, Checks, Health
from webhook.server.limits import Limits
from webhook.server.lobby import Lobby
from webhook.server.reloading import POLL_SECONDS
from webhook.server.world import Clock, Decide, World
from webhook.telemetry.telemetry import Telemetry

SWEEP_SECONDS = 0.25
BACKLOG = 1024
HANDSHAKE_SECONDS = 5.0
GOODBYE_SECONDS = 2.0
"""How long a client may take for its part of closing TLS."""

STEP_SECONDS = 0.01

Look = Callable[[], Awaitable[None]]
"""One look at something that may have changed."""

Companion = Callable[[], Coroutine[None, None, None]]
"""A task of its own, without an end."""


class NoParserError(Exception):
    """aiohttp runs without its C parser, which is the one that this server is tested with."""


@dataclass(slots=True)
class Server:
    """A server that is not listening yet.

    Attributes:
        context: TLS; there is no server without.
        looks: Called every `poll` seconds.
        sweep: Seconds between two looks at connections whose time is up.
        companions: Run beside it for as long as it lives.
        checks: More lines of `/readyz?verbose`; some of them may say that the process is not ready.
        clients: Who may ask for a verdict, as the context verifies them; None: anyone.
        decide: What judges; always the engine's `decide` with a memory, but in tests of the edge.
    """

    world: World
    telemetry: Telemetry
    clock: Clock
    context: ssl.SSLContext
    limits: Limits = field(default_factory=Limits)
    looks: Sequence[Look] = ()
    poll: float = POLL_SECONDS
    sweep: float = SWEEP_SECONDS
    decide: Decide = field(default_factory=lambda: Memory().decide)
    clients: Clients | None = None
    companions: Sequence[Companion] = ()
    checks: Sequence[Checks] = ()
    lobby: Lobby = field(init=False)
    _tasks: list[asyncio.Task[None]] = field(init=False, default_factory=list)
    _listening: asyncio.Server | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        health = Health(self.world, lambda: self.lobby.draining, self._more_checks)
        paths = routes(self.world, self.clock, self.decide, self.telemetry, health, self.limits.request_time)
        self.lobby = Lobby(paths, self.limits, self.telemetry.refused, self.clients)
        self.telemetry.counts.connections = lambda: len(self.lobby.guests)
        self.telemetry.counts.in_flight = lambda: self.lobby.load.reading

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
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=GOODBYE_SECONDS,
        )
        self._tasks = [
            loop.create_task(_every(self.sweep, self._sweep)),
            *(loop.create_task(_every(self.poll, look)) for look in self.looks),
            *(loop.create_task(companion()) for companion in self.companions),
        ]
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
        end = loop.time() + self.limits.close_time
        while self.lobby.guests and loop.time() < end:
            await asyncio.sleep(STEP_SECONDS)
        self.lobby.abort_all()
        await asyncio.sleep(STEP_SECONDS)

    def _more_checks(self) -> list[Check]:
        return [check for checks in self.checks for check in checks()]

    async def _sweep(self) -> None:
        self.lobby.sweep(asyncio.get_running_loop().time())


def require_c_parser() -> None:
    """Refuse to start on aiohttp's pure Python parser: the two have read some requests differently before.

    Raises:
        NoParserError: it is not there.
    """
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise NoParserError("aiohttp's C parser is missing: install an aiohttp wheel, and unset AIOHTTP_NO_EXTENSIONS")


async def _every(seconds: float, look: Look) -> None:
    while True:
        await asyncio.sleep(seconds)
        await look()
