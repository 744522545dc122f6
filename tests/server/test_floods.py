"""Floods of connections: an API server and a probe get answers while each kind of flood holds on."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import NamedTuple

import pytest
import trustme

from tests.server.site import PAIR, PATIENCE, QUICK, TlsConnection, encoded, http, post, review, serve_site
from webhook.web.limits import ClientQueues, ServerLimits
from webhook.web.tls import ClientCertificateRules

AUTHORITY = trustme.CA()
API_SERVER = AUTHORITY.issue_cert("kube-apiserver")
CLIENTS = ClientCertificateRules(AUTHORITY.cert_pem.bytes().decode(), "kube-apiserver")
SMALL = ServerLimits(
    connections=128, handshakes=16, close_time=0.05, request_time=10 * PATIENCE, handshake_time=10 * PATIENCE
)
"""Few slots, and deadlines beyond the end of each test: only displacement can free a slot."""

REQUEST = post("/validate", encoded(review()))
PROBE = http("GET", "/livez")
HELD = 3 * SMALL.connections
ATTACKER, API_SERVER_ADDRESS = "127.0.0.2", "127.0.0.1"


def connect_from(address: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 2.0, source_address=(address, 0))


def connect_tls(address: str, port: int) -> socket.socket:
    context = ssl.create_default_context(cadata=PAIR.authority.decode())
    return context.wrap_socket(connect_from(address, port), server_hostname="localhost")


def send_over(connect: Callable[[str, int], socket.socket], data: bytes) -> Callable[[str, int], socket.socket]:
    def open_one(address: str, port: int) -> socket.socket:
        connection = connect(address, port)
        with suppress(OSError):  # it was displaced already
            connection.sendall(data)
        return connection

    return open_one


def probe_and_hold(address: str, port: int) -> socket.socket:
    connection = send_over(connect_tls, PROBE)(address, port)
    with suppress(OSError):
        connection.recv(4096)
    return connection


@cache
def client_hello() -> bytes:
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


FLOODS = {
    "connections that send nothing": connect_from,
    "handshakes that stop after the first message": send_over(connect_from, client_hello()),
    "half of a first message": send_over(connect_from, client_hello()[:50]),
    "bytes that are no handshake": send_over(connect_from, b"GET / HTTP/1.1\r\n\r\n"),
    "handshakes without a request": connect_tls,
    "a probe on each connection": probe_and_hold,
    "half a header on each connection": send_over(connect_tls, REQUEST[:30]),
    "a review without a certificate on each connection": send_over(connect_tls, REQUEST),
    "half a review without a certificate on each connection": send_over(connect_tls, REQUEST[:-10]),
}


class Flood(NamedTuple):
    """A flood in progress; `opened` has one entry for each connection that was opened."""

    opened: list[None]

    def wait_for(self, count: int) -> None:
        """Wait until so many more connections were opened."""
        wanted, end = len(self.opened) + count, time.monotonic() + PATIENCE
        while len(self.opened) < wanted:
            assert time.monotonic() < end, "the flood was stopped"
            time.sleep(0.01)


@contextmanager
def flood_of(open_one: Callable[[str, int], socket.socket], address: str, port: int) -> Iterator[Flood]:
    """Open connections from an address without end, and keep the last `HELD` of them open."""
    held: deque[socket.socket] = deque()
    flood, stop = Flood([]), threading.Event()

    def run() -> None:
        while not stop.is_set():
            with suppress(OSError):
                held.append(open_one(address, port))
            flood.opened.append(None)
            if len(held) > HELD:
                held.popleft().close()
            time.sleep(0.001 if len(flood.opened) < SMALL.connections else 0.02)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        flood.wait_for(SMALL.connections)
        yield flood
    finally:
        stop.set()
        thread.join(PATIENCE)
        for each in held:
            each.close()


def assert_reviewed(connection: TlsConnection) -> None:
    connection.send(REQUEST)
    assert (connection.read() or (0,))[0] == 200


@pytest.mark.parametrize("address", [ATTACKER, API_SERVER_ADDRESS], ids=["from afar", "from the address of all others"])
@pytest.mark.parametrize("open_one", FLOODS.values(), ids=FLOODS)
def test_api_servers_and_probes_are_answered_during_a_flood(
    open_one: Callable[[str, int], socket.socket], address: str
) -> None:
    with serve_site(limits=SMALL, clients=CLIENTS) as site:
        kept = TlsConnection(site.port, API_SERVER)
        assert_reviewed(kept)
        with flood_of(open_one, address, site.port) as flood:
            for _ in range(3):
                flood.wait_for(10)
                assert_reviewed(kept)
                assert_reviewed(TlsConnection(site.port, API_SERVER))
                assert site.send_request(PROBE).status == 200
            registry = site.server.registry
            assert len(registry.untrusted) <= SMALL.untrusted
            assert len(registry.trusted) == 4


def test_a_flood_of_reviews_displaces_no_other_address_where_no_certificate_is_required() -> None:
    with serve_site(limits=SMALL) as site:
        kept = TlsConnection(site.port)
        assert_reviewed(kept)
        with flood_of(send_over(connect_tls, REQUEST), ATTACKER, site.port) as flood:
            site.until(lambda: len(site.server.registry.trusted) == SMALL.trusted)
            flood.wait_for(10)
            assert_reviewed(kept)
            assert_reviewed(TlsConnection(site.port))
            assert site.send_request(PROBE).status == 200


CLOSED_AFTER = {
    "a probe": PROBE,
    "a scrape": http("GET", "/metrics"),
    "a page that does not exist": http("GET", "/"),
    "a review without the required certificate": REQUEST,
}


@pytest.mark.parametrize("request_", CLOSED_AFTER.values(), ids=CLOSED_AFTER)
def test_a_client_without_a_certificate_keeps_no_connection(request_: bytes) -> None:
    with serve_site(limits=QUICK, clients=CLIENTS) as site:
        connection = site.connect()
        connection.send(request_)
        answer = connection.read()
        assert answer is not None
        assert answer.headers["connection"] == "close"
        assert connection.closed()


def test_an_api_server_keeps_its_connection_after_any_complete_request() -> None:
    with serve_site(limits=QUICK, clients=CLIENTS) as site:
        connection = TlsConnection(site.port, API_SERVER)
        connection.send(post("/validate", b"{"))
        assert (connection.read() or (0,))[0] == 400
        assert_reviewed(connection)


def test_trusted_connections_are_limited_too_and_the_longest_unused_one_gives_way() -> None:
    with serve_site(limits=SMALL, clients=CLIENTS) as site:
        kept = [TlsConnection(site.port, API_SERVER) for _ in range(SMALL.trusted)]
        for each in kept:
            assert_reviewed(each)
        assert_reviewed(kept[0])
        assert_reviewed(TlsConnection(site.port, API_SERVER))
        assert kept[1].closed()
        assert_reviewed(kept[0])
        assert site.metric("rightslice_http_rejections_total", reason="too_many_connections") == 1


def test_a_request_whose_body_arrives_is_not_displaced() -> None:
    with serve_site(limits=SMALL, clients=CLIENTS) as site:
        kept = [TlsConnection(site.port, API_SERVER) for _ in range(SMALL.trusted)]
        kept[0].send(REQUEST[:-10])
        site.until(lambda: site.server.registry.load.reading == 1)
        assert_reviewed(TlsConnection(site.port, API_SERVER))
        kept[0].send(REQUEST[-10:])
        assert (kept[0].read() or (0,))[0] == 200


def test_silent_clients_are_counted_and_closed_at_their_deadline() -> None:
    with serve_site(limits=ServerLimits(handshake_time=0.2, close_time=0.05)) as site:
        with connect_from(ATTACKER, site.port) as silent:
            silent.settimeout(PATIENCE)
            assert silent.recv(1) == b""
        assert site.server.telemetry.rejections["timeout"] == 1, "a new client may be too slow for this limit as well"


def test_a_server_without_file_descriptors_accepts_again_when_it_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [OSError(24, "Too many open files")] * 3
    accept = socket.socket.accept

    def accept_or_fail(self: socket.socket) -> tuple[socket.socket, object]:
        if fails:
            raise fails.pop()
        return accept(self)

    with serve_site(limits=QUICK) as site:
        monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
        assert site.send_request(REQUEST).status == 200
        assert not fails


def queues_of(*items: str) -> ClientQueues[str]:
    """Return queues of items that start with their address, in the order of their use."""
    queues: ClientQueues[str] = ClientQueues()
    for item in items:
        queues.add(item[0], item)
    return queues


def test_client_addresses_take_turns() -> None:
    queues = queues_of("a1", "a2", "a3", "b1", "c1", "c2")
    assert [queues.pop_next() for _ in range(6)] == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert len(queues) == len(list(queues)) == 0


SURPLUS = {
    "over half are of one address: its longest unused": (("b0", "a1", "c2", "a3", "a4"), ["a1", "a3", "a4"]),
    "one address has the most, but not over half: the longest unused": (
        ("b0", "a1", "a2", "c3"),
        ["b0", "a1", "a2", "c3"],
    ),
}


@pytest.mark.parametrize(("items", "want"), SURPLUS.values(), ids=SURPLUS)
def test_which_connection_gives_way(items: tuple[str, ...], want: list[str]) -> None:
    assert list(queues_of(*items).surplus()) == want


def attacker(number: int) -> str:
    """Return one of many addresses."""
    return f"127.1.0.{number + 1}"


def test_a_flood_from_many_addresses_displaces_its_own_idle_connections() -> None:
    """The API server has more connections than any other address, so they must not be the first ones to go."""
    with serve_site(limits=SMALL) as site:
        kept = [TlsConnection(site.port) for _ in range(8)]
        held = deque[TlsConnection]()
        for round_ in range(4):
            for number in range(SMALL.trusted // 2):
                address = attacker(round_ * SMALL.trusted // 2 + number)
                held.append(TlsConnection(site.port, opened=connect_from(address, site.port)))
                assert_reviewed(held[-1])
            for each in kept:
                assert_reviewed(each)
        assert held[0].closed()
        assert len(site.server.registry.trusted) == SMALL.trusted


def begin_handshake(address: str, port: int) -> socket.socket:
    """Send the first message of a handshake, and wait for the server's."""
    connection = connect_from(address, port)
    connection.settimeout(PATIENCE)
    connection.sendall(client_hello())
    assert connection.recv(1)
    return connection


