"""HTTP requests, responses and routes of the servers, and the escaping of untrusted text in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import orjson

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
MAX_ERROR_LENGTH = 200

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]+")
"""Characters that move a cursor, end a line, or change the direction of text."""


class HttpRequest(NamedTuple):
    """A complete request.

    Attributes:
        elapsed: Seconds since its first byte.
        headers: Their names in any case.
    """

    body: bytes
    query: str
    elapsed: float
    headers: Mapping[str, str]


class HttpResponse(NamedTuple):
    """A response.

    Attributes:
        after_send: Called after the response was written, so that metrics and logs do not delay the client.
        extra_headers: Further header lines, each ending in CRLF.
    """

    status: int
    body: bytes
    content_type: bytes = JSON
    after_send: Callable[[], None] | None = None
    extra_headers: bytes = b""


class HttpRoute(NamedTuple):
    """A path and its handler.

    Attributes:
        name: The path without its slash, in metrics.
        accepts_json: True for POST with a JSON body, False for GET.
        handle: Must neither raise nor wait.
    """

    name: str
    accepts_json: bool
    handle: Callable[[HttpRequest], HttpResponse]


def error_response(status: int, message: str, *, uid: str = "", extra_headers: bytes = b"") -> HttpResponse:
    """Return a JSON error. The message must not contain data of the client."""
    body = {"error": message[:MAX_ERROR_LENGTH]}
    if uid:
        body["uid"] = uid
    return HttpResponse(status, orjson.dumps(body), extra_headers=extra_headers)


def busy_response(message: str, *, uid: str = "") -> HttpResponse:
    """Return 503 with Retry-After; an API server retries within its timeout."""
    return error_response(HTTPStatus.SERVICE_UNAVAILABLE, message, uid=uid, extra_headers=b"Retry-After: 1\r\n")


def text_response(status: int, body: str, content_type: bytes = TEXT) -> HttpResponse:
    """Return a plain text response."""
    return HttpResponse(status, body.encode(), content_type)


def encode_response(response: HttpResponse, *, close: bool, with_body: bool = True) -> bytes:
    """Return the bytes of a response, without a Server header and without any data of the client in headers."""
    return b"%b%b%bContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        _STATUS_LINES[response.status],
        b"Connection: close\r\n" if close else b"",
        response.extra_headers,
        response.content_type,
        len(response.body),
        response.body if with_body else b"",
    )


_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
    for status in (200, 400, 403, 404, 405, 408, 413, 415, 417, 500, 503)
}


def strip_control_characters(text: str) -> str:
    """Replace each run of control characters by one space."""
    return text if text.isascii() and text.isprintable() else _CONTROL_CHARACTERS.sub(" ", text)


def escape_to_ascii(text: str) -> str:
    """Replace control characters by spaces, and other characters outside ASCII by escapes."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL_CHARACTERS.sub(" ", text).replace("…", "...").encode("ascii", "backslashreplace").decode()
