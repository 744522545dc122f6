"""The extender as something that listens: everything that it needs is handed in."""

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
    """Ready once the nodes are known; not when it was told to end."""

    def __init__(
        self,
        state: SchedulerState,
        watched: Callable[[], Sequence[WatchStatus]],
        draining: Callable[[], bool],
        more: HealthChecks = tuple,
    ) -> None:
        self._state, self._watched, self._draining, self._more = state, watched, draining, more

    def checks(self) -> list[HealthCheck]:
        """The lines."""
        known = self._state.ranking is not None
        nodes = f"{len(self._state.fleet.nodes)} nodes" if known else "not known yet"
        return [
            HealthCheck("cluster", ok=known, message=nodes),
            *map(watch_check, self._watched()),
            *self._more(),
            HealthCheck("serving", ok=not self._draining(), message="told to end" if self._draining() else "ok"),
        ]


Verb = Callable[[SchedulerState, bytes, float], VerbResult]

VERBS: Mapping[str, Verb] = {"filter": handle_filter, "prioritize": handle_prioritize, "preempt": handle_preempt}
"""By the path that the scheduler's configuration names."""


class NodeWarnings:
    """What was told."""

    def __init__(self, state: SchedulerState, counts: ExtenderMetrics) -> None:
        """Begin.

        Args:
            state: What is ranked.
            counts: Who is told.
        """
        self._unusable, self._state, self._metrics = state.inventory.unusable_reports, state, counts
        self._logged: dict[str, str] = {}
        self._fleet = state.fleet
        self._implausible: dict[str, str] = _implausible_gpu_counts(self._fleet)

    async def log_new_warnings(self) -> None:
        """Tell what is new."""
        if self._state.fleet is not self._fleet:
            self._fleet = self._state.fleet
            self._implausible = _implausible_gpu_counts(self._fleet)
        now = self._implausible | self._unusable
        for node, why in now.items():
            if self._logged.get(node) != why:
                self._metrics.warn_node(node, why)
        self._logged = now


def build_extender(
    state: SchedulerState,
    clock: Clock,
    counts: ExtenderMetrics,
    context: ssl.SSLContext,
    limits: ServerLimits,
    *,
    clients: ClientCertificateRules | None = None,
    looks: Sequence[Poll] = (),
    companions: Sequence[BackgroundTask] = (),
    watched: Callable[[], Sequence[WatchStatus]] = tuple,
    more: HealthChecks = tuple,
) -> HttpListener:
    """An extender that is not listening yet.

    Args:
        state: What is ranked.
        clock: Seconds that only grow.
        counts: Told of everything.
        context: TLS.
        limits: Bounds.
        clients: Who may ask; None: anyone.
        looks: Called every few seconds.
        companions: Run beside it for as long as it lives.
        watched: The watches, for health.
        more: What other parts say of theirs.
    """
    health = ExtenderHealth(state, watched, lambda: lobby.draining, lambda: (counts.certificate_check(), *more()))
    page = MetricsPage(counts)
    paths = extender_routes(state, clock, counts) | health_routes(health.checks, page.render)
    lobby = ConnectionRegistry(paths, limits, counts.record_rejection, clients)
    counts.connections = lambda: len(lobby.connections)
    counts.nodes = lambda: len(state.fleet.nodes)
    counts.reserved = lambda: len(state.reservations)
    telling = NodeWarnings(state, counts)
    every = (telling.log_new_warnings, *looks)
    return HttpListener(lobby, context, lambda error: counts.record_internal_error("task", error), every, companions)


def extender_routes(state: SchedulerState, clock: Clock, counts: ExtenderMetrics) -> dict[str, HttpRoute]:
    """The paths that a scheduler asks."""
    return {f"/{name}": HttpRoute(name, True, _verb_handler(name, state, clock, counts)) for name in VERBS}


def _verb_handler(
    name: str, state: SchedulerState, clock: Clock, counts: ExtenderMetrics
) -> Callable[[HttpRequest], HttpResponse]:
    verb = VERBS[name]

    def answer(call: HttpRequest) -> HttpResponse:
        start = perf_counter()
        if state.ranking is None:
            counts.record_rejection("not_ready")
            return busy_response("could not rank: the nodes are not known here yet")
        try:
            body, result = verb(state, call.body, clock())
        except ReviewError as error:
            counts.record_rejection("invalid_request")
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        except Exception as error:
            counts.record_internal_error(name, error)
            return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; see the log")
        while state.ranking.errors:
            counts.record_internal_error(name, state.ranking.errors.pop())
        return HttpResponse(
            HTTPStatus.OK, body, after_send=lambda: counts.record_answer(name, result, perf_counter() - start)
        )

    return answer


def _implausible_gpu_counts(fleet: Fleet) -> dict[str, str]:
    return {
        node.name: f"{units} {resource} are more than any node can have"
        for node in fleet.nodes
        for resource, units in node.implausible_gpus.items()
    }
