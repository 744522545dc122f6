"""What `serve webhook` does as one of the replicas of a cluster: elect a leader, keep certificates and statuses."""

from __future__ import annotations

import socket
from random import SystemRandom
from uuid import uuid4

from webhook.cache.outcomes import PODS, Outcomes, Pod
from webhook.cache.policies import PolicyObjects
from webhook.certs.hooks import HookChoice
from webhook.certs.keeping import Keeper, Keeping
from webhook.certs.secrets import SecretName
from webhook.errors import ApiError
from webhook.kube.api import Api
from webhook.kube.leading import Leading, LeaseName
from webhook.kube.watching import State, Watch
from webhook.server.app import Server
from webhook.server.eventing import EventWriter
from webhook.server.managed import ManagedCertificate
from webhook.server.policystatus import PolicyStatuses
from webhook.server.rollouts import Rollouts
from webhook.settings import Settings

LEASE = "rightslice"


def take_part(server: Server, api: Api, settings: Settings) -> Leading:
    """Have a server take part in the election once it listens. Its part is to be released in the end."""
    lease = LeaseName(settings.secret[0], LEASE)
    leading = Leading(api, lease, f"{socket.gethostname()}_{uuid4().hex[:8]}")
    server.companions = [*server.companions, leading.run]
    return leading


def manage_certificate(server: Server, api: Api, settings: Settings, leading: Leading) -> None:
    """Have a server take its certificate from a Secret once it listens. It is not ready before it has one."""
    hooks = HookChoice.parse(settings.webhook_configurations)
    keeping = Keeping(SecretName(*settings.secret), hooks, settings.names)
    keeper = Keeper(api, keeping, lambda: leading.leads, server.clock)
    managed = ManagedCertificate(keeper, leading, server.context, server.telemetry, server.clock)
    server.companions = [*server.companions, managed.run]
    server.checks = [*server.checks, managed.checks]


def write_events(server: Server, api: Api) -> None:
    """Have a server tell the owners of pods what became of them."""
    writer = EventWriter(api, server.telemetry, socket.gethostname(), server.clock)
    server.companions = [*server.companions, writer.run]


def watch_rollouts(server: Server, api: Api, objects: PolicyObjects, leading: Leading) -> None:
    """Have a server halt rollouts that do worse than the rest, for as long as it leads."""

    def broke(state: State, error: ApiError) -> None:
        server.telemetry.watch_broke(state.name, str(error))

    def crashed(state: State, error: Exception) -> None:
        server.telemetry.crashed(state.name, "", error)

    def watch(outcomes: Outcomes) -> Watch[Pod]:
        return Watch(api, PODS, outcomes, SystemRandom(), broke, crashed=crashed)

    rollouts = Rollouts(api, objects, server.world, watch, lambda: leading.leads, server.telemetry, server.clock)
    server.companions = [*server.companions, rollouts.run]


def keep_statuses(server: Server, api: Api, objects: PolicyObjects, leading: Leading) -> None:
    """Have a server say in the status of policies what became of them."""
    statuses = PolicyStatuses(api, objects, server.world, lambda: leading.leads, server.telemetry, server.clock)
    server.companions = [*server.companions, statuses.run]
