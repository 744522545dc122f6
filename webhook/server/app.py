"""The webhook server: connects its parts, listens, and runs the tasks that keep its state up to date."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field

from webhook.engine.decision_cache import DecisionCache
from webhook.server.admission_state import AdmissionState, Clock, Decide
from webhook.server.handlers import AdmissionHealth, admission_routes
from webhook.telemetry.telemetry import Telemetry
from webhook.web.connection import ConnectionRegistry
from webhook.web.health import HealthCheck, HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.listener import POLL_SECONDS, SWEEP_SECONDS, BackgroundTask, HttpListener, Poll
from webhook.web.tls import ClientCertificateRules


@dataclass(slots=True)
class AdmissionServer:
    """The webhook server; call `listen` to start.

    Attributes:
        polls: Called every `poll_seconds`.
        sweep_seconds: The interval for closing expired connections.
        tasks: Run until the server closes.
        health_checks: Further lines of `/readyz?verbose`.
        client_rules: Which clients may call admission routes, as the context verifies them; None for all.
        decide: The engine's `decide` with a cache; tests replace it.
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
        telemetry = self.telemetry

        def extra_checks() -> list[HealthCheck]:
            return [each for checks in self.health_checks for each in checks()]

        health = AdmissionHealth(self.state, lambda: self.registry.draining, extra_checks)
        routes = admission_routes(self.state, self.clock, self.decide, telemetry, health, self.limits.request_time)
        self.registry = ConnectionRegistry(routes, self.limits, telemetry.record_rejection, self.client_rules)
        telemetry.connections = lambda: len(self.registry.connections)
        telemetry.metrics.in_flight = lambda: self.registry.load.reading

    async def listen(self, host: str, port: int) -> int:
        """Start, and return the port; see `HttpListener.listen`."""
        self._listener = HttpListener(
            self.registry,
            self.context,
            lambda error: self.telemetry.record_internal_error("task", error),
            self.polls,
            self.tasks,
            self.poll_seconds,
            self.sweep_seconds,
        )
        return await self._listener.listen(host, port)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        if self._listener is not None:
            self._listener.stop_listening()

    async def close(self) -> None:
        """Close all connections and cancel the tasks."""
        if self._listener is not None:
            await self._listener.close()
