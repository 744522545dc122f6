"""Connections that make a server hold memory, for `benchmarks.hostile`."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPResponse
from typing import NamedTuple

from benchmarks.reviews import strangers
from benchmarks.server import HOST
from webhook.server.handlers import API_SERVER

LARGE = 300_000
"""Bytes of a large review."""


class Attack(NamedTuple):
    """An ordinary review on each connection, and then a large one.

    Attributes:
        connections: How many are opened, one after another.
        held: How many of them are open at the same time.
        is_complete: False if the last byte of the large review is not sent.
    """

    connections: int
    held: int
    is_complete: bool = True


ATTACKS = {
    "1,700 connections kept open after a large review": Attack(1700, 1700),
    "2,000 connections, 400 at a time, that never end a large review": Attack(2000, 400, is_complete=False),
}


def hold_connections(port: int, attack: Attack, watch: Callable[[], None]) -> None:
    """Open connections and hold them; calls `watch` after each, and closes all in the end."""
    [review] = strangers(1)
    ordinary, large = _post(review), _post(b" " * LARGE + review)
    held: deque[ssl.SSLSocket] = deque()
    for _ in range(attack.connections):
        held.append(_connect(port))
        _exchange(held[-1], ordinary)
        with suppress(OSError):  # the server may refuse a large body at once
            if attack.is_complete:
                _exchange(held[-1], large)
            else:
                held[-1].sendall(large[:-1])
        watch()
        if len(held) > attack.held:
            held.popleft().close()
    for each in held:
        each.close()


def client_context() -> ssl.SSLContext:
    """Return the TLS of a client that trusts every server."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


_CONTEXT = client_context()


def _connect(port: int) -> ssl.SSLSocket:
    return _CONTEXT.wrap_socket(socket.create_connection((HOST, port), 60))


def _exchange(connection: ssl.SSLSocket, request: bytes) -> None:
    connection.sendall(request)
    response = HTTPResponse(connection)
    response.begin()
    response.read()


def _post(body: bytes) -> bytes:
    lines = ("POST /validate HTTP/1.1", f"Host: {HOST}", f"User-Agent: {API_SERVER}", "Content-Type: application/json")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body
