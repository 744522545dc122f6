"""The extender's server: routes, readiness, metrics, and warnings about implausible node data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from time import perf_counter

from prometheus_client.core import Metric

from webhook.errors import ReviewError
from webhook.extender.capacity_gauges import NO_GAUGES, CapacityGauges, CapacityPoll
from webhook.extender.state import Clock, SchedulerState
from webhook.extender.verbs import (
    VerbResult,
    handle_filter,
    handle_preempt,
    handle_prioritize,
    handle_prioritize_claims,
)
from webhook.kube.reflector import WatchStatus
from webhook.manifests.scheduler_config import CLAIMS_VERB
from webhook.model.fleet import Fleet
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import DurationHistogram, MetricsPage, counter_family, gauge_family, histogram_family
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.connection import ConnectionRegistry
from webhook.web.health import HealthCheck, HealthChecks, health_routes, watch_check
from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    HttpRoute,
    busy_response,
    error_response,
)
from webhook.web.limits import ServerLimits
from webhook.web.listener import BackgroundTask, HttpListener, Poll
from webhook.web.tls import ServerTls

Verb = Callable[[SchedulerState, bytes, float], VerbResult]

VERBS: Mapping[str, Verb] = {
    "filter": handle_filter,
    "prioritize": handle_prioritize,
    CLAIMS_VERB: handle_prioritize_claims,
    "preempt": handle_preempt,
}
"""By the path in the scheduler's configuration."""


class NodeWarnings:
    """Logs implausible data of nodes and invalid agent reports, once per node and reason."""

    def __init__(self, state: SchedulerState, metrics: ExtenderMetrics) -> None:
        self._state, self._metrics, self._fleet = state, metrics, state.fleet
        self._logged: dict[str, str] = {}
        self._implausible = _implausible_gpu_metrics(self._fleet)

    async def log_new_warnings(self) -> None:
        """Log the warnings that are new since the last call."""
        if self._state.fleet is not self._fleet:
            self._fleet = self._state.fleet
            self._implausible = _implausible_gpu_metrics(self._fleet)
        warnings = self._implausible | self._state.inventory.unusable_reports
        for node, warning in warnings.items():
            if self._logged.get(node) != warning:
                self._metrics.log.warning("invalid node data ignored", node=node, reason=warning)
        self._logged = warnings


def build_extender(
    state: SchedulerState,
    clock: Clock,
    metrics: ExtenderMetrics,
    tls: ServerTls,
    limits: ServerLimits,
    *,
    polls: Sequence[Poll] = (),
    companions: Sequence[BackgroundTask] = (),
    watched: Callable[[], Sequence[WatchStatus]] = tuple,
    more: HealthChecks = tuple,
) -> HttpListener:
    """Return an extender that is not listening yet.

    Args:
        state: Nodes, reservations and the learned mix.
        clock: Monotonic seconds.
        tls: TLS, and which clients may call.
        polls: Called every few seconds.
        companions: Tasks that run as long as the server.
        watched: The watches, for health.
        more: Health checks of other parts.
    """

    def health_checks() -> list[HealthCheck]:
        """Ready once the nodes are known, until shutdown."""
        known, draining = state.ranking is not None, registry.draining
        nodes = f"{len(state.fleet.nodes)} nodes" if known else "not known yet"
        return [
            HealthCheck("cluster", ok=known, message=nodes),
            *map(watch_check, watched()),
            metrics.certificate_check(),
            *more(),
            HealthCheck("serving", ok=not draining, message="shutting down" if draining else "ok"),
        ]

    routes = {f"/{name}": HttpRoute(name, True, _verb_handler(name, state, clock, metrics)) for name in VERBS}
    paths = routes | health_routes(health_checks, MetricsPage(metrics).render)
    registry = ConnectionRegistry(paths, limits, metrics.record_rejection, tls.clients)
    metrics.connections = lambda: len(registry.connections)
    metrics.nodes = lambda: len(state.fleet.nodes)
    metrics.reserved = lambda: len(state.reservations)
    capacity = CapacityPoll(state, clock)
    metrics.capacity = lambda: capacity.latest
    all_polls = (NodeWarnings(state, metrics).log_new_warnings, capacity.refresh_if_due, *polls)
    return HttpListener(
        registry, tls, lambda error: metrics.record_internal_error("task", error), all_polls, companions
    )


def _verb_handler(
    name: str, state: SchedulerState, clock: Clock, metrics: ExtenderMetrics
) -> Callable[[HttpRequest], HttpResponse]:
    verb = VERBS[name]

    def answer(request: HttpRequest) -> HttpResponse:
        start = perf_counter()
        if state.ranking is None:
            metrics.record_rejection("not_ready")
            return busy_response("the nodes are not known yet")
        try:
            body, result = verb(state, request.body, clock())
        except ReviewError as error:
            metrics.record_rejection("invalid_request")
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            metrics.record_internal_error(name, error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log")
        while state.ranking.errors:
            metrics.record_internal_error(name, state.ranking.errors.pop())
        return HttpResponse(
            HTTPStatus.OK, body, after_send=lambda: metrics.record_answer(name, result, perf_counter() - start)
        )

    return answer


def _implausible_gpu_metrics(fleet: Fleet) -> dict[str, str]:
    return {
        node.name: f"{units} {resource} are more than any node can have"
        for node in fleet.nodes
        for resource, units in node.implausible_gpus.items()
    }


class ExtenderMetrics(ServerTelemetry):
    """Telemetry of one extender process.

    Attributes:
        answers: Requests answered, by verb and result.
        durations: Seconds by verb.
        over_share: Number of namespaces or queues above their fair share; None without fair share.
    """

    def __init__(self, log: StructuredLogger) -> None:
        super().__init__(log)
        self.answers: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.reserved: Callable[[], int] = int
        self.nodes: Callable[[], int] = int
        self.over_share: Callable[[], int] | None = None
        self.capacity: Callable[[], CapacityGauges] = lambda: NO_GAUGES

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield counter_family("rightslice_extender_requests_total", self.answers)
        yield histogram_family("rightslice_extender_duration_seconds", self.durations)
        yield gauge_family("rightslice_extender_reservations", self.reserved())
        yield gauge_family("rightslice_extender_nodes", self.nodes())
        if self.over_share is not None:
            yield gauge_family("rightslice_extender_over_share", self.over_share())
        capacity = self.capacity()
        yield gauge_family("rightslice_extender_gpu_milli", capacity.by_state)
        yield gauge_family("rightslice_extender_fragmented_gpu_milli", capacity.fragmented)
        yield from super().collect()

    def record_answer(self, verb: str, result: str, seconds: float) -> None:
        """Count an answered request."""
        self.answers[verb, result] += 1
        self.durations.setdefault(verb, DurationHistogram()).observe(seconds)

    def certificate_check(self) -> HealthCheck:
        """Return the line of `/readyz?verbose`; an old certificate does not make the process unready."""
        expiry = datetime.fromtimestamp(self.certificate_expiry, UTC)
        message = f"expires {expiry:%Y-%m-%dT%H:%M:%SZ}" if self.certificate_expiry else "in use"
        error = self.certificate_error
        message = f"{message}; the new files do not load: {error}" if error else message
        return HealthCheck("certificate", not error, message, required=False)
