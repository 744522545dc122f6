"""`serve webhook --managed-tls`: the election, the keeper, and what gives its certificates to the server."""

from __future__ import annotations

import socket
from uuid import uuid4

from webhook.certs.hooks import HookChoice
from webhook.certs.keeping import Keeper, Keeping
from webhook.certs.secrets import SecretName
from webhook.kube.api import Api
from webhook.kube.leading import Leading, LeaseName
from webhook.server.app import Server
from webhook.server.managed import ManagedCertificate
from webhook.settings import Settings

LEASE = "rightslice"


def manage_certificate(server: Server, api: Api, settings: Settings) -> Leading:
    """Have a server take its certificate from a Secret once it listens. It is not ready before it has one.

    Gives this replica's part in the election, to be released in the end.
    """
    namespace, name = settings.secret
    leading = Leading(api, LeaseName(namespace, LEASE), f"{socket.gethostname()}_{uuid4().hex[:8]}")
    keeping = Keeping(SecretName(namespace, name), HookChoice.parse(settings.webhook_configurations), settings.names)
    keeper = Keeper(api, keeping, lambda: leading.leads, server.clock)
    managed = ManagedCertificate(keeper, leading, server.context, server.telemetry, server.clock)
    server.companions = [*server.companions, leading.run, managed.run]
    server.checks = [*server.checks, managed.checks]
    return leading
