"""The extender as something that listens: everything that it needs is handed in."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from webhook.extender.counts import Counts
from webhook.extender.health import Health, Watched
from webhook.extender.routes import routes
from webhook.extender.standing import Clock, Standing
from webhook.extender.telling import Telling
from webhook.telemetry.page import PAGE_TYPE, MetricsPage
from webhook.web.checks import Checks
from webhook.web.clients import Clients
from webhook.web.limits import Limits
from webhook.web.listening import Companion, Listener, Look
from webhook.web.lobby import Lobby
from webhook.web.probes import probes


def extender(
    standing: Standing,
    clock: Clock,
    counts: Counts,
    context: ssl.SSLContext,
    limits: Limits,
    *,
    clients: Clients | None = None,
    looks: Sequence[Look] = (),
    companions: Sequence[Companion] = (),
    watched: Callable[[], Sequence[Watched]] = tuple,
    more: Checks = tuple,
) -> Listener:
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
    health = Health(standing, watched, lambda: lobby.draining, lambda: (counts.certificate(), *more()))
    page = MetricsPage(counts)
    paths = routes(standing, clock, counts) | probes(health.checks, page.text, PAGE_TYPE)
    lobby = Lobby(paths, limits, lambda reason: counts.refused.update((reason,)), clients)
    counts.connections = lambda: len(lobby.guests)
    counts.nodes = lambda: len(standing.fleet.nodes)
    counts.reserved = lambda: len(standing.reservations)
    telling = Telling(standing, counts)
    every = (telling.look, *looks)
    return Listener(lobby, context, lambda error: counts.crashed("task", "", error), every, companions)
