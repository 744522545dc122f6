"""Slow, stalled and silent clients are closed at their deadline without effect on others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trustme

from tests.server.site import PATIENCE, Answer, Site, TlsConnection, encoded, http, post, review, serve_site
from webhook.model.decisions import Decision, patch_add
from webhook.web.connection import ConnectionRegistry, HttpConnection
from webhook.web.http_messages import HttpRoute, text_response
from webhook.web.limits import ServerLimits
from webhook.web.tls import ClientCertificateRules

GOOD = encoded(review())
REQUEST = post("/validate", GOOD)
HALF = len(REQUEST) - len(GOOD) // 2
ALLOWED = 0.4


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve_site(limits=ServerLimits(request_time=ALLOWED, close_time=0.05, stall_time=0.3)) as one:
        yield one


STALLS = {
    "half a header": REQUEST[:30],
    "a header and no body": REQUEST[: len(REQUEST) - len(GOOD)],
    "half a body": REQUEST[:HALF],
    "half a chunk": http("POST", "/validate", b"", "Content-Type: application/json").replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked"
    )
    + b"ff\r\n{",
}


@pytest.mark.parametrize("sent", STALLS.values(), ids=STALLS)
def test_a_stalled_request_gets_408_and_its_connection_is_closed(site: Site, sent: bytes) -> None:
    start = time.monotonic()
    connection = site.connect()
    connection.send(sent)
    answer = connection.read()
    assert answer is not None
    assert answer.status == 408
    assert b"too long to arrive" in answer.body
    assert connection.read() is None
    assert time.monotonic() - start > ALLOWED - 0.1


@pytest.fixture
def guarded_site() -> Iterator[Site]:
    """A site whose reviews need a client certificate."""
    rules = ClientCertificateRules(trustme.CA().cert_pem.bytes().decode(), required=True)
    with serve_site(limits=ServerLimits(request_time=ALLOWED, close_time=0.05), clients=rules) as one:
        yield one


def test_a_silent_client_that_may_send_no_reviews_is_closed_after_the_handshake(guarded_site: Site) -> None:
    assert guarded_site.connect().read() is None


def test_a_connection_that_an_api_server_has_opened_ahead_waits_for_its_first_request(site: Site) -> None:
    """Go opens a connection for a request that another one then takes, and keeps it for 90 s."""
    connection = site.connect()
    time.sleep(ALLOWED + 0.6)
    connection.send(REQUEST)
    assert (connection.read() or (0,))[0] == 200


def test_a_connection_without_a_request_is_closed_eventually() -> None:
    with serve_site(limits=ServerLimits(keepalive=0.1, close_time=0.05)) as site:
        assert site.connect().closed()


DRIPPED = {
    "header": http("GET", "/readyz", b"", f"X-Long: {'x' * 4000}"),
    "body": post("/validate", GOOD + b" " * 4000),
}


@pytest.mark.parametrize("request_", DRIPPED.values(), ids=DRIPPED)
def test_slowly_arriving_bytes_do_not_extend_the_deadline(site: Site, request_: bytes) -> None:
    connection = site.connect()
    connection.send(request_[:-4000])
    assert (send_slowly(connection, request_[-4000:]) or (408,))[0] == 408
    assert connection.read() is None


def send_slowly(connection: TlsConnection, data: bytes) -> Answer | None:
    """Send one byte every 10 ms; return the response, or None if the server closes the connection instead."""
    end = time.monotonic() + PATIENCE
    connection.socket.settimeout(0.01)
    for position in range(len(data)):
        assert time.monotonic() < end, "the server would wait for all bytes"
        connection.send(data[position : position + 1])
        with suppress(TimeoutError):
            closed = connection.closed()
            connection.socket.settimeout(PATIENCE)
            return None if closed else connection.read()
    raise AssertionError("it waited for the last of them")


def test_the_timeout_parameter_shortens_the_deadline() -> None:
    with serve_site(limits=ServerLimits(request_time=10 * PATIENCE, close_time=0.05)) as site:
        connection = site.connect()
        connection.send(post("/validate?timeout=100ms", GOOD)[:HALF])
        assert (connection.read() or (0,))[0] == 408


def test_a_review_after_its_own_timeout_is_not_evaluated(site: Site) -> None:
    connection = site.connect()
    request = post("/validate?timeout=1ns", GOOD)
    load, refused = site.server.registry.load, site.server.telemetry.rejections
    before = refused["timeout"]
    connection.send(request[:HALF])
    site.until(lambda: load.reading > 0 or refused["timeout"] > before)
    connection.send(request[HALF:])
    answer = connection.read()
    assert answer is None or answer.status in (408, 503)


def test_idle_connections_outlast_the_request_timeout(site: Site) -> None:
    connection = site.connect()
    for _ in range(2):
        connection.send(REQUEST)
        assert (connection.read() or (0,))[0] == 200
        time.sleep(ALLOWED + 0.3)


def test_idle_connections_stay_open_longer_than_those_of_an_api_server() -> None:
    assert ServerLimits().keepalive >= 120


def test_idle_connections_are_closed_eventually() -> None:
    with serve_site(limits=ServerLimits(keepalive=2.0, close_time=0.05)) as site:
        connection = site.connect()
        connection.send(REQUEST)
        assert connection.read() is not None
        assert connection.closed()


def test_many_silent_clients_do_not_delay_others() -> None:
    with serve_site(limits=ServerLimits(request_time=10 * PATIENCE)) as site, silent_clients(site):
        assert site.send_request(REQUEST).status == 200


def test_many_silent_clients_are_closed_at_their_deadline(guarded_site: Site) -> None:
    with silent_clients(guarded_site) as stalled:
        assert all(connection.closed() for connection in stalled)
    guarded_site.until(lambda: not guarded_site.server.registry.connections)
    assert guarded_site.server.registry.load.reading == guarded_site.server.registry.load.buffered == 0


@contextmanager
def silent_clients(site: Site) -> Iterator[list[TlsConnection]]:
    """Open 200 connections that send nothing, and 50 that stop after the handshake; yield those 50."""
    silent = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(200)]
    try:
        yield [site.connect() for _ in range(50)]
    finally:
        for one in silent:
            one.close()


def test_a_client_that_reads_no_responses_is_closed() -> None:
    large = Decision(patch=(patch_add(("metadata", "labels"), {"x": "y" * 100_000}),))
    with serve_site(lambda *_: large, limits=ServerLimits(stall_time=0.3)) as site:
        connection = site.connect()
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        end = time.monotonic() + PATIENCE
        connection.socket.setblocking(False)
        while site.server.registry.connections and time.monotonic() < end:
            try:
                connection.socket.send(post("/mutate", GOOD))
                time.sleep(0.0005)
            except (BlockingIOError, ssl.SSLWantWriteError):
                time.sleep(0.01)
            except OSError:
                break
        site.until(lambda: not site.server.registry.connections)


class Full(asyncio.Transport):
    """A transport whose client reads nothing: its buffer is full with the first byte."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self._connection, self._full = connection, False

    def pause_reading(self) -> None:
        """Ignore it."""

    def resume_reading(self) -> None:
        """Ignore it."""

    def write(self, _data: object) -> None:
        """Report once that the buffer is full."""
        if not self._full:
            self._full = True
            self._connection.pause_writing()

    def close(self) -> None:
        """Ignore it; the client would read the rest first."""


