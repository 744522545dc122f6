"""The server: everything it needs is handed in, it listens, and its few tasks keep it fresh."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from webhook.engine.remembering import Memory
from webhook.server.handlers import routes
from webhook.server.health import Health
from webhook.server.world import Clock, Decide, World
from webhook.telemetry.telemetry import Telemetry
from webhook.web.checks import Check, Checks
from webhook.web.clients import Clients
from webhook.web.limits import Limits
from webhook.web.listening import POLL_SECONDS, SWEEP_SECONDS, Companion, Listener, Look
from webhook.web.lobby import Lobby


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
    _listener: Listener | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        health = Health(self.world, lambda: self.lobby.draining, self._more_checks)
        paths = routes(self.world, self.clock, self.decide, self.telemetry, health, self.limits.request_time)
        self.lobby = Lobby(paths, self.limits, self.telemetry.refused, self.clients)
        self.telemetry.counts.connections = lambda: len(self.lobby.guests)
        self.telemetry.counts.in_flight = lambda: self.lobby.load.reading

    async def listen(self, host: str, port: int) -> int:
        """Start; gives the port, which the system chooses where 0 is asked for.

        Raises:
            NoParserError: aiohttp's C parser is missing.
            OSError: the address cannot be had.
        """
        self._listener = Listener(
            self.lobby, self.context, self._crashed, self.looks, self.companions, self.poll, self.sweep
        )
        return await self._listener.listen(host, port)

    def stop_listening(self) -> None:
        """Take no more connections."""
        if self._listener is not None:
            self._listener.stop_listening()

    async def close(self) -> None:
        """Close every connection and end the tasks."""
        if self._listener is not None:
            await self._listener.close()

    def _crashed(self, error: Exception) -> None:
        self.telemetry.crashed("task", "", error)

    def _more_checks(self) -> list[Check]:
        return [check for checks in self.checks for check in checks()]
