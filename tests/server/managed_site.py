"""A server whose certificate is in a Secret, for tests on an API server in memory and on a real one."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol

from tests.server.site import PAIR, PATIENCE, Site, TlsConnection, http, serve_site
from webhook.certs.reconciler import CertificateApi, CertificateReconciler, ManagedCertificateSpec
from webhook.kube.leader_election import LeaderElector, LeaseApi, LeaseName
from webhook.server.handlers import AdmissionServer
from webhook.server.managed_certificate import ManagedCertificate
from webhook.web.listener import BackgroundTask
from webhook.web.tls import PemPair, ServerTls


class AnyApi(CertificateApi, LeaseApi, Protocol):
    """The API for certificates and for leader election."""


@contextmanager
def managed_server(
    api: AnyApi,
    spec: ManagedCertificateSpec,
    lease: LeaseName,
    monotonic: Callable[[], float] = time.monotonic,
    extra_tasks: Sequence[BackgroundTask] = (),
) -> Iterator[Site]:
    """Serve the managed certificate. `monotonic` measures how long bundles are unchanged; `extra_tasks` run too."""
    tls = ServerTls(PemPair(PAIR.certificate, PAIR.key))

    def prepare(server: AdmissionServer) -> None:
        elector = LeaderElector(api, lease, "pod-1")
        reconciler = CertificateReconciler(api, spec, lambda: elector.is_leader, _now, monotonic)
        managed = ManagedCertificate(reconciler, elector, tls, server.telemetry, _now)
        server.tasks, server.health_checks = (elector.run, managed.run, *extra_tasks), (managed.checks,)
        server.before_listen = (managed.load_stored,)

    with serve_site(tls=tls, prepare=prepare) as site:
        yield site


def read_readyz(port: int) -> tuple[int, str]:
    """Return the status of /readyz and its lines. Probes do not verify the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(http("GET", "/readyz?verbose", b"", "Connection: close"))
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    status, _, body = answer.partition("\r\n\r\n")
    return int(status.split()[1]), body


def served_certificate(port: int, bundle: bytes, name: str) -> bytes:
    """Return the certificate that a client gets that trusts a bundle and connects by a name.

    Raises:
        OSError: the client does not trust the certificate.
    """
    connection = TlsConnection(port, authority=bundle, name=name)
    try:
        return ssl.DER_cert_to_PEM_cert(connection.socket.getpeercert(binary_form=True) or b"").encode()
    finally:
        connection.close()


def _now() -> datetime:
    return datetime.now(UTC)
