"""Requests that two parsers could read differently get 400 or one response, and the connection is closed."""

from __future__ import annotations

import pytest
from aiohttp import http_parser

from tests.server.site import Site, encoded, http, post, review
from webhook.web import listener

GOOD = encoded(review())
SMUGGLED = post("/mutate", encoded(review(uid="smuggled")))
LENGTH = f"Content-Length: {len(GOOD)}"


def raw(*lines: str, body: bytes = GOOD, end: str = "\r\n") -> bytes:
    head = ["POST /validate HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines, "", ""]
    return end.join(head).encode() + body


REFUSED = {
    "two lengths that differ": raw(LENGTH, "Content-Length: 3"),
    "two lengths that agree": raw(LENGTH, LENGTH),
    "a list of lengths": raw(f"{LENGTH}, {len(GOOD)}"),
    "a length and chunks": raw(LENGTH, "Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "chunks and a length": raw("Transfer-Encoding: chunked", LENGTH, body=b"0\r\n\r\n" + SMUGGLED),
    "a length with a sign": raw("Content-Length: +5"),
    "a negative length": raw("Content-Length: -5"),
    "a hexadecimal length": raw("Content-Length: 0x10"),
    "a length with an underscore": raw("Content-Length: 1_0"),
    "a length in Arabic digits": raw("Content-Length: ١٢"),
    "a length beyond 64 bits": raw("Content-Length: 99999999999999999999999"),
    "an unknown transfer encoding": raw("Transfer-Encoding: xchunked"),
    "chunked, then identity": raw("Transfer-Encoding: chunked, identity"),
    "two transfer encodings": raw("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
    "bare line feeds": raw(LENGTH, end="\n"),
    "a folded header": raw(LENGTH, "X-A: b", " folded"),
    "a space before the colon": raw(LENGTH, "X-A : b"),
    "two hosts": raw(LENGTH, "Host: elsewhere"),
    "a NUL in a header": raw(LENGTH, "X-A: b\0c"),
    "no host": f"POST /validate HTTP/1.1\r\nContent-Type: application/json\r\n{LENGTH}\r\n\r\n".encode() + GOOD,
    "a chunk size with a sign": raw("Transfer-Encoding: chunked", body=b"+1\r\nx\r\n0\r\n\r\n"),
    "a chunk extension with a line feed": raw("Transfer-Encoding: chunked", body=b"1;a\nb\r\nx\r\n0\r\n\r\n"),
    "a chunk without its end": raw("Transfer-Encoding: chunked", body=b"1\r\nxx\r\n0\r\n\r\n"),
    "65 headers": raw(LENGTH, *(f"X-{number}: x" for number in range(65))),
    "200 headers": raw(LENGTH, *(f"X-{number}: x" for number in range(200))),
    "a header of 9 KB": raw(LENGTH, f"X-A: {'a' * 9000}"),
    "a path of 9 KB": http("GET", "/" + "a" * 9000),
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "another version": raw(LENGTH).replace(b"HTTP/1.1", b"HTTP/3.7"),
    "a trailer of 1 MB": raw("Transfer-Encoding: chunked", body=b"0\r\nX-A: " + b"a" * 2**20 + b"\r\n\r\n"),
    "forged trailers": raw("Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 5\r\nHost: x\r\n\r\n" + SMUGGLED),
}


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED)
def test_bad_requests_are_rejected_and_closed(site: Site, request_: bytes) -> None:
    connection = site.connect()
    connection.send(request_)
    answer = connection.read()
    assert answer is not None
    assert answer.status == 400
    assert b"smuggled" not in answer.body
    connection.send(SMUGGLED)
    assert connection.closed()


def test_a_header_in_single_bytes_is_still_bounded(site: Site) -> None:
    connection = site.connect()
    connection.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: ")
    for _ in range(90):
        connection.send(b"a" * 100)
    answer = connection.read()
    assert answer is not None
    assert answer.status == 400


def test_a_client_that_pipelines_gets_one_answer_and_a_closed_connection(site: Site) -> None:
    connection = site.connect()
    connection.send(b"".join(post("/mutate", encoded(review(uid=f"u-{number}"))) for number in range(1000)))
    answer = connection.read()
    assert answer is not None
    assert answer.response["uid"] == "u-0"
    assert answer.headers["connection"] == "close"
    assert connection.closed()


def test_an_upgrade_is_rejected_and_the_rest_is_not_read(site: Site) -> None:
    connection = site.connect()
    connection.send(http("GET", "/healthz", b"", "Upgrade: websocket", "Connection: Upgrade") + SMUGGLED)
    answer = connection.read()
    assert answer is not None
    assert answer.status == 400
    assert connection.closed()


def test_http_1_0_is_answered_once(site: Site) -> None:
    connection = site.connect()
    connection.send(post("/validate", GOOD).replace(b"HTTP/1.1", b"HTTP/1.0"))
    answer = connection.read()
    assert answer is not None
    assert answer.status == 200
    assert connection.closed()


def test_the_server_does_not_start_on_the_python_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_parser, "HttpRequestParser", http_parser.HttpRequestParserPy)
    with pytest.raises(listener.NoParserError, match="C parser is missing"):
        listener.require_c_parser()
