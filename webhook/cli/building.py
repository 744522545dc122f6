"""The one place where the admission server's parts are built and handed over."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from webhook.cache.following import ClusterInformers, empty_view
from webhook.cache.snapshot import read_snapshot_view
from webhook.certs.issuing import expiry_of
from webhook.cli.starting import StartError, trusted_clients, connection_limit, build_listening_context, initial_key_pair, watch_certificate
from webhook.kube.api import KubeClient
from webhook.model.usage import UsageView
from webhook.policy.capping import policies_as_audit
from webhook.policy.compiled import PolicySet
from webhook.policy.loading import LoadResult, load_policies
from webhook.server.app import AdmissionServer
from webhook.server.policyfiles import PolicyFiles
from webhook.server.policysources import PolicyLoader
from webhook.server.reloading import NoPoliciesError, PolicyReloader, read_policies
from webhook.server.usage import UsageRefresher
from webhook.server.world import PolicyLoadStatus, AdmissionState
from webhook.settings import WebhookSettings
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.frames import UsageRequest
from webhook.usage.source import PrometheusSource
from webhook.web.checks import HealthChecks
from webhook.web.collecting import freeze_and_tune_gc
from webhook.web.limits import ServerLimits


def build_webhook_server(settings: WebhookSettings, log: StructuredLogger) -> AdmissionServer:
    """Build the server and everything it is handed. One over a live cluster still has to follow it.

    Raises:
        StartError, RightsliceError: policies, cluster, certificate or kubeconfig cannot be used.
    """
    telemetry = Telemetry(log)
    load = _policy_loader(settings)
    now = utc_now()
    files = PolicyFiles(settings.policies) if settings.policies else None
    try:
        policies = read_policies(files, load) if files is not None else PolicySet()
    except NoPoliciesError as error:
        raise StartError(str(error)) from error
    view = empty_view() if settings.is_live else read_snapshot_view(settings.cluster)
    world = AdmissionState(policies, view, UsageView(), PolicyLoadStatus(now if files else None))
    if files is not None:
        telemetry.record_policies_loaded(policies.digest, len(policies.policies), now)
    checks: list[HealthChecks] = []
    looks = [] if settings.is_live else [PolicyReloader(files, load, world, utc_now, telemetry).reload_if_changed]
    pair = initial_key_pair(settings, utc_now())
    clients = trusted_clients(settings)
    context = build_listening_context(settings, pair, clients)
    if not settings.manages_tls:
        telemetry.set_certificate_expiry(expiry_of(pair.certificate))
    certificate = watch_certificate(settings, context, telemetry)
    if certificate is not None:
        looks.append(certificate.reload_if_changed)
        checks.append(certificate.checks)
    limits = ServerLimits(connections=connection_limit(settings, log), in_flight=settings.max_in_flight)
    return AdmissionServer(world, telemetry, utc_now, context, limits, looks, client_rules=clients, health_checks=checks)


def follow_cluster(server: AdmissionServer, api: KubeClient, settings: WebhookSettings) -> ClusterInformers:
    """Have the server follow a live cluster once it listens. It is not ready before it knows all of it."""
    world, telemetry = server.state, server.telemetry
    files = PolicyFiles(settings.policies) if settings.policies else None
    following = ClusterInformers(api, world, SystemRandom(), telemetry, settings.namespace)
    watch = PolicyReloader(files, _policy_loader(settings), world, utc_now, telemetry, following.policies)
    world.cluster = following
    telemetry.metrics.view_age, telemetry.metrics.watches = lambda: following.age, lambda: following.states

    async def look() -> None:
        if following.ready:  # before, no policy seen would be taken for no policy there
            await watch.reload_if_changed()

    def synced() -> None:
        freeze_and_tune_gc()
        telemetry.log.info("ready", server=api.server, nodes=len(world.view.fleet.nodes))

    server.tasks = [*server.tasks, lambda: following.run(watch.reload_if_changed, synced)]
    server.polls = [*server.polls, look]
    return following


def follow_usage(server: AdmissionServer, settings: WebhookSettings) -> None:
    """Have a server learn what workloads use of their GPUs once it listens, where it is told whom to ask.

    Raises:
        UsageError: who is to be asked, or by which credentials, cannot be used.
    """
    asked = _usage_request(settings)
    if asked is None:
        return
    seconds = 60 * settings.usage_minutes
    keeper = UsageRefresher(asked, seconds, server.state, utc_now, server.telemetry, SystemRandom())
    server.tasks = [*server.tasks, keeper.run]
    server.health_checks = [*server.health_checks, keeper.checks]


def _usage_request(settings: WebhookSettings) -> UsageRequest | None:
    if settings.usage is not None:
        return UsageRequest(file=str(settings.usage.absolute()))
    if settings.prometheus is None:
        return None
    source = PrometheusSource(
        url=settings.prometheus,
        ca=_absolute_path(settings.prometheus_ca),
        token=_absolute_path(settings.prometheus_token_file),
        user=settings.prometheus_user,
        password=_absolute_path(settings.prometheus_password_file),
        selector=settings.prometheus_selector,
        days=settings.prometheus_days,
    )
    source.check()
    return UsageRequest(source)


def _absolute_path(path: Path | None) -> str:
    return str(path.absolute()) if path is not None else ""


def _policy_loader(settings: WebhookSettings) -> PolicyLoader:
    """How policies are loaded: as they are written, or to deny and change nothing."""
    return load_policies if settings.mode == "enforce" else _load_as_audit


def _load_as_audit(sources: Iterable[tuple[str, str]]) -> LoadResult:
    loaded = load_policies(sources)
    return loaded if loaded.policies is None else loaded._replace(policies=policies_as_audit(loaded.policies))


def utc_now() -> datetime:
    """The moment."""
    return datetime.now(UTC)
