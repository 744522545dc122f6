"""Builds and runs the scheduler extender."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from random import SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING

import uvloop

from webhook.cache.informers import InventoryInformers
from webhook.cache.inventory import NodeInventory, build_inventory
from webhook.cache.snapshot import read_snapshot
from webhook.certs.issuer import expiry_of
from webhook.cli.processes.tls import (
    StartError,
    build_server_tls,
    client_rule_files,
    connection_limit,
    initial_key_pair,
    read_client_rules,
    watch_certificate,
    watch_client_rules,
)
from webhook.extender.app import ExtenderMetrics, build_extender
from webhook.extender.state import SchedulerState
from webhook.kube.api import KubeClient
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.settings import ExtenderSettings
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.web.health import HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.listener import HttpListener, NoParserError, freeze_and_tune_gc, serve_until_signal

if TYPE_CHECKING:
    from webhook.audit.fair_share_tracker import FairShareTracker
    from webhook.policy.fair_share import FairShare


def run_extender(settings: ExtenderSettings) -> None:
    """Serve until a signal.

    Raises:
        StartError, RightsliceError: cluster, certificate or kubeconfig cannot be used.
    """
    uvloop.run(_serve_extender(settings, _fair_share_rule(settings)))


def _fair_share_rule(settings: ExtenderSettings) -> FairShare | None:
    """Load the shares; None if they are not used. Exits if the policies do not define them."""
    if settings.fair_share is None:
        return None
    from webhook.cli.inputs import load_policy_set, single_fair_share  # pydantic models take much memory

    return single_fair_share(load_policy_set([str(settings.fair_share)]), f"--fair-share {settings.fair_share}")


async def _serve_extender(settings: ExtenderSettings, rule: FairShare | None) -> None:
    log = make_logger(settings.log_level)
    async with AsyncExitStack() as stack:
        listener = await _build_listener(settings, rule, log, stack)
        try:
            port = await listener.listen(settings.host, settings.port)
        except (NoParserError, OSError) as error:
            raise StartError(f"--listen {settings.listen}: {error}") from error
        log.info("serving", listen=f"{settings.host}:{port}", strategy=settings.strategy)
        await serve_until_signal(listener, settings.drain_period, log)


async def _build_listener(
    settings: ExtenderSettings, rule: FairShare | None, log: StructuredLogger, stack: AsyncExitStack
) -> HttpListener:
    """Build the extender; what must be closed is pushed to the stack."""
    metrics = ExtenderMetrics(log)
    inventory = NodeInventory() if settings.is_live else build_inventory(read_snapshot(settings.cluster).objects)
    state = SchedulerState(inventory, ScoringStrategy(settings.strategy), FillOrder(settings.fill))
    informers, shares = None, None
    if settings.is_live:
        api = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig, settings.context))
        informers = InventoryInformers(api, inventory, SystemRandom(), metrics)
        metrics.view_age = lambda: informers.age
        metrics.watches = lambda: informers.states
        shares = _track_fair_share(api, rule, state, metrics) if rule is not None else None

    async def run_state() -> None:
        await state.run(monotonic, indexed=freeze_and_tune_gc)

    async def follow_cluster_state() -> None:
        await (informers.run(run_state) if informers else run_state())

    pair, client_files = initial_key_pair(settings, datetime.now(UTC)), client_rule_files(settings)
    metrics.set_certificate_expiry(expiry_of(pair.certificate))
    tls = build_server_tls(settings, pair, read_client_rules(client_files))
    certificate = watch_certificate(settings, tls, metrics)
    checks: list[HealthChecks] = [lambda: [shares.readiness_check()]] if shares else []
    limits = ServerLimits(connections=connection_limit(settings, log), in_flight=settings.max_in_flight)
    listener = build_extender(
        state,
        monotonic,
        metrics,
        tls,
        limits,
        polls=[certificate.reload_if_changed] if certificate is not None else [],
        companions=[follow_cluster_state, shares.run] if shares else [follow_cluster_state],
        watched=lambda: informers.states if informers else (),
        more=lambda: [check for part in checks for check in part()],
    )
    rules = watch_client_rules(client_files, listener, log)
    if rules is not None:
        listener.polls = [*listener.polls, rules.reload_if_changed]
        checks.append(rules.checks)
    return listener


def _track_fair_share(
    api: KubeClient, rule: FairShare, state: SchedulerState, metrics: ExtenderMetrics
) -> FairShareTracker:
    """Build the tracker of GPU time, and let the ranking and the metrics use it."""
    from webhook.audit.fair_share_tracker import FairShareTracker

    tracker = FairShareTracker(api, rule, lambda: state.fleet, SystemRandom(), time)
    state.is_over_share = tracker.is_over_share
    metrics.over_share = lambda: len(tracker.latest.over) if tracker.latest else 0
    return tracker
