"""The extender's server: routes, readiness, and warnings about implausible node data."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from time import perf_counter

from webhook.errors import ReviewError
from webhook.extender.metrics import ExtenderMetrics
from webhook.extender.state import Clock, SchedulerState
from webhook.extender.verbs import VerbResult, handle_filter, handle_preempt, handle_prioritize
from webhook.kube.reflector import WatchStatus
from webhook.model.fleet import Fleet
from webhook.telemetry.metrics import MetricsPage
from webhook.web.connection_registry import ConnectionRegistry
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
from webhook.web.tls import ClientCertificateRules


class ExtenderHealth:
    """Ready once the nodes are known, until shutdown."""

    def __init__(
        self,
        state: SchedulerState,
        watched: Callable[[], Sequence[WatchStatus]],
        draining: Callable[[], bool],
        more: HealthChecks = tuple,
    ) -> None:
        self._state, self._watched, self._draining, self._more = state, watched, draining, more

    def checks(self) -> list[HealthCheck]:
        """Return the lines of `/readyz?verbose`."""
        known, draining = self._state.ranking is not None, self._draining()
        nodes = f"{len(self._state.fleet.nodes)} nodes" if known else "not known yet"
        return [
            HealthCheck("cluster", ok=known, message=nodes),
            *map(watch_check, self._watched()),
            *self._more(),
            HealthCheck("serving", ok=not draining, message="shutting down" if draining else "ok"),
        ]


Verb = Callable[[SchedulerState, bytes, float], VerbResult]

VERBS: Mapping[str, Verb] = {"filter": handle_filter, "prioritize": handle_prioritize, "preempt": handle_preempt}
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
                self._metrics.warn_node(node, warning)
        self._logged = warnings


def build_extender(
    state: SchedulerState,
    clock: Clock,
    metrics: ExtenderMetrics,
    context: ssl.SSLContext,
    limits: ServerLimits,
    *,
    clients: ClientCertificateRules | None = None,
    polls: Sequence[Poll] = (),
    companions: Sequence[BackgroundTask] = (),
    watched: Callable[[], Sequence[WatchStatus]] = tuple,
    more: HealthChecks = tuple,
) -> HttpListener:
    """Return an extender that is not listening yet.

    Args:
        state: Nodes, reservations and the learned mix.
        clock: Monotonic seconds.
        metrics: Receives all events.
        context: TLS.
        limits: Limits of the server.
        clients: Required client certificates; None: anyone may call.
        polls: Called every few seconds.
        companions: Tasks that run as long as the server.
        watched: The watches, for health.
        more: Health checks of other parts.
    """
    health = ExtenderHealth(state, watched, lambda: registry.draining, lambda: (metrics.certificate_check(), *more()))
    page = MetricsPage(metrics)
    paths = extender_routes(state, clock, metrics) | health_routes(health.checks, page.render)
    registry = ConnectionRegistry(paths, limits, metrics.record_rejection, clients)
    metrics.connections = lambda: len(registry.connections)
    metrics.nodes = lambda: len(state.fleet.nodes)
    metrics.reserved = lambda: len(state.reservations)
    all_polls = (NodeWarnings(state, metrics).log_new_warnings, *polls)
    return HttpListener(
        registry, context, lambda error: metrics.record_internal_error("task", error), all_polls, companions
    )


def extender_routes(state: SchedulerState, clock: Clock, metrics: ExtenderMetrics) -> dict[str, HttpRoute]:
    return {f"/{name}": HttpRoute(name, True, _verb_handler(name, state, clock, metrics)) for name in VERBS}


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
