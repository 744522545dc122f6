"""What every process that serves needs before it listens: a certificate, who may ask, how many at once."""

from __future__ import annotations

import ssl
from datetime import datetime

from webhook.certs.selfsigned import self_signed
from webhook.settings import Serving
from webhook.telemetry.logs import Logger
from webhook.web.clients import Clients
from webhook.web.descriptors import room_for_connections
from webhook.web.renewing import CertificateWatch, Told
from webhook.web.tls import CertificateError, PairFiles, PemPair, server_context, trust


class StartError(Exception):
    """The server cannot start; the message says what to change."""


def first_pair(settings: Serving, now: datetime) -> PemPair:
    """The pair to begin with. One that is made here is trusted by nobody but who was told to.

    Raises:
        StartError: a file cannot be read.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        made = self_signed([settings.host, "localhost"], now)
        return PemPair(made.certificate, made.key)
    try:
        return PairFiles(settings.tls_cert, settings.tls_key).read()
    except OSError as error:
        raise StartError(f"{error.filename}: cannot be read ({error.strerror})") from error


def clients_of(settings: Serving) -> Clients | None:
    """Who may ask; None: anyone.

    Raises:
        StartError: the file of authorities cannot be used.
    """
    if settings.client_ca is None:
        return None
    try:
        clients = Clients(
            settings.client_ca.read_text(encoding="ascii", errors="backslashreplace"), settings.client_name
        )
        trust(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), clients)
    except OSError as error:
        raise StartError(f"--client-ca {settings.client_ca}: cannot be read ({error.strerror})") from error
    except CertificateError as error:
        raise StartError(f"--client-ca {settings.client_ca}: {error}") from error
    return clients


def context_of(settings: Serving, pair: PemPair, clients: Clients | None) -> ssl.SSLContext:
    """The context to listen with.

    Raises:
        StartError: the pair cannot be used.
    """
    try:
        return server_context(pair, clients)
    except CertificateError as error:
        raise StartError(f"{settings.tls_cert}, {settings.tls_key}: {error}") from error


def watch_of(settings: Serving, context: ssl.SSLContext, told: Told) -> CertificateWatch | None:
    """What keeps the context's certificate as its files are; None where it is not from files."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateWatch(PairFiles(settings.tls_cert, settings.tls_key), context, told)


def connections(settings: Serving, log: Logger) -> int:
    """How many connections there is room for."""
    wanted = settings.max_connections
    room = room_for_connections(wanted)
    if room < wanted:
        log.warning("fewer connections than asked for: the limit of open files is low", connections=room, asked=wanted)
    return room