def seconds_left(requests: bytes, *, after: bool = False) -> float:
    """Return the deadline of a client that sends requests and reads no response, or reads it later."""
    loop = asyncio.new_event_loop()
    routes = {"/review": HttpRoute("review", True, lambda _call: text_response(200, "x"))}
    connection = HttpConnection(ConnectionRegistry(routes, ServerLimits(), lambda _reason: None), loop)
    connection.connection_made(Full(connection))
    connection.data_received(requests)
    if after:
        connection.resume_writing()
    left = connection.expires - loop.time()
    loop.close()
    return left


SHORT = post("/review", b"{}")
UNTAKEN = {
    "a response": (SHORT, ServerLimits().stall_time),
    "a response, followed by half a request": (SHORT + SHORT[:10], ServerLimits().stall_time),
    "its last response": (post("/review", b"{}", "Connection: close"), ServerLimits().close_time),
}


@pytest.mark.parametrize(("requests", "most"), UNTAKEN.values(), ids=UNTAKEN)
def test_an_unread_response_does_not_get_the_idle_timeout(requests: bytes, most: float) -> None:
    assert seconds_left(requests) <= most


def test_a_client_that_reads_again_gets_the_idle_timeout() -> None:
    assert seconds_left(SHORT, after=True) > ServerLimits().keepalive - 1


def test_a_peer_that_disconnects_in_a_body_releases_its_buffers() -> None:
    with serve_site(limits=ServerLimits(request_time=10 * PATIENCE)) as site:
        connection, load = site.connect(), site.server.registry.load
        connection.send(REQUEST[:HALF])
        site.until(lambda: load.reading == 1)
        assert load.buffered > 0
        connection.close()
        site.until(lambda: load.reading == load.buffered == 0)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_clients_that_disconnect_leak_nothing() -> None:
    with serve_site(limits=ServerLimits(request_time=5.0, keepalive=3.0, close_time=0.05)) as site:
        site.send_request(REQUEST)  # the event loop opens a descriptor of its own with the first connection
        site.until(lambda: not site.server.registry.connections)
        before = open_files()
        gone = []
        for number in range(40):
            gone.append(site.connect())
            gone[-1].send(REQUEST)
            if number < 20:
                assert (gone[-1].read() or (0,))[0] == 200
        site.until(lambda: not site.server.registry.connections)
        site.until(lambda: open_files() <= before + len(gone))
    assert ServerLimits().keepalive <= 180, "seconds until an idle connection is closed"


def test_hundreds_of_new_connections_neither_disturb_others_nor_leak() -> None:
    with serve_site(limits=ServerLimits(close_time=0.05)) as site:
        canary = site.connect()
        before = open_files()
        for round_ in range(10):
            for _ in range(20):
                assert site.send_request(REQUEST).status == 200
            canary.send(REQUEST)
            answer = canary.read()
            assert answer is not None, f"after {20 * (round_ + 1)} connections"
            assert answer.status == 200
        site.until(lambda: len(site.server.registry.connections) == 1)
        site.until(lambda: open_files() <= before)
