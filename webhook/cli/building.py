"""The one place where the admission server's parts are built and handed over."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from webhook.cache.following import Following, nothing_known
from webhook.cache.snapshot import load_snapshot
from webhook.certs.issuing import end_of
from webhook.cli.starting import StartError, clients_of, connections, context_of, first_pair, watch_of
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
from webhook.settings import Settings
from webhook.telemetry.logs import Logger
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.frames import Asked
from webhook.usage.source import Source
from webhook.web.checks import Checks
from webhook.web.collecting import settle_collector
from webhook.web.limits import Limits


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
    following = Following(api, world, SystemRandom(), telemetry, settings.namespace)
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
    keeper = UsageKeeper(asked, seconds, server.world, clock, server.telemetry, SystemRandom())
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
