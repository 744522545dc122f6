"""One client's connection: aiohttp's C parser in, one answer at a time out, and a deadline on everything.

`aiohttp.web` would make a task, a request object and a response object for each request; the answer here needs
no waiting once the body has come, so the parser's messages are answered where they arrive. Measured over TLS on
one core, that is 25 µs of CPU a request for HTTP and TLS together, in place of 69.

What is not plain is refused: more than one request at a time (pipelining) gets one answer and a closed
connection, an upgrade or a malformed request gets 400 and a closed connection. So there is never a second
reading of where one request ends and the next begins.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import cast

from aiohttp.http import HttpProcessingError, HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from webhook.web.connection_registry import ConnectionRegistry
from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    HttpRoute,
    busy_response,
    encode_response,
    error_response,
)
from webhook.web.limits import request_deadline

MAX_LINE = 8190
MAX_HEADERS = 64

_JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})


class HttpConnection(asyncio.Protocol):
    """The protocol of one connection. It is also what aiohttp's parser and stream call a protocol."""

    def __init__(self, lobby: ConnectionRegistry, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = lobby
        self._loop = loop
        self._parser = HttpRequestParser(
            cast("asyncio.Protocol", self),  # type: ignore[arg-type] # it only pauses and resumes what it is given
            loop,
            lobby.limits.chunk_memory,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            max_msg_queue_size=2,
        )
        self._transport: asyncio.Transport | None = None
        self._started_at = 0.0
        self._head: RawRequestMessage | None = None
        self._route: HttpRoute | None = None
        self._query = ""
        self._payload: StreamReader | None = None
        self._buffered = 0
        self._reading = False
        self._too_many_chunks = False
        self._close_after_response = False
        self._closing = False
        self._stalled = False
        self._client_allowed = False
        self.expires = 0.0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, its TLS handshake done: its first request must follow soon."""
        self._transport = cast("asyncio.Transport", transport)
        self.expires = self._loop.time() + self._registry.limits.request_time
        self._client_allowed = self._registry.allows_client(transport.get_extra_info("peercert"))
        if not self._registry.add(self):
            self._closing = True
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone; what it held is free again."""
        self._transport = None
        self._closing = True
        self._release_buffers()
        self._registry.remove(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came: parse them, and answer if they complete a request."""
        if self._closing:
            return
        if not self._started_at:
            self._started_at = self._loop.time()
            self._set_deadline(self._registry.limits.request_time)
        try:
            messages, upgraded, _rest = self._parser.feed_data(data)
        except HttpProcessingError:
            self._registry.on_rejected("http")
            self._reject_and_close(
                error_response(HTTPStatus.BAD_REQUEST, "the request is not HTTP/1.1 as this server takes it")
            )
            return
        if messages:
            self._close_after_response = upgraded or len(messages) > 1 or self._head is not None
            if self._head is None and not self._check_head(*messages[0]):
                return
        if self._payload is not None:
            self._continue_request(self._payload)

    def pause_writing(self) -> None:
        """The client does not take its answers: hear no more from it, and not for long."""
        if self._transport is not None:
            self._transport.pause_reading()
            self._set_deadline(self._registry.limits.stall_time)
            self._stalled = True

    def resume_writing(self) -> None:
        """It does again."""
        self._stalled = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()
            limits = self._registry.limits
            self._set_deadline(limits.request_time if self._started_at else limits.keepalive)

    # What aiohttp's stream calls. Bodies are bounded here, so it never has to wait.

    def pause_reading(self) -> None:
        """The stream holds more than a body may: it came in too many small chunks."""
        self._too_many_chunks = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing was paused."""

    # What the lobby calls.

    @property
    def busy(self) -> bool:
        """Is a request on its way in, or an answer on its way out?"""
        transport = self._transport
        return bool(self._started_at) or (transport is not None and transport.get_write_buffer_size() > 0)

    def expire(self) -> None:
        """Its time is up: a slow request, which is told so, an idle client, or one that does not take its answers."""
        if self._started_at and not self._closing:
            self._registry.on_rejected("slow")
            self._reject_and_close(_TIMEOUT_RESPONSE)
        else:
            self.abort()

    def abort(self) -> None:
        """Drop it at once."""
        if self._transport is not None:
            self._transport.abort()

    def close_after_write(self) -> None:
        """Close it once what was written is out."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # One request.

    def _check_head(self, head: RawRequestMessage, payload: StreamReader) -> bool:
        """Look at a request's head; False if that was enough to refuse it."""
        self._head, self._payload = head, payload
        path, _, self._query = head.path.partition("?")
        self._route = route = self._registry.routes.get(path)
        if route is None:
            return self._reject("path", error_response(HTTPStatus.NOT_FOUND, "there is nothing at this path"))
        if not route.allows_method(head.method):
            sentence = "this path does not take this method"
            return self._reject(
                "method", error_response(HTTPStatus.METHOD_NOT_ALLOWED, sentence, extra=route.allow_header)
            )
        if route.accepts_json and not self._client_allowed:
            sentence = "this path needs a client certificate of the authority and the name that this server is told"
            return self._reject("client", error_response(HTTPStatus.FORBIDDEN, sentence))
        if head.upgrade:
            self._close_after_response = True
            return self._reject("http", error_response(HTTPStatus.BAD_REQUEST, "this server upgrades to nothing"))
        if route.accepts_json:
            return self._check_json(head)
        return True

    def _check_json(self, head: RawRequestMessage) -> bool:
        kind = head.headers.get("Content-Type", "")
        if kind not in _JSON_TYPES and not _is_json_content_type(kind):
            sentence = "Content-Type must be application/json"
            return self._reject("content_type", error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence))
        if head.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            sentence = "Content-Encoding must be identity, or absent"
            return self._reject("encoding", error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence))
        return True

    def _continue_request(self, payload: StreamReader) -> None:
        """Answer if the body is whole, wait for the rest of it if it may come."""
        if payload.total_bytes > self._registry.limits.body or self._too_many_chunks:
            self._reject("size", _body_too_large(self._registry.limits.body))
        elif payload.is_eof():
            self._dispatch(payload)
        elif self._reading:
            self._buffer_body(payload)
        else:
            self._start_reading_body(payload)

    def _start_reading_body(self, payload: StreamReader) -> None:
        """The first look at a body that comes in pieces."""
        assert self._head is not None
        headers = self._head.headers
        if int(headers.get("Content-Length", "0")) > self._registry.limits.body:
            self._reject("size", _body_too_large(self._registry.limits.body))
            return
        expects = headers.get("Expect")
        if expects is not None and expects.lower() != "100-continue":
            self._reject("http", error_response(HTTPStatus.EXPECTATION_FAILED, "Expect must be 100-continue"))
            return
        if not self._registry.load.can_read_body():
            self._reject("busy", busy_response("too many requests at once"))
            return
        self._reading = True
        self._registry.load.reading += 1
        self.expires = self._started_at + request_deadline(self._query, self._registry.limits.request_time)
        if expects is not None and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._buffer_body(payload)

    def _buffer_body(self, payload: StreamReader) -> None:
        load = self._registry.load
        load.buffered += payload.total_bytes - self._buffered
        self._buffered = payload.total_bytes
        if load.buffered > self._registry.limits.buffered:
            self._reject("busy", busy_response("too many requests at once"))

    def _dispatch(self, payload: StreamReader) -> None:
        assert self._route is not None
        assert self._head is not None
        now = self._loop.time()
        if not self._registry.load.can_answer(now):
            self._reject("busy", busy_response("too many requests at once"))
            return
        sender = self._head.headers.get("User-Agent", "")
        self._send_response(
            self._route.handle(HttpRequest(payload.read_nowait(), self._query, now - self._started_at, sender))
        )

    def _reject(self, reason: str, reply: HttpResponse) -> bool:
        """Refuse a request; the connection stays if nothing of the request is still to come."""
        self._registry.on_rejected(reason)
        if self._payload is not None and self._payload.is_eof():
            self._payload.read_nowait()
            self._send_response(reply)
        else:
            self._reject_and_close(reply)
        return False

    def _send_response(self, reply: HttpResponse) -> None:
        """Write the answer, and be ready for the next request or close."""
        head, transport = self._head, self._transport
        assert head is not None
        if transport is None:
            return
        close = self._close_after_response or head.should_close or self._registry.draining
        transport.write(encode_response(reply, close=close, with_body=head.method != "HEAD"))
        self._release_buffers()
        self._head = self._payload = self._route = None
        self._started_at = 0.0
        if close:
            self._closing = True
            self._set_deadline(self._registry.limits.close_time)
            transport.close()
        else:
            self._parser.message_consumed()
            self._set_deadline(self._registry.limits.keepalive)
        if reply.after_send is not None:
            reply.after_send()

    def _reject_and_close(self, reply: HttpResponse) -> None:
        """Answer a request that is not all there, read past the rest for a moment, and close.

        Closing at once would reset the connection, and the client would never see why.
        """
        self._closing = True
        self._release_buffers()
        self._payload = None
        self._set_deadline(self._registry.limits.close_time)
        if self._transport is not None:
            self._transport.write(encode_response(reply, close=True))

    def _set_deadline(self, seconds: float) -> None:
        """Time from now on; one that does not take its answers gets no more of it, whatever it asks."""
        expires = self._loop.time() + seconds
        self.expires = min(self.expires, expires) if self._stalled else expires

    def _release_buffers(self) -> None:
        load = self._registry.load
        load.buffered -= self._buffered
        self._buffered = 0
        if self._reading:
            load.reading -= 1
            self._reading = False


_TIMEOUT_RESPONSE = error_response(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")


def _is_json_content_type(kind: str) -> bool:
    media, _, parameters = kind.lower().partition(";")
    name, _, value = parameters.strip().partition("=")
    return media.strip() == "application/json" and (not name or (name == "charset" and value.strip('" ') == "utf-8"))


def _body_too_large(limit: int) -> HttpResponse:
    return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must be at most {limit} bytes")
