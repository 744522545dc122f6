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

from webhook.cache.following_inventory import InventoryFollowing
from webhook.cache.inventory import Inventory, stocked
from webhook.cache.snapshot import read_snapshot
from webhook.certs.issuing import end_of
from webhook.cli import servingflags as serving
from webhook.cli.console import stop
from webhook.cli.reaching import Context, Kubeconfig
from webhook.cli.starting import StartError, clients_of, connections, context_of, first_pair, watch_of
from webhook.errors import RightsliceError
from webhook.extender.app import extender
from webhook.extender.counts import Counts
from webhook.extender.standing import Standing
from webhook.kube.api import Api
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.ranking import Fill
from webhook.settings import ExtenderSettings, SettingsError, extender_settings_from
from webhook.telemetry.logs import Logger, make_logger
from webhook.web.collecting import settle_collector
from webhook.web.draining import serve_until_told
from webhook.web.limits import Limits
from webhook.web.listening import Listener, NoParserError

if TYPE_CHECKING:
    from webhook.audit.sharing import Sharing
    from webhook.policy.fairness import FairShare


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
        settings = extender_settings_from(
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
        uvloop.run(_serve(settings, _rule(settings)))
    except (SettingsError, StartError, RightsliceError) as error:
        stop(str(error))


def _rule(settings: ExtenderSettings) -> FairShare | None:
    """What use is held against; None where nobody asks. Stops the program where the policies do not say."""
    if settings.fair_share is None:
        return None
    from webhook.cli.inputs import policies_of  # written models take their room: only who needs them pays
    from webhook.cli.shares import only_rule

    return only_rule(policies_of([str(settings.fair_share)]), f"--fair-share {settings.fair_share}")


async def _serve(settings: ExtenderSettings, rule: FairShare | None) -> None:
    log = make_logger(settings.log_level)
    async with AsyncExitStack() as stack:
        listener = await _built(settings, rule, log, stack)
        try:
            port = await listener.listen(settings.host, settings.port)
        except (NoParserError, OSError) as error:
            raise StartError(f"--listen {settings.listen}: {error}") from error
        log.info("serving", listen=f"{settings.host}:{port}", policy=settings.policy)
        await serve_until_told(listener, settings.drain, log)


async def _built(settings: ExtenderSettings, rule: FairShare | None, log: Logger, stack: AsyncExitStack) -> Listener:
    """The extender and its parts; what has to be closed is pushed to the stack."""
    counts = Counts(log)
    inventory = Inventory() if settings.live else stocked(read_snapshot(settings.cluster).kept)
    standing = Standing(inventory, Policy(settings.policy), Fill(settings.fill))
    following, sharing = None, None
    if settings.live:
        api = await stack.enter_async_context(await Api.connect(settings.kubeconfig, settings.context))
        following = InventoryFollowing(api, inventory, SystemRandom(), counts)
        counts.view_age = lambda: following.age
        counts.watches = lambda: following.states
        sharing = _sharing(api, rule, standing, counts) if rule is not None else None

    async def rank() -> None:
        await standing.run(monotonic, indexed=settle_collector)

    async def follow() -> None:
        await (following.run(rank) if following else rank())

    pair, clients = first_pair(settings, datetime.now(UTC)), clients_of(settings)
    counts.certificate_ends(end_of(pair.certificate))
    context = context_of(settings, pair, clients)
    certificate = watch_of(settings, context, counts)
    limits = Limits(connections=connections(settings, log), in_flight=settings.max_in_flight)
    return extender(
        standing,
        monotonic,
        counts,
        context,
        limits,
        clients=clients,
        looks=[certificate.look] if certificate is not None else [],
        companions=[follow, sharing.run] if sharing else [follow],
        watched=lambda: following.states if following else (),
        more=lambda: [sharing.check()] if sharing else [],
    )


def _sharing(api: Api, rule: FairShare, standing: Standing, counts: Counts) -> Sharing:
    """What looks up who is over the share, and tells the ranking."""
    from webhook.audit.sharing import Sharing

    sharing = Sharing(api, rule, lambda: standing.fleet, SystemRandom(), time)
    standing.over = sharing.over
    counts.over = lambda: len(sharing.known.over) if sharing.known else 0
    return sharing
