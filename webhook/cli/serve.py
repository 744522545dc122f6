"""`serve webhook`: the one place where the server's parts are built and handed over."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom as Random
from typing import Annotated

import typer
import uvloop

from webhook.cache.following import Following, nothing_known
from webhook.cache.snapshot import load_snapshot
from webhook.certs.issuing import end_of
from webhook.cli import flags
from webhook.cli import prometheus as asking
from webhook.cli import servingflags as serving
from webhook.cli.console import stop
from webhook.cli.replicas import keep_statuses, manage_certificate, take_part, watch_rollouts, write_events
from webhook.cli.starting import StartError, clients_of, connections, context_of, first_pair, watch_of
from webhook.errors import RightsliceError
from webhook.kube.api import Api
from webhook.model.usage import UsageView
from webhook.policy.capping import on_trial
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import Loaded, load
from webhook.server.app import Server
from webhook.server.policyfiles import PolicyFiles
from webhook.server.policysources import Load
from webhook.server.reloading import NoPoliciesError, PolicyWatch, read_policies
from webhook.server.usage import UsageKeeper
from webhook.server.world import PolicyLoad, World
from webhook.settings import Settings, SettingsError, settings_from
from webhook.telemetry.logs import Logger, make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.frames import Asked
from webhook.usage.source import Source
from webhook.web.checks import Checks
from webhook.web.collecting import settle_collector
from webhook.web.draining import serve_until_told
from webhook.web.limits import Limits
from webhook.web.listening import NoParserError


def serve_webhook(
    policies: Annotated[
        list[Path] | None,
        typer.Option(
            "--policies",
            metavar="FILE|DIR",
            help="Policies, read again when they change; may be given more than once.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="live|SNAPSHOT|demo",
            help="The cluster to judge against: live (the default in a pod), or a snapshot.",
        ),
    ] = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="Where GPUPolicyExceptions count. Default: rightslice-system."
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option("--listen", metavar="ADDRESS:PORT", help="Default: 127.0.0.1:8443.")
    ] = None,
    tls_cert: serving.TlsCert = None,
    tls_key: serving.TlsKey = None,
    self_signed: serving.SelfSigned = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="audit: deny and change nothing. Default: enforce.")
    ] = None,
    managed_tls: Annotated[
        bool | None,
        typer.Option("--managed-tls", help="Let the replicas make, trust and renew certificates in a Secret instead."),
    ] = None,
    tls_secret: Annotated[
        str | None,
        typer.Option("--tls-secret", metavar="NAMESPACE/NAME", help="Where they are kept. Default: rightslice-tls."),
    ] = None,
    tls_names: Annotated[
        str | None,
        typer.Option("--tls-names", metavar="NAME,...", help="What it is called by. Default: the name of our Service."),
    ] = None,
    webhook_configurations: Annotated[
        str | None,
        typer.Option(
            "--webhook-configurations",
            metavar="NAME,...|SELECTOR",
            help="Those that must trust managed certificates, mutating and validating. Default: rightslice.",
        ),
    ] = None,
    client_ca: Annotated[
        Path | None,
        typer.Option("--client-ca", metavar="FILE", help="Judge only for clients with a certificate of this CA, PEM."),
    ] = None,
    client_name: serving.ClientName = None,
    drain_seconds: serving.DrainSeconds = None,
    log_level: serving.LogLevel = None,
    max_connections: serving.MaxConnections = None,
    max_in_flight: serving.MaxInFlight = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="URL", help="Learn from here what workloads use of their GPUs."),
    ] = None,
    prometheus_ca: asking.CA = None,
    prometheus_token_file: asking.TokenFile = None,
    prometheus_user: asking.User = None,
    prometheus_password_file: asking.PasswordFile = None,
    prometheus_selector: asking.Selector = None,
    prometheus_days: asking.Days = None,
    usage: Annotated[
        Path | None,
        typer.Option("--usage", metavar="FILE", help="Or from what `rightslice usage record` wrote; read again."),
    ] = None,
    usage_minutes: Annotated[float | None, typer.Option("--usage-minutes", help="How often. Default: 30.")] = None,
) -> None:
    """Serve admission reviews over HTTPS: POST /mutate and /validate. Flags can be RIGHTSLICE_ variables too."""
    try:
        settings = settings_from(
            policies=policies or None,
            cluster=cluster,
            kubeconfig=kubeconfig,
            context=context,
            namespace=namespace,
            listen=listen,
            tls_cert=tls_cert,
            tls_key=tls_key,
            self_signed=self_signed,
            mode=mode,
            managed_tls=managed_tls,
            tls_secret=tls_secret,
            tls_names=tls_names,
            webhook_configurations=webhook_configurations,
            client_ca=client_ca,
            client_name=client_name,
            drain_seconds=drain_seconds,
            log_level=log_level,
            max_connections=max_connections,
            max_in_flight=max_in_flight,
            prometheus=prometheus,
            prometheus_ca=prometheus_ca,
            prometheus_token_file=prometheus_token_file,
            prometheus_user=prometheus_user,
            prometheus_password_file=prometheus_password_file,
            prometheus_selector=prometheus_selector,
            prometheus_days=prometheus_days,
            usage=usage,
            usage_minutes=usage_minutes,
        )
    except SettingsError as error:
        stop(str(error))
    try:
        uvloop.run(_serve(settings))
    except (StartError, RightsliceError) as error:
        stop(str(error))


async def _serve(settings: Settings) -> None:
    log = make_logger(settings.log_level)
    server = build(settings, log)
    learn_from_use(server, settings)
    async with AsyncExitStack() as stack:
        if settings.asks:
            await _join(server, settings, stack)
        await _listen(server, settings, log)


async def _join(server: Server, settings: Settings, stack: AsyncExitStack) -> None:
    """Connect the server to its cluster: what it follows there, and what it keeps there with other replicas."""
    api = await stack.enter_async_context(await Api.connect(settings.kubeconfig, settings.context))
    following = follow(server, api, settings) if settings.live else None
    if not settings.takes_part:
        return
    leading = take_part(server, api, settings)
    stack.push_async_callback(leading.release)
    if settings.manages_tls:
        manage_certificate(server, api, settings, leading)
    if following is not None:
        keep_statuses(server, api, following.policies, leading)
        watch_rollouts(server, api, following.policies, leading)
        write_events(server, api)


async def _listen(server: Server, settings: Settings, log: Logger) -> None:
    try:
        port = await server.listen(settings.host, settings.port)
    except (NoParserError, OSError) as error:
        raise StartError(f"--listen {settings.listen}: {error}") from error
    settle_collector()
    policies = server.world.policies
    log.info("serving", listen=f"{settings.host}:{port}", policies=len(policies.policies), digest=policies.digest)
    await serve_until_told(server, settings.drain, log)


def build(settings: Settings, log: Logger) -> Server:
    """Build the server and everything it is handed. One over a live cluster still has to follow it.

    Raises:
        StartError, RightsliceError: policies, cluster, certificate or kubeconfig cannot be used.
    """
    telemetry = Telemetry(log)
    load = _loader(settings)
    now = clock()
    files = PolicyFiles(settings.policies) if settings.policies else None
    try:
        policies = read_policies(files, load) if files is not None else PolicySet()
    except NoPoliciesError as error:
        raise StartError(str(error)) from error
    view = nothing_known() if settings.live else load_snapshot(settings.cluster)
    world = World(policies, view, UsageView(), PolicyLoad(now if files else None))
    if files is not None:
        telemetry.policies_loaded(policies.digest, len(policies.policies), now)
    checks: list[Checks] = []
    looks = [] if settings.live else [PolicyWatch(files, load, world, clock, telemetry).look]
    pair = first_pair(settings, clock())
    clients = clients_of(settings)
    context = context_of(settings, pair, clients)
    if not settings.manages_tls:
        telemetry.certificate_ends(end_of(pair.certificate))
    certificate = watch_of(settings, context, telemetry)
    if certificate is not None:
        looks.append(certificate.look)
        checks.append(certificate.checks)
    limits = Limits(connections=connections(settings, log), in_flight=settings.max_in_flight)
    return Server(world, telemetry, clock, context, limits, looks, clients=clients, checks=checks)


def follow(server: Server, api: Api, settings: Settings) -> Following:
    """Have the server follow a live cluster once it listens. It is not ready before it knows all of it."""
    world, telemetry = server.world, server.telemetry
    files = PolicyFiles(settings.policies) if settings.policies else None
    following = Following(api, world, Random(), telemetry, settings.namespace)
    watch = PolicyWatch(files, _loader(settings), world, clock, telemetry, following.policies)
    world.followed = following
    telemetry.counts.view_age, telemetry.counts.watches = lambda: following.age, lambda: following.states

    async def look() -> None:
        if following.ready:  # before, no policy seen would be taken for no policy there
            await watch.look()

    def synced() -> None:
        settle_collector()
        telemetry.log.info("ready", server=api.server, nodes=len(world.view.fleet.nodes))

    server.companions = [*server.companions, lambda: following.run(watch.look, synced)]
    server.looks = [*server.looks, look]
    return following


def learn_from_use(server: Server, settings: Settings) -> None:
    """Have a server learn what workloads use of their GPUs once it listens, where it is told whom to ask.

    Raises:
        UsageError: who is to be asked, or by which credentials, cannot be used.
    """
    asked = _asked(settings)
    if asked is None:
        return
    seconds = 60 * settings.usage_minutes
    keeper = UsageKeeper(asked, seconds, server.world, clock, server.telemetry, Random())
    server.companions = [*server.companions, keeper.run]
    server.checks = [*server.checks, keeper.checks]


def _asked(settings: Settings) -> Asked | None:
    if settings.usage is not None:
        return Asked(file=str(settings.usage.absolute()))
    if settings.prometheus is None:
        return None
    source = Source(
        url=settings.prometheus,
        ca=_absolute(settings.prometheus_ca),
        token=_absolute(settings.prometheus_token_file),
        user=settings.prometheus_user,
        password=_absolute(settings.prometheus_password_file),
        selector=settings.prometheus_selector,
        days=settings.prometheus_days,
    )
    source.check()
    return Asked(source)


def _absolute(path: Path | None) -> str:
    return str(path.absolute()) if path is not None else ""


def _loader(settings: Settings) -> Load:
    """How policies are loaded: as they are written, or to deny and change nothing."""
    return load if settings.mode == "enforce" else _load_on_trial


def _load_on_trial(sources: Iterable[tuple[str, str]]) -> Loaded:
    loaded = load(sources)
    return loaded if loaded.policies is None else loaded._replace(policies=on_trial(loaded.policies))


def clock() -> datetime:
    """The moment."""
    return datetime.now(UTC)
