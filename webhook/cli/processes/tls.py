"""The certificate, trusted clients and connection limit of the processes that serve HTTPS.

All functions raise StartError if a setting cannot be used.
"""

from __future__ import annotations

from datetime import datetime

from webhook.certs.issuer import create_self_signed
from webhook.errors import read_problem
from webhook.settings import ServerSettings
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.limits import ServerLimits
from webhook.web.listener import HttpListener, raise_descriptor_limit
from webhook.web.tls import (
    CertificateError,
    CertificateFiles,
    CertificateReloader,
    ClientCertificateRules,
    ClientRuleFiles,
    ClientRulesReloader,
    PemPair,
    ServerTls,
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
        raise StartError(f"{error.filename}: {read_problem(error)}") from error


def client_rule_files(settings: ServerSettings) -> ClientRuleFiles | None:
    """Return where the rules for clients are; None if all clients are accepted."""
    if settings.client_ca is not None:
        return ClientRuleFiles(settings.client_ca, settings.client_name)
    folder = settings.client_ca_folder
    return ClientRuleFiles(folder / "ca.crt", name_file=folder / "name", optional=True) if folder is not None else None


def read_client_rules(files: ClientRuleFiles | None) -> ClientCertificateRules | None:
    """Return the rules for clients; None if clients need no certificate."""
    try:
        return files.read() if files is not None else None
    except OSError as error:
        raise StartError(f"--client-ca {error.filename}: {read_problem(error)}") from error
    except CertificateError as error:
        raise StartError(f"--client-ca {files.authorities if files else ''}: {error}") from error


def watch_client_rules(
    files: ClientRuleFiles | None, server: HttpListener, log: StructuredLogger
) -> ClientRulesReloader | None:
    """Return the reloader of the rules for clients; None without files."""
    tls = server.tls
    if files is None or tls is None:
        return None

    def apply(rules: ClientCertificateRules) -> None:
        tls.replace_clients(rules)
        server.registry.replace_client_rules(rules)

    return ClientRulesReloader(files, tls.clients, apply, lambda: server.registry.requires_certificates, log)


def build_server_tls(settings: ServerSettings, pair: PemPair, clients: ClientCertificateRules | None) -> ServerTls:
    """Build the TLS to listen with."""
    try:
        return ServerTls(pair, clients)
    except CertificateError as error:
        raise StartError(f"{settings.tls_cert}, {settings.tls_key}: {error}") from error


def watch_certificate(
    settings: ServerSettings, tls: ServerTls, telemetry: ServerTelemetry
) -> CertificateReloader | None:
    """Return the reloader of the certificate files; None without files."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateReloader(CertificateFiles(settings.tls_cert, settings.tls_key), tls, telemetry)


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
