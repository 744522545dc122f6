"""Overload: surplus requests are rejected at once, and accepted requests are answered."""

from __future__ import annotations

import asyncio
import gc
import ssl
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.site import NOW, PAIR, PATIENCE, Answer, Site, TlsConnection, encoded, post, review, serve_site
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, patch_add
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.web.connection import ConnectionRegistry, HttpConnection
from webhook.web.http_messages import HttpRoute, text_response
from webhook.web.limits import ServerLimits, ServerLoad

REQUEST = post("/validate", encoded(review()))
LARGE = post("/validate", b" " * 300_000 + encoded(review()))


def test_one_body_too_many_gets_503_with_retry_after() -> None:
    with serve_site(limits=ServerLimits(in_flight=2, close_time=0.05)) as site:
        half = REQUEST[:-10]
        taken = [site.connect() for _ in range(2)]
        for connection in taken:
            connection.send(half)
        site.until(lambda: site.server.registry.load.reading == 2)
        answer = site.send_request(half)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        for connection in taken:
            connection.send(REQUEST[-10:])
            assert (connection.read() or (0,))[0] == 200
        assert site.send_request(REQUEST).status == 200


def test_all_bodies_together_are_limited() -> None:
    with serve_site(limits=ServerLimits(buffered=2_000_000, close_time=0.05)) as site:
        load = site.server.registry.load
        load.buffered += 2_000_000
        assert site.send_request(LARGE[:-10]).status == 503
        assert site.send_request(LARGE).status == 503
        assert site.send_request(REQUEST).status == 200
        site.until(lambda: load.retained == 0)
        load.buffered -= 2_000_000
        assert load.buffered == 0
        assert site.send_request(LARGE).status == 200


class Recorder(asyncio.Transport):
    """A transport that records what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Record the status of a response."""
        self.calls.append(bytes(data[9:12]).decode())

    def abort(self) -> None:
        """Record it."""
        self.calls.append("abort")


@pytest.mark.parametrize(("buffered", "calls"), [(2_000_000, ["503"]), (4_000_000, ["abort"])])
def test_a_large_read_gets_no_response_if_waiting_for_its_client_would_take_memory(
    buffered: int, calls: list[str]
) -> None:
    loop, transport = asyncio.new_event_loop(), Recorder()
    routes = {"/validate": HttpRoute("validate", True, lambda _request: text_response(200, "x"))}
    registry = ConnectionRegistry(routes, ServerLimits(buffered=2_000_000), lambda _reason: None)
    registry.load.buffered = buffered
    connection = HttpConnection(registry, loop)
    connection.connection_made(transport)
    connection.data_received(LARGE)
    connection.connection_lost(None)
    loop.close()
    assert transport.calls == calls
    assert (registry.load.buffered, registry.load.retained) == (buffered, 0)


def test_connections_that_had_large_bodies_are_closed_once_tls_keeps_much_memory() -> None:
    with serve_site(limits=ServerLimits(retained=1_000_000, close_time=0.05)) as site:
        small, kept = site.connect(), [site.connect() for _ in range(20)]
        small.send(REQUEST)
        answers = [small.read()]
        for connection in kept:
            connection.send(LARGE)
            answers.append(connection.read())
        assert [answer.status for answer in answers if answer is not None] == [200] * 21
        closing = [answer is not None and "connection" in answer.headers for answer in answers]
        assert closing[:2] == [False, False]
        assert closing[-1]
        site.until(lambda: site.server.registry.load.retained <= 1_000_000)
        small.send(REQUEST)
        assert (small.read() or (0,))[0] == 200


@pytest.mark.parametrize("sent", [REQUEST, REQUEST[:-10], LARGE, LARGE[:-10]], ids=["small", "half", "large", "most"])
def test_a_closed_connection_is_freed_without_a_garbage_collection(sent: bytes) -> None:
    """Bodies that clients sent in part and gave up took 300 MiB until the next one."""
    with serve_site() as site:
        connection = site.connect()
        connection.send(sent)
        site.until(lambda: site.server.registry.load.reading == 1 or len(site.server.registry.trusted) == 1)
        gc.disable()
        try:
            [freed] = [weakref.ref(each) for each in site.server.registry.connections]
            connection.close()
            site.until(lambda: freed() is None)
        finally:
            gc.enable()
        assert site.server.registry.load.retained == 0


