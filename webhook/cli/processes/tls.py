"""The certificate, trusted clients and connection limit of the processes that serve HTTPS.

All functions raise StartError if a setting cannot be used.
"""

from __future__ import annotations

import ssl
from datetime import datetime

from webhook.certs.issuer import create_self_signed
from webhook.settings import ServerSettings
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.limits import ServerLimits
from webhook.web.process import raise_descriptor_limit
from webhook.web.tls import (
    CertificateError,
    CertificateFiles,
    CertificateReloader,
    ClientCertificateRules,
    PemPair,
    server_context,
    verify_clients,
)


class StartError(Exception):
    """The server cannot start; the message says what to change."""


def initial_key_pair(settings: ServerSettings, now: datetime) -> PemPair:
    """Read the certificate and key, or generate them if no files are given."""
    if settings.tls_cert is None or settings.tls_key is None:
        generated = create_self_signed([settings.host, "localhost"], now)
        return PemPair(generated.certificate, generated.key)
    try:
        return CertificateFiles(settings.tls_cert, settings.tls_key).read()
    except OSError as error:
        raise StartError(f"{error.filename}: cannot be read ({error.strerror})") from error


def trusted_clients(settings: ServerSettings) -> ClientCertificateRules | None:
    """Return the required client certificates; None if clients need none."""
    if settings.client_ca is None:
        return None
    try:
        authorities = settings.client_ca.read_text(encoding="ascii", errors="backslashreplace")
        clients = ClientCertificateRules(authorities, settings.client_name)
        verify_clients(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), clients)
    except OSError as error:
        raise StartError(f"--client-ca {settings.client_ca}: cannot be read ({error.strerror})") from error
    except CertificateError as error:
        raise StartError(f"--client-ca {settings.client_ca}: {error}") from error
    return clients


def build_listening_context(
    settings: ServerSettings, pair: PemPair, clients: ClientCertificateRules | None
) -> ssl.SSLContext:
    """Build the TLS context to listen with."""
    try:
        return server_context(pair, clients)
    except CertificateError as error:
        raise StartError(f"{settings.tls_cert}, {settings.tls_key}: {error}") from error


def watch_certificate(
    settings: ServerSettings, context: ssl.SSLContext, telemetry: ServerTelemetry
) -> CertificateReloader | None:
    """Return the reloader of the certificate files; None without files."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateReloader(CertificateFiles(settings.tls_cert, settings.tls_key), context, telemetry)


def connection_limit(settings: ServerSettings, log: StructuredLogger) -> int:
    """Raise the limit of open files, and return how many connections it allows."""
    requested = settings.max_connections
    descriptors = raise_descriptor_limit(requested + ServerLimits(connections=requested).pending)
    available = min(requested, max(1, descriptors * 2 // 3))
    if available < requested:
        log.warning(
            "fewer connections than requested: the limit of open files is low",
            connections=available,
            requested=requested,
        )
    return available
