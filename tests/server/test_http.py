"""HTTP: the status of valid and invalid requests."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.server.site import PATIENCE, QUICK, Site, encoded, http, post, review, serve_site
from webhook.web.limits import MIB

GOOD = encoded(review())
BODY_MOST = 7 * MIB
API_SERVER = "User-Agent: kube-apiserver-admission"


def padded(size: int) -> bytes:
    """Return an UPDATE review of exactly so many bytes."""
    data = review(operation="UPDATE", oldObject=review()["request"]["object"])
    notes = data["request"]["object"]["metadata"]
    notes["annotations"] = {"example.com/pad": ""}
    notes["annotations"]["example.com/pad"] = "x" * (size - len(encoded(data)))
    return encoded(data)


class Case(NamedTuple):
    request: bytes
    status: int


def typed(kind: str) -> bytes:
    return http("POST", "/validate", GOOD, f"Content-Type: {kind}")


def packed(encoding: str, body: bytes = GOOD) -> bytes:
    return post("/validate", body, f"Content-Encoding: {encoding}")


def gzipped(size: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    block = b" " * MIB
    return b"".join([*(packer.compress(block) for _ in range(size // MIB)), packer.flush()])


EMPTY_MEMBER = gzipped(0)

CASES = {
    "a review": Case(post("/validate", GOOD), 200),
    "a review with a query": Case(post("/validate?timeout=3s", GOOD), 200),
    "a review from an API server": Case(post("/validate", GOOD, API_SERVER), 200),
    "an invalid review from an API server": Case(post("/validate", b"{}", API_SERVER), 400),
    "JSON with its character set": Case(typed("application/json; charset=utf-8"), 200),
    "JSON in capitals": Case(typed("Application/JSON;Charset=UTF-8"), 200),
    "another character set": Case(typed("application/json; charset=latin-1"), 415),
    "another parameter": Case(typed("application/json; version=2"), 415),
    "text": Case(typed("text/plain"), 415),
    "a form": Case(typed("multipart/form-data; boundary=x"), 415),
    "no type": Case(http("POST", "/validate", GOOD), 415),
    "identity": Case(packed("identity"), 200),
    "gzip": Case(packed("gzip"), 415),
    "deflate": Case(packed("deflate"), 415),
    "br": Case(packed("br"), 415),
    "zstd": Case(packed("zstd"), 415),
    "gzip twice": Case(packed("gzip, gzip"), 415),
    "100 MiB in one": Case(packed("gzip", gzipped(100 * MIB)), 415),
    "50000 empty gzip members": Case(packed("gzip", EMPTY_MEMBER * 50_000), 415),
    "GET of an admission route": Case(http("GET", "/mutate"), 405),
    "TRACE": Case(http("TRACE", "/mutate"), 405),
    "CONNECT": Case(http("CONNECT", "localhost:443"), 404),
    "DELETE": Case(http("DELETE", "/validate"), 405),
    "POST of a page": Case(post("/healthz", b"{}"), 405),
    "two slashes": Case(post("//mutate", GOOD), 404),
    "a parent folder": Case(http("GET", "/../metrics"), 404),
    "an escaped parent folder": Case(http("GET", "/%2e%2e/metrics"), 404),
    "an escaped letter": Case(post("/%6dutate", GOOD), 404),
    "a complete URL": Case(post("https://localhost/mutate", GOOD), 404),
    "nothing": Case(http("GET", "/"), 404),
    "a websocket": Case(http("GET", "/healthz", b"", "Upgrade: websocket", "Connection: Upgrade"), 400),
    "another expectation": Case(post("/validate", padded(MIB), "Expect: other"), 417),
    "alive": Case(http("GET", "/healthz"), 200),
    "alive by the other path": Case(http("GET", "/livez"), 200),
    "ready": Case(http("GET", "/readyz"), 200),
    "metrics": Case(http("GET", "/metrics"), 200),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_status(site: Site, case: Case) -> None:
    answer = site.send_request(case.request)
    assert answer.status == case.status
    assert "server" not in answer.headers
    if answer.status != 200:
        assert len(answer.body) <= 256
        assert set(json.loads(answer.body)) == {"error"}


@pytest.fixture
def patient_site() -> Iterator[Site]:
    """A server that waits for a client which still sends a rejected body: closing would lose the response."""
    with serve_site(limits=replace(QUICK, close_time=PATIENCE)) as one:
        yield one


def test_the_largest_body_is_accepted_and_one_byte_more_is_not(patient_site: Site) -> None:
    assert patient_site.send_request(post("/validate", padded(BODY_MOST))).response["allowed"] is True
    assert patient_site.send_request(post("/validate", padded(BODY_MOST + 1))).status == 413


def test_a_large_content_length_is_rejected_before_the_body(site: Site) -> None:
    answer = site.send_request(post("/validate", b"").replace(b"Length: 0", b"Length: 100000000") + b"{")
    assert answer.status == 413
    assert answer.headers["connection"] == "close"


def test_chunks_over_the_limit_are_rejected(patient_site: Site) -> None:
    head = http("POST", "/validate", b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    connection = patient_site.connect()
    connection.send(head.replace(b"Content-Length: 0\r\n", b"") + chunk * 7)
    connection.send(b"1\r\n \r\n")
    answer = connection.read()
    assert answer is not None
    assert answer.status == 413
    connection.close()


def test_a_chunked_review_is_evaluated(site: Site) -> None:
    head = http("POST", "/validate", b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
    pieces = [GOOD[:100], GOOD[100:]]
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    assert site.send_request(head.replace(b"Content-Length: 0\r\n", b"") + body).response["uid"] == "u-1"


def test_200000_chunks_of_one_byte_are_rejected(patient_site: Site) -> None:
    head = http("POST", "/validate", b"", "Content-Type: application/json", "Transfer-Encoding: chunked")
    body = b"1\r\n \r\n" * 200_000 + b"0\r\n\r\n"
    assert patient_site.send_request(head.replace(b"Content-Length: 0\r\n", b"") + body).status in (400, 413)


def test_expect_100_continue_is_answered(site: Site) -> None:
    connection = site.connect()
    request = post("/validate", GOOD, "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    connection.send(head + b"\r\n\r\n")
    first = connection.read()
    assert first is not None
    assert first.status == 100
    connection.send(body)
    second = connection.read()
    assert second is not None
    assert second.response["allowed"] is True


def test_head_has_no_body(site: Site) -> None:
    connection = site.connect()
    connection.send(http("HEAD", "/healthz") + http("GET", "/livez"))
    raw = connection.socket.recv(65536)
    assert raw.startswith(b"HTTP/1.1 200 OK")
    assert raw.endswith(b"\r\n\r\n")


def test_a_connection_serves_many_reviews(site: Site) -> None:
    connection = site.connect()
    for number in range(50):
        connection.send(post("/mutate", encoded(review(uid=f"u-{number}"))))
        answer = connection.read()
        assert answer is not None
        assert answer.response["uid"] == f"u-{number}"
        assert "connection" not in answer.headers


def test_a_complete_rejected_request_keeps_its_connection(site: Site) -> None:
    connection = site.connect()
    connection.send(typed("text/plain"))
    assert (connection.read() or (0,))[0] == 415
    connection.send(post("/validate", GOOD))
    assert (connection.read() or (0,))[0] == 200


@pytest.mark.parametrize("junk", ["timeout=-1", "timeout=999h", "timeout=", "timeout=3", "x", "timeout=%00", "&&&=&="])
def test_an_invalid_timeout_is_ignored(site: Site, junk: str) -> None:
    assert site.send_request(post(f"/validate?{junk}", GOOD)).status == 200


def test_error_responses_contain_nothing_of_the_client(site: Site) -> None:
    canary = b"canary-7f3a"
    requests = [
        post("/canary-7f3a", GOOD),
        post("/validate", b'{"canary-7f3a": '),
        post("/validate", encoded(review(operation="canary-7f3a"))),
        post("/validate", encoded(review({"kind": "canary-7f3a"}))),
        http("POST", "/validate", GOOD, "Content-Type: canary-7f3a"),
        b"GET / HTTP/1.1\r\ncanary-7f3a\r\n\r\n",
    ]
    for request in requests:
        answer = site.send_request(request)
        assert 400 <= answer.status < 500
        assert canary not in answer.body + str(answer.headers).encode()
