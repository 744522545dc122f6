"""The parts of `serve webhook --tls-secret`: the client, the election, the keeper, and what gives it to the server."""

from __future__ import annotations

import socket
import ssl
from contextlib import AsyncExitStack
from uuid import uuid4

from webhook.certs.hooks import HookChoice
from webhook.certs.keeping import Keeper, Keeping
from webhook.certs.secrets import SecretName
from webhook.kube.api import Api
from webhook.kube.leading import Leading, LeaseName
from webhook.server.managed import ManagedCertificate
from webhook.server.world import Clock
from webhook.settings import Settings
from webhook.telemetry.telemetry import Telemetry

LEASE = "rightslice"


async def manage_certificate(
    settings: Settings, context: ssl.SSLContext, telemetry: Telemetry, clock: Clock, parts: AsyncExitStack
) -> ManagedCertificate:
    """What keeps the certificate of a context as the Secret of the settings has it.

    Args:
        settings: With `tls_secret`.
        context: TLS of the server.
        telemetry: Told what happens.
        clock: The moment.
        parts: Gets what has to be closed in the end.

    Raises:
        AccessError: nothing says where the API server is.
    """
    namespace, _, name = (settings.tls_secret or "").partition("/")
    api = await parts.enter_async_context(await Api.connect(settings.kubeconfig, settings.context))
    leading = Leading(api, LeaseName(namespace, LEASE), f"{socket.gethostname()}_{uuid4().hex[:8]}")
    parts.push_async_callback(leading.release)
    keeping = Keeping(SecretName(namespace, name), HookChoice.parse(settings.webhook_configurations), settings.names)
    return ManagedCertificate(Keeper(api, keeping, lambda: leading.leads, clock), leading, context, telemetry, clock)
