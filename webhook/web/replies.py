"""What goes back over a connection: status, body, and the head around them."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

import orjson

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
SENTENCE_MOST = 200


class Call(NamedTuple):
    """One request, all of it here.

    Attributes:
        query: What stands behind the path's question mark.
        waited: Seconds since its first byte.
        sender: What the client calls itself.
    """

    body: bytes
    query: str
    waited: float
    sender: str


class Reply(NamedTuple):
    """One response.

    Attributes:
        then: Called once the bytes are on their way: what is counted and logged costs the client nothing.
        extra: Further header lines, each ending in CRLF.
    """

    status: int
    body: bytes
    kind: bytes = JSON
    then: Callable[[], None] | None = None
    extra: bytes = b""


class Route(NamedTuple):
    """One path.

    Attributes:
        name: The path without its slash, as metrics call it.
        takes_json: True: a POST whose body must be JSON; False: a GET.
        answer: Never raises, never waits.
    """

    name: str
    takes_json: bool
    answer: Callable[[Call], Reply]

    def takes(self, method: str) -> bool:
        """Is this the method for the path?"""
        return method == "POST" if self.takes_json else method in ("GET", "HEAD")

    @property
    def allow(self) -> bytes:
        """The header line that says which methods it has."""
        return b"Allow: POST\r\n" if self.takes_json else b"Allow: GET, HEAD\r\n"


def refusal(status: int, sentence: str, *, uid: str = "", extra: bytes = b"") -> Reply:
    """A reply that says in one short sentence why nothing was judged. Never put a client's bytes into it."""
    body = {"error": sentence[:SENTENCE_MOST]}
    if uid:
        body["uid"] = uid
    return Reply(status, orjson.dumps(body), extra=extra)


def busy(sentence: str, *, uid: str = "") -> Reply:
    """503, worth trying again: an API server does so within its timeout."""
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, uid=uid, extra=b"Retry-After: 1\r\n")


def text(status: int, body: str, kind: bytes = TEXT) -> Reply:
    """A reply for people and for scrapers."""
    return Reply(status, body.encode(), kind)


def response_bytes(reply: Reply, *, close: bool, with_body: bool = True) -> bytes:
    """Head and body. No Server header, and none that repeats what a client sent."""
    start = _STARTS[reply.status]
    connection = b"Connection: close\r\n" if close else b""
    body = reply.body
    return b"%b%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        start,
        connection,
        reply.extra,
        reply.kind,
        len(body),
        body if with_body else b"",
    )


_STARTS = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    for status in (200, 400, 403, 404, 405, 408, 413, 415, 417, 500, 503)
}
