"""A server whose certificate is kept in a Secret, for tests on an API server in memory and on a real one."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from tests.server.site import PAIR, PATIENCE, Site, Talk, http, serve_site
from webhook.certs.reconciler import CertificateReconciler, ManagedCertificateSpec
from webhook.certs.webhook_configs import CertificateApi
from webhook.kube.leader_election import LeaderElector, LeaseApi, LeaseName
from webhook.server.app import AdmissionServer
from webhook.server.managed_certificate import ManagedCertificate
from webhook.web.listener import BackgroundTask
from webhook.web.tls import PemPair, server_context


class AnyApi(CertificateApi, LeaseApi, Protocol):
    """Both things that an API server is used for."""


@contextmanager
def managing(
    api: AnyApi,
    keeping: ManagedCertificateSpec,
    lease: LeaseName,
    monotonic: Callable[[], float] = time.monotonic,
    beside: Sequence[BackgroundTask] = (),
) -> Iterator[Site]:
    """Serve what is kept. `monotonic` tells how long bundles have been right; what is `beside` runs there too."""
    context = server_context(PemPair(PAIR.certificate, PAIR.key))

    def prepare(server: AdmissionServer) -> None:
        leading = LeaderElector(api, lease, "pod-1")
        keeper = CertificateReconciler(api, keeping, lambda: leading.is_leader, _now, monotonic)
        kept = ManagedCertificate(keeper, leading, context, server.telemetry, _now)
        server.tasks, server.health_checks = (leading.run, kept.run, *beside), (kept.checks,)

    with serve_site(context=context, prepare=prepare) as site:
        yield site


def page(port: int) -> tuple[int, str]:
    """The status of /readyz and its lines. Probes do not look at the certificate."""
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
        blind.wrap_socket(plain) as talk,
    ):
        talk.sendall(http("GET", "/readyz?verbose", b"", "Connection: close"))
        answer = b"".join(iter(lambda: talk.recv(65536), b"")).decode()
    status, _, body = answer.partition("\r\n\r\n")
    return int(status.split()[1]), body


def served_certificate(port: int, bundle: bytes, name: str) -> bytes:
    """The certificate that a client gets which trusts a bundle and calls by a name.

    Raises:
        OSError: it does not trust what it gets.
    """
    talk = Talk(port, authority=bundle, name=name)
    try:
        return ssl.DER_cert_to_PEM_cert(talk.socket.getpeercert(binary_form=True) or b"").encode()
    finally:
        talk.close()


def _now() -> datetime:
    return datetime.now(UTC)
