"""Slow, stalled and silent clients are closed at their deadline without effect on others."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.server.site import PATIENCE, Answer, Site, Talk, encoded, http, post, review, serve_site
from webhook.web.connection import ConnectionRegistry, HttpConnection
from webhook.web.http_messages import HttpRoute, text_response
from webhook.web.limits import ServerLimits

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
    talk = site.talk()
    talk.send(sent)
    answer = talk.read()
    assert answer is not None
    assert answer.status == 408
    assert b"too long to arrive" in answer.body
    assert talk.read() is None
    assert time.monotonic() - start > ALLOWED - 0.1


def test_a_silent_client_is_closed_after_the_handshake(site: Site) -> None:
    assert site.talk().read() is None


DRIPPED = {
    "header": http("GET", "/readyz", b"", f"X-Long: {'x' * 4000}"),
    "body": post("/validate", GOOD + b" " * 4000),
}


@pytest.mark.parametrize("request_", DRIPPED.values(), ids=DRIPPED)
def test_the_deadline_is_absolute_however_steadily_bytes_drip(site: Site, request_: bytes) -> None:
    talk = site.talk()
    talk.send(request_[:-4000])
    assert (dripping(talk, request_[-4000:]) or (408,))[0] == 408
    assert talk.read() is None


def dripping(talk: Talk, data: bytes) -> Answer | None:
    """The response while bytes arrive, one every 10 ms; None if the server closes instead."""
    end = time.monotonic() + PATIENCE
    talk.socket.settimeout(0.01)
    for position in range(len(data)):
        assert time.monotonic() < end, "it would wait for the last of them"
        talk.send(data[position : position + 1])
        with suppress(TimeoutError):
            closed = talk.closed()
            talk.socket.settimeout(PATIENCE)
            return None if closed else talk.read()
    raise AssertionError("it waited for the last of them")


def test_the_timeout_parameter_shortens_the_deadline() -> None:
    with serve_site(limits=ServerLimits(request_time=10 * PATIENCE, close_time=0.05)) as site:
        talk = site.talk()
        talk.send(post("/validate?timeout=100ms", GOOD)[:HALF])
        assert (talk.read() or (0,))[0] == 408


def test_a_review_after_its_own_timeout_is_not_evaluated(site: Site) -> None:
    talk = site.talk()
    request = post("/validate?timeout=1ns", GOOD)
    load, refused = site.server.registry.load, site.server.telemetry.rejections
    before = refused["timeout"]
    talk.send(request[:HALF])
    site.until(lambda: load.reading > 0 or refused["timeout"] > before)
    talk.send(request[HALF:])
    answer = talk.read()
    assert answer is None or answer.status in (408, 503)


def test_idle_connections_outlast_the_request_timeout(site: Site) -> None:
    talk = site.talk()
    for _ in range(2):
        talk.send(REQUEST)
        assert (talk.read() or (0,))[0] == 200
        time.sleep(ALLOWED + 0.3)


def test_idle_connections_outlast_those_of_an_api_server() -> None:
    assert ServerLimits().keepalive >= 120


def test_idle_connections_end_too() -> None:
    with serve_site(limits=ServerLimits(keepalive=0.1, close_time=0.05)) as site:
        talk = site.talk()
        talk.send(REQUEST)
        assert talk.read() is not None
        assert talk.closed()


def test_many_silent_clients_do_not_hold_up_another() -> None:
    with serve_site(limits=ServerLimits(request_time=10 * PATIENCE)) as site, silent_clients(site):
        assert site.ask(REQUEST).status == 200


def test_many_silent_clients_are_closed_at_their_deadline(site: Site) -> None:
    with silent_clients(site) as stalled:
        assert all(talk.closed() for talk in stalled)
    site.until(lambda: not site.server.registry.connections)
    assert site.server.registry.load.reading == site.server.registry.load.buffered == 0


@contextmanager
def silent_clients(site: Site) -> Iterator[list[Talk]]:
    """Inside, 200 connections without a byte, and 50 that end with the handshake, which are given."""
    silent = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(200)]
    try:
        yield [site.talk() for _ in range(50)]
    finally:
        for one in silent:
            one.close()


def test_a_client_that_reads_no_responses_is_closed(site: Site) -> None:
    talk = site.talk()
    talk.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    talk.socket.settimeout(PATIENCE)
    page = http("GET", "/metrics")
    end = time.monotonic() + PATIENCE
    talk.socket.setblocking(False)
    while site.server.registry.connections and time.monotonic() < end:
        try:
            talk.socket.send(page)
            time.sleep(0.0005)
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:
            break
    site.until(lambda: not site.server.registry.connections)


class Full(asyncio.Transport):
    """To a client that takes nothing: its buffer is full with the first byte."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self._connection, self._full = connection, False

    def pause_reading(self) -> None:
        """Nothing more is read."""

    def resume_reading(self) -> None:
        """It is again."""

    def write(self, _data: object) -> None:
        """Full, which is reported once."""
        if not self._full:
            self._full = True
            self._connection.pause_writing()

    def close(self) -> None:
        """Wait for the client to take the rest."""


