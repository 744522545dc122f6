"""Builds and runs the admission server: parts first, then its connections to the cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import Any
from uuid import uuid4

import uvloop

from webhook.cache.informers import ClusterInformers, empty_view
from webhook.cache.pod_outcomes import PODS, OutcomePod, OutcomeStore
from webhook.cache.snapshot import read_kueue_configuration, read_node_groups, read_schedulers, read_snapshot
from webhook.certs.issuer import expiry_of
from webhook.certs.reconciler import CaBundleWatch, CertificateReconciler, ManagedCertificateSpec, WebhookConfigSelector
from webhook.certs.secret_state import SecretName
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
from webhook.kube.api import KubeClient
from webhook.kube.leader_election import LeaderElector, LeaseName
from webhook.kube.reflector import Reflector, WatchedResource
from webhook.model.node_groups import GroupSources
from webhook.model.queues import NO_QUEUES, KueueQueues
from webhook.model.usage import UsageView
from webhook.policy.loader import LoadResult, load_policies
from webhook.policy.policy_set import PolicySet, policies_as_audit
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.escrow_keeper import QUOTA_LEASE, EscrowKeeper
from webhook.server.event_writer import EventWriter
from webhook.server.handlers import AdmissionServer
from webhook.server.managed_certificate import ManagedCertificate
from webhook.server.policy_reload import PolicyReloader, read_policies
from webhook.server.policy_sources import NoPoliciesError, PolicyFiles, PolicyLoader
from webhook.server.policy_status import PolicyStatusWriter
from webhook.server.rollouts import RolloutController
from webhook.server.usage_refresh import UsageRefresher
from webhook.settings import WebhookSettings
from webhook.telemetry.logs import StructuredLogger, make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.telemetry.tracing import TracingError, make_tracer
from webhook.usage.loader import UsageRequest
from webhook.usage.prometheus_source import PrometheusSource
from webhook.web.health import HealthChecks
from webhook.web.limits import ServerLimits
from webhook.web.listener import NoParserError, freeze_and_tune_gc, serve_until_signal

LEASE_NAME = "rightslice"


def run_webhook(settings: WebhookSettings) -> None:
    """Serve until a signal.

    Raises:
        StartError, RightsliceError: policies, cluster, certificate or kubeconfig cannot be used.
    """
    uvloop.run(_serve_webhook(settings))


async def _serve_webhook(settings: WebhookSettings) -> None:
    log = make_logger(settings.log_level)
    server = build_webhook_server(settings, log)
    follow_usage(server, settings)
    async with AsyncExitStack() as stack:
        _trace_reviews(server.telemetry, stack)
        stack.enter_context(server.cpu_limit.installed())
        if settings.uses_api_server:
            api = await stack.enter_async_context(await KubeClient.connect(settings.kubeconfig, settings.context))
            _join_cluster(server, api, settings, stack)
        try:
            port = await server.listen(settings.host, settings.port)
        except (NoParserError, OSError) as error:
            raise StartError(f"--listen {settings.listen}: {error}") from error
        freeze_and_tune_gc()
        policies = server.state.policies
        log.info("serving", listen=f"{settings.host}:{port}", policies=len(policies.policies), digest=policies.digest)
        await serve_until_signal(server, settings.drain_period, log)


def _trace_reviews(telemetry: Telemetry, stack: AsyncExitStack) -> None:
    """Export spans of reviews, if the environment says where to. Pods are admitted whatever is wrong with that."""
    try:
        telemetry.tracer = make_tracer(os.environ, telemetry.log)
    except TracingError as error:
        telemetry.log.warning("tracing is off", reason=str(error))
    if telemetry.tracer is not None:
        stack.callback(telemetry.tracer.close)


def _join_cluster(server: AdmissionServer, api: KubeClient, settings: WebhookSettings, stack: AsyncExitStack) -> None:
    """Connect the server to its cluster, and to the other replicas if it is one of them.

    The leader maintains the certificate and the status of policies, and halts rollouts whose pods fail.
    """
    informers = follow_cluster(server, api, settings) if settings.is_live else None
    if not settings.is_cluster_replica:
        return
    state, telemetry, clock = server.state, server.telemetry, server.clock
    lease = LeaseName(settings.tls_secret_ref[0], LEASE_NAME)
    identity = f"{socket.gethostname()}_{uuid4().hex[:8]}"
    elector = LeaderElector(api, lease, identity)
    stack.push_async_callback(elector.release)
    server.tasks = [*server.tasks, elector.run]
    if settings.manages_tls:
        _manage_certificate(server, api, settings, elector)
    if informers is None:
        return

    def is_leader() -> bool:
        return elector.is_leader

    def watch_pods(outcomes: OutcomeStore) -> Reflector[OutcomePod]:
        return Reflector(api, PODS, outcomes, SystemRandom(), telemetry)

    keeper = EscrowKeeper(api, LeaseName(lease.namespace, QUOTA_LEASE), identity, state, lambda: informers.pods_contact)
    leases = WatchedResource("leases", lease.collection_path, dict[str, Any], {"fieldSelector": keeper.selector})
    escrow_watch = Reflector(api, leases, keeper.store(), SystemRandom(), telemetry, max_pause=0.0)
    stack.push_async_callback(keeper.release)
    server.tasks = [*server.tasks, keeper.run, escrow_watch.run]
    server.health_checks = [*server.health_checks, keeper.checks]
    statuses = PolicyStatusWriter(api, informers.policies, state, is_leader, telemetry, clock)
    rollouts = RolloutController(api, informers.policies, state, watch_pods, is_leader, telemetry, clock)
    events = EventWriter(api, telemetry, socket.gethostname(), clock)
    server.tasks = [*server.tasks, statuses.run, rollouts.run, events.run]


def build_webhook_server(settings: WebhookSettings, log: StructuredLogger) -> AdmissionServer:
    """Build the server. For a live cluster, call `follow_cluster` next.

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
    live = empty_view().with_replicas(settings.replicas).with_queues(_configured_queues(settings))
    if settings.node_groups is not None:
        live = live.with_group_sources(GroupSources(read_node_groups(str(settings.node_groups))))
    if settings.scheduler_config is not None:
        live = live.with_schedulers(read_schedulers(str(settings.scheduler_config)))
    view = live if settings.is_live else read_snapshot(settings.cluster).view
    state = AdmissionState(policies, view, UsageView(), PolicyLoadStatus(now if files else None))
    if files is not None:
        telemetry.record_policies_loaded(policies.digest, len(policies.policies), now)
    checks: list[HealthChecks] = []
    polls = [] if settings.is_live else [PolicyReloader(files, load, state, utc_now, telemetry).reload_if_changed]
    pair = initial_key_pair(settings, utc_now())
    client_files = client_rule_files(settings)
    tls = build_server_tls(settings, pair, read_client_rules(client_files))
    if not settings.manages_tls:
        telemetry.set_certificate_expiry(expiry_of(pair.certificate))
    certificate = watch_certificate(settings, tls, telemetry)
    if certificate is not None:
        polls.append(certificate.reload_if_changed)
        checks.append(certificate.checks)
    limits = ServerLimits(connections=connection_limit(settings, log), in_flight=settings.max_in_flight)
    server = AdmissionServer(state, telemetry, utc_now, tls, limits, polls, health_checks=checks)
    rules = watch_client_rules(client_files, server, log)
    if rules is not None:
        server.polls, server.health_checks = [*server.polls, rules.reload_if_changed], [*checks, rules.checks]
    return server


