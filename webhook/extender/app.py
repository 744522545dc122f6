"""The extender as something that listens: everything that it needs is handed in."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from webhook.extender.counts import ExtenderMetrics
from webhook.extender.health import ExtenderHealth, WatchHealth
from webhook.extender.routes import extender_routes
from webhook.extender.standing import Clock, SchedulerState
from webhook.extender.telling import NodeWarnings
from webhook.telemetry.page import METRICS_CONTENT_TYPE, MetricsPage
from webhook.web.checks import HealthChecks
from webhook.web.clients import ClientCertificateRules
from webhook.web.limits import ServerLimits
from webhook.web.listening import BackgroundTask, HttpListener, Poll
from webhook.web.lobby import ConnectionRegistry
from webhook.web.probes import health_routes


def build_extender(
    standing: SchedulerState,
    clock: Clock,
    counts: ExtenderMetrics,
    context: ssl.SSLContext,
    limits: ServerLimits,
    *,
    clients: ClientCertificateRules | None = None,
    looks: Sequence[Poll] = (),
    companions: Sequence[BackgroundTask] = (),
    watched: Callable[[], Sequence[WatchHealth]] = tuple,
    more: HealthChecks = tuple,
) -> HttpListener:
    """An extender that is not listening yet.

    Args:
        standing: What is ranked.
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
    health = ExtenderHealth(standing, watched, lambda: lobby.draining, lambda: (counts.certificate_check(), *more()))
    page = MetricsPage(counts)
    paths = extender_routes(standing, clock, counts) | health_routes(health.checks, page.render, METRICS_CONTENT_TYPE)
    lobby = ConnectionRegistry(paths, limits, lambda reason: counts.refused.update((reason,)), clients)
    counts.connections = lambda: len(lobby.connections)
    counts.nodes = lambda: len(standing.fleet.nodes)
    counts.reserved = lambda: len(standing.reservations)
    telling = NodeWarnings(standing, counts)
    every = (telling.log_new_warnings, *looks)
    return HttpListener(lobby, context, lambda error: counts.record_crash("task", "", error), every, companions)
