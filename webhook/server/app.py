"""The server: everything it needs is handed in, it listens, and its few tasks keep it fresh."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from webhook.engine.decision_cache import DecisionCache
from webhook.server.admission_state import AdmissionState, Clock, Decide
from webhook.server.handlers import AdmissionHealth, admission_routes
from webhook.telemetry.telemetry import Telemetry
from webhook.web.connection_registry import ConnectionRegistry
from webhook.web.health import HealthCheck, HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.listener import POLL_SECONDS, SWEEP_SECONDS, BackgroundTask, HttpListener, Poll
from webhook.web.tls import ClientCertificateRules


@dataclass(slots=True)
class AdmissionServer:
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

    state: AdmissionState
    telemetry: Telemetry
    clock: Clock
    context: ssl.SSLContext
    limits: ServerLimits = field(default_factory=ServerLimits)
    polls: Sequence[Poll] = ()
    poll_seconds: float = POLL_SECONDS
    sweep_seconds: float = SWEEP_SECONDS
    decide: Decide = field(default_factory=lambda: DecisionCache().decide)
    client_rules: ClientCertificateRules | None = None
    tasks: Sequence[BackgroundTask] = ()
    health_checks: Sequence[HealthChecks] = ()
    registry: ConnectionRegistry = field(init=False)
    _listener: HttpListener | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        health = AdmissionHealth(self.state, lambda: self.registry.draining, self._extra_health_checks)
        paths = admission_routes(self.state, self.clock, self.decide, self.telemetry, health, self.limits.request_time)
        self.registry = ConnectionRegistry(
            paths, self.limits, self.telemetry.record_rejected_request, self.client_rules
        )
        self.telemetry.metrics.connections = lambda: len(self.registry.connections)
        self.telemetry.metrics.in_flight = lambda: self.registry.load.reading

    async def listen(self, host: str, port: int) -> int:
        """Start; gives the port, which the system chooses where 0 is asked for.

        Raises:
            NoParserError: aiohttp's C parser is missing.
            OSError: the address cannot be had.
        """
        self._listener = HttpListener(
            self.registry,
            self.context,
            self._record_task_crash,
            self.polls,
            self.tasks,
            self.poll_seconds,
            self.sweep_seconds,
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

    def _record_task_crash(self, error: Exception) -> None:
        self.telemetry.record_crash("task", "", error)

    def _extra_health_checks(self) -> list[HealthCheck]:
        return [check for checks in self.health_checks for check in checks()]