def _configured_queues(settings: WebhookSettings) -> KueueQueues:
    """Return no queues, with Kueue's configuration."""
    path = settings.kueue_config
    return NO_QUEUES if path is None else KueueQueues((), read_kueue_configuration(str(path)))


def follow_cluster(server: AdmissionServer, api: KubeClient, settings: WebhookSettings) -> ClusterInformers:
    """Make the server follow a live cluster once it listens. It is not ready before it has listed everything."""
    state, telemetry = server.state, server.telemetry
    files = PolicyFiles(settings.policies) if settings.policies else None
    informers = ClusterInformers(api, state, SystemRandom(), telemetry, settings.namespace)
    reloader = PolicyReloader(files, _policy_loader(settings), state, utc_now, telemetry, informers.policies)
    state.live_cluster = informers
    telemetry.view_age, telemetry.watches = lambda: informers.age, lambda: informers.states

    async def poll_policies() -> None:
        if informers.ready:  # earlier, policies that are not listed yet would count as deleted
            await reloader.reload_if_changed()

    def on_synced() -> None:
        freeze_and_tune_gc()
        telemetry.log.info("ready", server=api.server, nodes=len(state.view.fleet.nodes))

    server.tasks = [*server.tasks, lambda: informers.run(reloader.reload_if_changed, on_synced)]
    server.polls = [*server.polls, poll_policies]
    return informers


def follow_usage(server: AdmissionServer, settings: WebhookSettings) -> None:
    """Make the server read GPU usage once it listens, if a source is configured.

    Raises:
        UsageError: the source or its credentials cannot be used.
    """
    if settings.usage is not None:
        request = UsageRequest(file=str(settings.usage.absolute()))
    elif settings.prometheus is not None:
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
        request = UsageRequest(source)
    else:
        return
    seconds = 60 * settings.usage_minutes
    refresher = UsageRefresher(request, seconds, server.state, utc_now, server.telemetry, SystemRandom())
    server.tasks = [*server.tasks, refresher.run]
    server.health_checks = [*server.health_checks, refresher.checks]


def _absolute_path(path: Path | None) -> str:
    return str(path.absolute()) if path is not None else ""


def _policy_loader(settings: WebhookSettings) -> PolicyLoader:
    """Return the function that loads policies, with every mode lowered to audit if the server only audits."""

    def load_as_audit(sources: Iterable[tuple[str, str]]) -> LoadResult:
        loaded = load_policies(sources)
        return loaded if loaded.policies is None else loaded._replace(policies=policies_as_audit(loaded.policies))

    return load_policies if settings.mode == "enforce" else load_as_audit


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def _manage_certificate(
    server: AdmissionServer, api: KubeClient, settings: WebhookSettings, elector: LeaderElector
) -> None:
    """Make the server use a certificate from a Secret. It is not ready before it has one."""
    configurations = WebhookConfigSelector.parse(settings.webhook_configurations)
    spec = ManagedCertificateSpec(SecretName(*settings.tls_secret_ref), configurations, settings.tls_server_names)
    reconciler = CertificateReconciler(api, spec, lambda: elector.is_leader, server.clock)
    bundles = CaBundleWatch()
    certificate = ManagedCertificate(reconciler, elector, server.tls, server.telemetry, server.clock, bundles)
    watches = [
        Reflector(api, resource, bundles, SystemRandom(), server.telemetry, max_pause=0.0)
        for resource in configurations.watched_resources()
    ]
    server.before_listen = [*server.before_listen, certificate.load_stored]
    server.tasks = [*server.tasks, certificate.run, *(watch.run for watch in watches)]
    server.health_checks = [*server.health_checks, certificate.checks]
