"""What `serve webhook` does as one of the replicas of a cluster: elect a leader, keep certificates and statuses."""

from __future__ import annotations

import socket
from random import SystemRandom
from uuid import uuid4

from webhook.cache.outcomes import PODS, OutcomeStore, OutcomePod
from webhook.cache.policies import PolicyObjects
from webhook.certs.hooks import WebhookConfigSelector
from webhook.certs.keeping import CertificateReconciler, ManagedCertificateSpec
from webhook.certs.secrets import SecretName
from webhook.errors import ApiError
from webhook.kube.api import KubeClient
from webhook.kube.leading import LeaderElector, LeaseName
from webhook.kube.watching import WatchStatus, Reflector
from webhook.server.app import AdmissionServer
from webhook.server.eventing import EventWriter
from webhook.server.managed import ManagedCertificate
from webhook.server.policystatus import PolicyStatusWriter
from webhook.server.rollouts import RolloutController
from webhook.settings import WebhookSettings

LEASE_NAME = "rightslice"


def join_leader_election(server: AdmissionServer, api: KubeClient, settings: WebhookSettings) -> LeaderElector:
    """Have a server take part in the election once it listens. Its part is to be released in the end."""
    lease = LeaseName(settings.tls_secret_ref[0], LEASE_NAME)
    leading = LeaderElector(api, lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")
    server.tasks = [*server.tasks, leading.run]
    return leading


def manage_certificate(server: AdmissionServer, api: KubeClient, settings: WebhookSettings, leading: LeaderElector) -> None:
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

    def broke(state: WatchStatus, error: ApiError) -> None:
        server.telemetry.record_watch_error(state.name, str(error))

    def crashed(state: WatchStatus, error: Exception) -> None:
        server.telemetry.record_crash(state.name, "", error)

    def watch(outcomes: OutcomeStore) -> Reflector[OutcomePod]:
        return Reflector(api, PODS, outcomes, SystemRandom(), broke, crashed=crashed)

    rollouts = RolloutController(api, objects, server.state, watch, lambda: leading.is_leader, server.telemetry, server.clock)
    server.tasks = [*server.tasks, rollouts.run]


def update_policy_statuses(server: AdmissionServer, api: KubeClient, objects: PolicyObjects, leading: LeaderElector) -> None:
    """Have a server say in the status of policies what became of them."""
    statuses = PolicyStatusWriter(api, objects, server.state, lambda: leading.is_leader, server.telemetry, server.clock)
    server.tasks = [*server.tasks, statuses.run]
