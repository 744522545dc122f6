"""The webhook server: connects its parts, listens, and runs the tasks that keep its state up to date."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.engine.decision_cache import DecisionCache
from webhook.server.admission_state import AdmissionState, Clock, Decide
from webhook.server.handlers import admission_checks, admission_routes
from webhook.telemetry.telemetry import Telemetry
from webhook.web.connection import ConnectionRegistry
from webhook.web.cpu_limit import CpuLimit
from webhook.web.health import HealthCheck, HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.listener import POLL_SECONDS, SWEEP_SECONDS, HttpListener, Poll
from webhook.web.tls import ServerTls


class AdmissionServer(HttpListener):
    """The webhook server; call `listen` to start.

    Attributes:
        health_checks: Further lines of `/readyz?verbose`.
        cpu_limit: Stops reviews once it is installed.
    """

    tls: ServerTls

    def __init__(
        self,
        state: AdmissionState,
        telemetry: Telemetry,
        clock: Clock,
        tls: ServerTls,
        limits: ServerLimits,
        polls: Sequence[Poll] = (),
        poll_seconds: float = POLL_SECONDS,
        sweep_seconds: float = SWEEP_SECONDS,
        decide: Decide | None = None,
        health_checks: Sequence[HealthChecks] = (),
    ) -> None:
        """Prepare the routes.

        Args:
            decide: For tests; None for the engine's `decide` with a cache.
        """
        self.state, self.telemetry, self.clock, self.health_checks = state, telemetry, clock, health_checks
        decide = decide or DecisionCache().decide
        self.cpu_limit = CpuLimit()
        routes = admission_routes(state, clock, decide, telemetry, self._checks, limits.request_time, self.cpu_limit)
        registry = ConnectionRegistry(routes, limits, telemetry.record_rejection, tls.clients)
        telemetry.connections = lambda: len(registry.connections)
        telemetry.metrics.in_flight = lambda: registry.load.reading

        def on_crash(error: Exception) -> None:
            telemetry.record_internal_error("task", error)

        super().__init__(registry, tls, on_crash, polls, (), poll_seconds, sweep_seconds)

    def _checks(self) -> list[HealthCheck]:
        extra_checks = [each for checks in self.health_checks for each in checks()]
        return admission_checks(self.state, extra_checks, draining=self.registry.draining)
