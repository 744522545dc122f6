"""What goes back over a connection: status, body, and the head around them."""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

import orjson

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+")
"""What moves a cursor, ends a line, or turns the reading direction."""


JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
MAX_ERROR_LENGTH = 200


class HttpRequest(NamedTuple):
    """One request, all of it here.

    Attributes:
        query: What stands behind the path's question mark.
        waited: Seconds since its first byte.
        sender: What the client calls itself.
    """

    body: bytes
    query: str
    elapsed: float
    user_agent: str


class HttpResponse(NamedTuple):
    """One response.

    Attributes:
        then: Called once the bytes are on their way: what is counted and logged costs the client nothing.
        extra: Further header lines, each ending in CRLF.
    """

    status: int
    body: bytes
    content_type: bytes = JSON
    after_send: Callable[[], None] | None = None
    extra_headers: bytes = b""


class HttpRoute(NamedTuple):
    """One path.

    Attributes:
        name: The path without its slash, as metrics call it.
        takes_json: True: a POST whose body must be JSON; False: a GET.
        answer: Never raises, never waits.
    """

    name: str
    accepts_json: bool
    handle: Callable[[HttpRequest], HttpResponse]

    def allows_method(self, method: str) -> bool:
        """Is this the method for the path?"""
        return method == "POST" if self.accepts_json else method in ("GET", "HEAD")

    @property
    def allow_header(self) -> bytes:
        """The header line that says which methods it has."""
        return b"Allow: POST\r\n" if self.accepts_json else b"Allow: GET, HEAD\r\n"


def error_response(status: int, sentence: str, *, uid: str = "", extra: bytes = b"") -> HttpResponse:
    """A reply that says in one short sentence why nothing was judged. Never put a client's bytes into it."""
    body = {"error": sentence[:MAX_ERROR_LENGTH]}
    if uid:
        body["uid"] = uid
    return HttpResponse(status, orjson.dumps(body), extra_headers=extra)


def busy_response(sentence: str, *, uid: str = "") -> HttpResponse:
    """503, worth trying again: an API server does so within its timeout."""
    return error_response(HTTPStatus.SERVICE_UNAVAILABLE, sentence, uid=uid, extra=b"Retry-After: 1\r\n")


def text_response(status: int, body: str, kind: bytes = TEXT) -> HttpResponse:
    """A reply for people and for scrapers."""
    return HttpResponse(status, body.encode(), kind)


def encode_response(reply: HttpResponse, *, close: bool, with_body: bool = True) -> bytes:
    """Head and body. No Server header, and none that repeats what a client sent."""
    start = _STATUS_LINES[reply.status]
    connection = b"Connection: close\r\n" if close else b""
    body = reply.body
    return b"%b%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        start,
        connection,
        reply.extra_headers,
        reply.content_type,
        len(body),
        body if with_body else b"",
    )


_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    for status in (200, 400, 403, 404, 405, 408, 413, 415, 417, 500, 503)
}


def strip_control_characters(text: str) -> str:
    """The text without control characters; a run of them becomes one space."""
    return text if text.isascii() and text.isprintable() else _CONTROL_CHARACTERS.sub(" ", text)


def escape_to_ascii(text: str) -> str:
    """The same in ASCII: other characters as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL_CHARACTERS.sub(" ", text).replace("…", "...").encode("ascii", "backslashreplace").decode()
