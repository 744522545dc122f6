"""What every process that serves needs before it listens: a certificate, who may ask, how many at once."""

from __future__ import annotations

import ssl
from datetime import datetime

from webhook.certs.issuer import create_self_signed
from webhook.settings import ServerSettings
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.cert_reload import CertificateReloader
from webhook.web.process_tuning import raise_descriptor_limit
from webhook.web.tls import (
    CertificateError,
    CertificateFiles,
    ClientCertificateRules,
    PemPair,
    server_context,
    verify_clients,
)


class StartError(Exception):
    """The server cannot start; the message says what to change."""


def initial_key_pair(settings: ServerSettings, now: datetime) -> PemPair:
    """The pair to begin with. One that is made here is trusted by nobody but who was told to.

    Raises:
        StartError: a file cannot be read.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        made = create_self_signed([settings.host, "localhost"], now)
        return PemPair(made.certificate, made.key)
    try:
        return CertificateFiles(settings.tls_cert, settings.tls_key).read()
    except OSError as error:
        raise StartError(f"{error.filename}: cannot be read ({error.strerror})") from error


def trusted_clients(settings: ServerSettings) -> ClientCertificateRules | None:
    """Who may ask; None: anyone.

    Raises:
        StartError: the file of authorities cannot be used.
    """
    if settings.client_ca is None:
        return None
    try:
        clients = ClientCertificateRules(
            settings.client_ca.read_text(encoding="ascii", errors="backslashreplace"), settings.client_name
        )
        verify_clients(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), clients)
    except OSError as error:
        raise StartError(f"--client-ca {settings.client_ca}: cannot be read ({error.strerror})") from error
    except CertificateError as error:
        raise StartError(f"--client-ca {settings.client_ca}: {error}") from error
    return clients


def build_listening_context(
    settings: ServerSettings, pair: PemPair, clients: ClientCertificateRules | None
) -> ssl.SSLContext:
    """The context to listen with.

    Raises:
        StartError: the pair cannot be used.
    """
    try:
        return server_context(pair, clients)
    except CertificateError as error:
        raise StartError(f"{settings.tls_cert}, {settings.tls_key}: {error}") from error


def watch_certificate(
    settings: ServerSettings, context: ssl.SSLContext, telemetry: ServerTelemetry
) -> CertificateReloader | None:
    """What keeps the context's certificate as its files are; None where it is not from files."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateReloader(CertificateFiles(settings.tls_cert, settings.tls_key), context, telemetry)


def connection_limit(settings: ServerSettings, log: StructuredLogger) -> int:
    """How many connections there is room for."""
    wanted = settings.max_connections
    room = raise_descriptor_limit(wanted)
    if room < wanted:
        log.warning("fewer connections than asked for: the limit of open files is low", connections=room, asked=wanted)
    return room