def test_requests_of_one_loop_iteration_are_bounded() -> None:
    load = ServerLoad(ServerLimits(in_flight=2))
    assert [load.can_answer(1.0), load.can_answer(1.0), load.can_answer(1.0)] == [True, True, False]
    assert load.can_answer(1.001)


def test_a_flood_of_requests_is_answered_or_rejected_at_once() -> None:
    """In every loop iteration all clients wait: eight are evaluated, the others retry."""

    def slow(*_: object) -> Decision:
        time.sleep(0.002)
        return Decision()

    with serve_site(slow, limits=ServerLimits(in_flight=8, close_time=0.05)) as site:
        answers = asyncio.run(_flood(site, clients=64, each=5))
        assert set(answers) <= {200, 503}
        assert len(answers) == 64 * 5
        assert answers.count(200) >= 8
        assert site.send_request(REQUEST).status == 200


async def _flood(site: Site, clients: int, each: int) -> list[int]:
    context = ssl.create_default_context(cadata=PAIR.authority.decode())

    async def one() -> list[int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=context, server_hostname="localhost")
        statuses = []
        for _ in range(each):
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            statuses.append(int(head.split()[1]))
        writer.close()
        await writer.wait_closed()
        return statuses

    return [status for statuses in await asyncio.gather(*(one() for _ in range(clients))) for status in statuses]


def test_small_reviews_are_answered_between_large_ones() -> None:
    evaluated: list[str] = []
    sent = threading.Event()

    def slow_if_large(request: AdmissionRequest, *_: object) -> Decision:
        evaluated.append(request.uid)
        if request.uid.startswith("large"):
            assert sent.wait(PATIENCE)
            time.sleep(0.1)
        return Decision()

    with serve_site(slow_if_large) as site:
        large = [TlsConnection(site.port) for _ in range(4)]
        small = TlsConnection(site.port)
        for index, connection in enumerate(large):
            connection.send(post("/validate", encoded(review(uid=f"large-{index}")) + b" " * 32_000))
        site.until(lambda: bool(evaluated))
        small.send(post("/validate", encoded(review(uid="small"))))
        sent.set()

        answers = [connection.read() for connection in (small, *large)]

        assert [answer and answer.status for answer in answers] == [200] * 5
        assert evaluated.index("small") <= 2
        assert sorted(evaluated) == ["large-0", "large-1", "large-2", "large-3", "small"]


def test_a_second_request_on_a_connection_waits_until_its_large_one_is_answered() -> None:
    evaluated: list[str] = []

    def slow(request: AdmissionRequest, *_: object) -> Decision:
        evaluated.append(request.uid)
        time.sleep(0.1)
        return Decision()

    with serve_site(slow) as site:
        first, second = TlsConnection(site.port), TlsConnection(site.port)
        first.send(post("/validate", encoded(review(uid="first")) + b" " * 32_000))
        site.until(lambda: bool(evaluated))
        second.send(post("/validate", encoded(review(uid="second")) + b" " * 32_000))
        second.send(post("/validate", encoded(review(uid="third"))))

        assert [(each.read() or (0,))[0] for each in (first, second)] == [200, 200]
        assert evaluated[:2] == ["first", "second"]


def decide_by_uid(request: AdmissionRequest, _p: PolicySet, _v: ClusterView, _u: UsageView, _now: object) -> Decision:
    assert _now == NOW
    return Decision(patch=(patch_add(("metadata", "labels"), {"uid": request.uid}),), policies=(request.uid,))


def test_every_response_carries_its_own_uid() -> None:
    """Mixed routes and sizes over many connections at once."""
    with serve_site(decide_by_uid) as site, ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda client: _ask_many(site.connect(), client), range(16)))


def _ask_many(connection: TlsConnection, client: int) -> None:
    for number in range(60):
        uid = f"client-{client}-{number}"
        pod = review()["request"]["object"] | {"x": "y" * (number * 997)}
        sender = "User-Agent: " + ("kube-apiserver-admission" if number % 3 else "curl")
        connection.send(post("/mutate" if number % 2 else "/validate", encoded(review(pod, uid=uid)), sender))
        answer: Answer | None = connection.read()
        assert answer is not None
        assert answer.response["uid"] == uid
        assert answer.response["auditAnnotations"]["policies"] == uid
