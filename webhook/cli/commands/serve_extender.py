"""`serve extender`: what a stock kube-scheduler asks about pods with GPUs, built and handed over."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from webhook.cache.informers import InventoryInformers
from webhook.cache.inventory import NodeInventory, build_inventory
from webhook.cache.snapshot import read_snapshot
from webhook.certs.issuer import expiry_of
from webhook.cli import serving_flags as serving
from webhook.cli.cluster_flags import Context, Kubeconfig
from webhook.cli.output import exit_with_error
from webhook.cli.processes.tls import (
    StartError,
    build_listening_context,
    connection_limit,
    initial_key_pair,
    trusted_clients,
    watch_certificate,
)
from webhook.errors import RightsliceError
from webhook.extender.app import build_extender
from webhook.extender.metrics import ExtenderMetrics
from webhook.extender.state import SchedulerState
from webhook.kube.api import KubeClient
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.settings import ExtenderSettings, SettingsError, load_extender_settings
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.web.limits import ServerLimits
from webhook.web.listener import HttpListener, NoParserError
from webhook.web.process_tuning import freeze_and_tune_gc
from webhook.web.shutdown import serve_until_signal

if TYPE_CHECKING:
    from webhook.audit.fair_share_tracker import FairShareTracker
    from webhook.policy.fair_share import FairShare


def serve_extender(
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="live|SNAPSHOT|demo", help="What to rank: live (the default in a pod), or a snapshot."
        ),
    ] = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="Default: 127.0.0.1:8444.")
    ] = None,
    tls_cert: serving.TlsCert = None,
    tls_key: serving.TlsKey = None,
    self_signed: serving.SelfSigned = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Answer only clients with a certificate of this CA, PEM."),
    ] = None,
    client_name: serving.ClientName = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="RULE", help="tab (default), fgd, most-allocated or default."),
    ] = None,
    fill: Annotated[
        str | None, typer.Option("--fill", metavar="HOW", help="Among equals: pack (default) or spread.")
    ] = None,
    fair_share: Annotated[
        Path | None,
        typer.Option(
            "--fair-share",
            metavar="FILE",
            help="Policies, one with a fairShare: pods of those over it leave empty nodes to others. Off by default.",
        ),
    ] = None,
    drain_seconds: serving.DrainSeconds = None,
    log_level: serving.LogLevel = None,
    max_connections: serving.MaxConnections = None,
    max_in_flight: serving.MaxInFlight = None,
) -> None:
    """Rank nodes for kube-scheduler over HTTPS: POST /filter, /prioritize and /preempt. RIGHTSLICE_ variables too."""
    try:
        settings = load_extender_settings(
            cluster=cluster,
            kubeconfig=kubeconfig,
            context=context,
            listen=listen,
            tls_cert=tls_cert,
            tls_key=tls_key,
            self_signed=self_signed,
            client_ca=client_ca,
            client_name=client_name,
            policy=policy,
            fill=fill,
            fair_share=fair_share,
            drain_seconds=drain_seconds,
            log_level=log_level,
            max_connections=max_connections,
            max_in_flight=max_in_flight,
        )
        uvloop.run(_run_extender(settings, _fair_share_rule(settings)))
    except (SettingsError, StartError, RightsliceError) as error:
        exit_with_error(str(error))


def _fair_share_rule(settings: ExtenderSettings) -> FairShare | None:
    """What use is held against; None where nobody asks. Stops the program where the policies do not say."""
    if settings.fair_share is None:
        return None
    from webhook.cli.inputs import (
        load_policy_set,  # written models take their room: only who needs them pays
        single_fair_share,
    )

    return single_fair_share(load_policy_set([str(settings.fair_share)]), f"--fair-share {settings.fair_share}")


async def _run_extender(settings: ExtenderSettings, rule: FairShare | None) -> None:
    log = make_logger(settings.log_level)
    async with AsyncExitStack() as stack:
        listener = await _build_extender(settings, rule, log, stack)
        try:
            port = await listener.listen(settings.host, settings.port)
        except (NoParserError, OSError) as error:
            raise StartError(f"--listen {settings.listen}: {error}") from error
        log.info("serving", listen=f"{settings.host}:{port}", policy=settings.policy)
        await serve_until_signal(listener, settings.drain_period, log)


async def _build_extender(
    settings: ExtenderSettings, rule: FairShare | None, log: StructuredLogger, stack: AsyncExitStack
) -> HttpListener:
    """The extender and its parts; what has to be closed is pushed to the stack."""
    counts = ExtenderMetrics(log)
    inventory = NodeInventory() if settings.is_live else build_inventory(read_snapshot(settings.cluster).objects)
    standing = SchedulerState(inventory, ScoringStrategy(settings.policy), FillOrder(settings.fill))
    following, sharing = None, None
    if settings.is_live:
        api = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig, settings.context))
        following = InventoryInformers(api, inventory, SystemRandom(), counts)
        counts.view_age = lambda: following.age
        counts.watches = lambda: following.states
        sharing = _track_fair_share(api, rule, standing, counts) if rule is not None else None

    async def rank() -> None:
        await standing.run(monotonic, indexed=freeze_and_tune_gc)

    async def follow() -> None:
        await (following.run(rank) if following else rank())

    pair, clients = initial_key_pair(settings, datetime.now(UTC)), trusted_clients(settings)
    counts.set_certificate_expiry(expiry_of(pair.certificate))
    context = build_listening_context(settings, pair, clients)
    certificate = watch_certificate(settings, context, counts)
    limits = ServerLimits(connections=connection_limit(settings, log), in_flight=settings.max_in_flight)
    return build_extender(
        standing,
        monotonic,
        counts,
        context,
        limits,
        clients=clients,
        looks=[certificate.reload_if_changed] if certificate is not None else [],
        companions=[follow, sharing.run] if sharing else [follow],
        watched=lambda: following.states if following else (),
        more=lambda: [sharing.readiness_check()] if sharing else [],
    )


def _track_fair_share(
    api: KubeClient, rule: FairShare, standing: SchedulerState, counts: ExtenderMetrics
) -> FairShareTracker:
    """What looks up who is over the share, and tells the ranking."""
    from webhook.audit.fair_share_tracker import FairShareTracker

    sharing = FairShareTracker(api, rule, lambda: standing.fleet, SystemRandom(), time)
    standing.is_over_share = sharing.is_over_share
    counts.over_share = lambda: len(sharing.latest.over) if sharing.latest else 0
    return sharing