def closed_by_server(connection: socket.socket, seconds: float = 0.2) -> bool:
    """Read what a server has sent; True if it closed the connection, or does so within some seconds."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    return True


def test_stalled_handshakes_of_many_addresses_displace_one_another() -> None:
    with serve_site(limits=SMALL) as site:
        stalled = [begin_handshake(attacker(number), site.port) for number in range(SMALL.handshakes - 3)]
        api_server = [begin_handshake(API_SERVER_ADDRESS, site.port) for _ in range(3)]
        stalled += [begin_handshake(attacker(200 + number), site.port) for number in range(5)]
        assert [closed_by_server(each, PATIENCE) for each in stalled[:5]] == [True] * 5
        assert [closed_by_server(each) for each in api_server] == [False] * 3
        for each in (*stalled, *api_server):
            each.close()


MUTATING_REQUESTS_IN_FLIGHT = 200
"""The default of an API server's `--max-mutating-requests-inflight`."""


def test_as_many_handshakes_as_an_api_server_evaluates_writes_are_completed_however_slow_its_machine_is() -> None:
    """In a burst, an API server opens a connection for each write before it continues the first handshake."""
    with serve_site(limits=ServerLimits(handshake_time=10 * PATIENCE, close_time=0.05)) as site:
        started = [begin_handshake(API_SERVER_ADDRESS, site.port) for _ in range(MUTATING_REQUESTS_IN_FLIGHT)]
        assert site.metric("rightslice_http_rejections_total", reason="too_many_handshakes") == 0
        assert not closed_by_server(started[0])
        for each in started:
            each.close()