def seconds_left(asks: bytes, *, after: bool = False) -> float:
    """The deadline of a client that sends requests and reads no response, or reads it later."""
    loop = asyncio.new_event_loop()
    routes = {"/page": HttpRoute("page", False, lambda _call: text_response(200, "x"))}
    connection = HttpConnection(ConnectionRegistry(routes, ServerLimits(), lambda _reason: None), loop)
    connection.connection_made(Full(connection))
    connection.data_received(asks)
    if after:
        connection.resume_writing()
    left = connection.expires - loop.time()
    loop.close()
    return left


PAGE = http("GET", "/page")
UNTAKEN = {
    "an answer": (PAGE, ServerLimits().stall_time),
    "an answer, and half a request after it": (PAGE + PAGE[:10], ServerLimits().stall_time),
    "its last answer": (http("GET", "/page", b"", "Connection: close"), ServerLimits().close_time),
}


@pytest.mark.parametrize(("asks", "most"), UNTAKEN.values(), ids=UNTAKEN)
def test_an_unread_response_does_not_get_the_idle_timeout(asks: bytes, most: float) -> None:
    assert seconds_left(asks) <= most


def test_a_client_that_reads_again_gets_the_idle_timeout() -> None:
    assert seconds_left(PAGE, after=True) > ServerLimits().keepalive - 1


def test_a_peer_that_disconnects_in_a_body_releases_its_buffers(site: Site) -> None:
    talk: Talk = site.talk()
    talk.send(REQUEST[:HALF])
    site.until(lambda: site.server.registry.load.reading == 1)
    assert site.server.registry.load.buffered > 0
    talk.close()
    site.until(lambda: site.server.registry.load.reading == 0 and site.server.registry.load.buffered == 0)


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_clients_that_disconnect_leak_nothing() -> None:
    with serve_site(limits=ServerLimits(request_time=5.0, keepalive=0.3, close_time=0.05)) as site:
        before = open_files()
        gone = [site.talk() for _ in range(40)]
        for talk in gone[:20]:
            talk.send(REQUEST)
            assert (talk.read() or (0,))[0] == 200
        for talk in gone[20:]:
            talk.send(REQUEST)
        site.until(lambda: not site.server.registry.connections)
        ours = len(gone)
        site.until(lambda: open_files() <= before + ours)
    assert ServerLimits().keepalive <= 180, "seconds until nobody is waited for any more"


def test_hundreds_of_new_connections_neither_disturb_others_nor_leak() -> None:
    with serve_site(limits=ServerLimits(close_time=0.05)) as site:
        canary = site.talk()
        before = open_files()
        for round_ in range(10):
            for _ in range(20):
                assert site.ask(REQUEST).status == 200
            canary.send(REQUEST)
            answer = canary.read()
            assert answer is not None, f"after {20 * (round_ + 1)} connections"
            assert answer.status == 200
        site.until(lambda: len(site.server.registry.connections) == 1)
        site.until(lambda: open_files() <= before)
