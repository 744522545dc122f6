"""The one place where the admission server's parts are built and handed over."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from uuid import uuid4

from webhook.cache.informers import ClusterInformers, empty_view
from webhook.cache.pod_outcomes import PODS, OutcomePod, OutcomeStore
from webhook.cache.policy_objects import PolicyObjects
from webhook.cache.snapshot import read_snapshot_view
from webhook.certs.issuer import expiry_of
from webhook.certs.reconciler import CertificateReconciler, ManagedCertificateSpec
from webhook.certs.secret_state import SecretName
from webhook.certs.webhook_configs import WebhookConfigSelector
from webhook.cli.processes.tls import (
    StartError,
    build_listening_context,
    connection_limit,
    initial_key_pair,
    trusted_clients,
    watch_certificate,
)
from webhook.kube.api import KubeClient
from webhook.kube.leader_election import LeaderElector, LeaseName
from webhook.kube.reflector import Reflector
from webhook.model.usage import UsageView
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import PolicySet, policies_as_audit
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.app import AdmissionServer
from webhook.server.event_writer import EventWriter
from webhook.server.managed_certificate import ManagedCertificate
from webhook.server.policy_reload import NoPoliciesError, PolicyReloader, read_policies
from webhook.server.policy_sources import PolicyFiles, PolicyLoader
from webhook.server.policy_status import PolicyStatusWriter
from webhook.server.rollouts import RolloutController
from webhook.server.usage_refresh import UsageRefresher
from webhook.settings import WebhookSettings
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.prometheus_source import PrometheusSource
from webhook.usage.protocol import UsageRequest
from webhook.web.health import HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.process_tuning import freeze_and_tune_gc

LEASE_NAME = "rightslice"


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
    return AdmissionServer(
        world, telemetry, utc_now, context, limits, looks, client_rules=clients, health_checks=checks
    )


def follow_cluster(server: AdmissionServer, api: KubeClient, settings: WebhookSettings) -> ClusterInformers:
    """Have the server follow a live cluster once it listens. It is not ready before it knows all of it."""
    world, telemetry = server.state, server.telemetry
    files = PolicyFiles(settings.policies) if settings.policies else None
    following = ClusterInformers(api, world, SystemRandom(), telemetry, settings.namespace)
    watch = PolicyReloader(files, _policy_loader(settings), world, utc_now, telemetry, following.policies)
    world.cluster = following
    telemetry.view_age, telemetry.watches = lambda: following.age, lambda: following.states

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


def join_leader_election(server: AdmissionServer, api: KubeClient, settings: WebhookSettings) -> LeaderElector:
    """Have a server take part in the election once it listens. Its part is to be released in the end."""
    lease = LeaseName(settings.tls_secret_ref[0], LEASE_NAME)
    leading = LeaderElector(api, lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")
    server.tasks = [*server.tasks, leading.run]
    return leading


def manage_certificate(
    server: AdmissionServer, api: KubeClient, settings: WebhookSettings, leading: LeaderElector
) -> None:
    """Have a server take its certificate from a Secret once it listens. It is not ready before it has one."""
    hooks = WebhookConfigSelector.parse(settings.webhook_configurations)
    keeping = ManagedCertificateSpec(SecretName(*settings.tls_secret_ref), hooks, settings.tls_server_names)
    keeper = CertificateReconciler(api, keeping, lambda: leading.is_leader, server.clock)
    managed = ManagedCertificate(keeper, leading, server.context, server.telemetry, server.clock)
    server.tasks = [*server.tasks, managed.run]
    server.health_checks = [*server.health_checks, managed.checks]


def write_pod_events(server: AdmissionServer, api: KubeClient) -> None:
    """Have a server tell the owners of pods what became of them."""
    writer = EventWriter(api, server.telemetry, socket.gethostname(), server.clock)
    server.tasks = [*server.tasks, writer.run]


def watch_rollouts(server: AdmissionServer, api: KubeClient, objects: PolicyObjects, leading: LeaderElector) -> None:
    """Have a server halt rollouts that do worse than the rest, for as long as it leads."""

    def watch(outcomes: OutcomeStore) -> Reflector[OutcomePod]:
        return Reflector(api, PODS, outcomes, SystemRandom(), server.telemetry)

    rollouts = RolloutController(
        api, objects, server.state, watch, lambda: leading.is_leader, server.telemetry, server.clock
    )
    server.tasks = [*server.tasks, rollouts.run]


def update_policy_statuses(
    server: AdmissionServer, api: KubeClient, objects: PolicyObjects, leading: LeaderElector
) -> None:
    """Have a server say in the status of policies what became of them."""
    statuses = PolicyStatusWriter(api, objects, server.state, lambda: leading.is_leader, server.telemetry, server.clock)
    server.tasks = [*server.tasks, statuses.run]
