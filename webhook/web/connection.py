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

from webhook.web.limits import deadline
from webhook.web.lobby import Lobby
from webhook.web.replies import Call, Reply, Route, busy, refusal, response_bytes

MAX_LINE = 8190
MAX_HEADERS = 64

_JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})


class Connection(asyncio.Protocol):
    """The protocol of one connection. It is also what aiohttp's parser and stream call a protocol."""

    def __init__(self, lobby: Lobby, loop: asyncio.AbstractEventLoop) -> None:
        self._lobby = lobby
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
        self._began = 0.0
        self._head: RawRequestMessage | None = None
        self._route: Route | None = None
        self._query = ""
        self._payload: StreamReader | None = None
        self._held = 0
        self._reading = False
        self._choppy = False
        self._last = False
        self._closing = False
        self._stalled = False
        self._admitted = False
        self.expires = 0.0

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there, its TLS handshake done: its first request must follow soon."""
        self._transport = cast("asyncio.Transport", transport)
        self.expires = self._loop.time() + self._lobby.limits.request_time
        self._admitted = self._lobby.admits(transport.get_extra_info("peercert"))
        if not self._lobby.enter(self):
            self._closing = True
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone; what it held is free again."""
        self._transport = None
        self._closing = True
        self._release()
        self._lobby.leave(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came: parse them, and answer if they complete a request."""
        if self._closing:
            return
        if not self._began:
            self._began = self._loop.time()
            self._allow(self._lobby.limits.request_time)
        try:
            messages, upgraded, _rest = self._parser.feed_data(data)
        except HttpProcessingError:
            self._lobby.refused("http")
            self._refuse(refusal(HTTPStatus.BAD_REQUEST, "the request is not HTTP/1.1 as this server takes it"))
            return
        if messages:
            self._last = upgraded or len(messages) > 1 or self._head is not None
            if self._head is None and not self._begin(*messages[0]):
                return
        if self._payload is not None:
            self._go_on(self._payload)

    def pause_writing(self) -> None:
        """The client does not take its answers: hear no more from it, and not for long."""
        if self._transport is not None:
            self._transport.pause_reading()
            self._allow(self._lobby.limits.stall_time)
            self._stalled = True

    def resume_writing(self) -> None:
        """It does again."""
        self._stalled = False
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()
            limits = self._lobby.limits
            self._allow(limits.request_time if self._began else limits.keepalive)

    # What aiohttp's stream calls. Bodies are bounded here, so it never has to wait.

    def pause_reading(self) -> None:
        """The stream holds more than a body may: it came in too many small chunks."""
        self._choppy = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing was paused."""

    # What the lobby calls.

    @property
    def busy(self) -> bool:
        """Is a request on its way in, or an answer on its way out?"""
        transport = self._transport
        return bool(self._began) or (transport is not None and transport.get_write_buffer_size() > 0)

    def expire(self) -> None:
        """Its time is up: a slow request, which is told so, an idle client, or one that does not take its answers."""
        if self._began and not self._closing:
            self._lobby.refused("slow")
            self._refuse(_TOO_SLOW)
        else:
            self.abort()

    def abort(self) -> None:
        """Drop it at once."""
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """Close it once what was written is out."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # One request.

    def _begin(self, head: RawRequestMessage, payload: StreamReader) -> bool:
        """Look at a request's head; False if that was enough to refuse it."""
        self._head, self._payload = head, payload
        path, _, self._query = head.path.partition("?")
        self._route = route = self._lobby.routes.get(path)
        if route is None:
            return self._turn_away("path", refusal(HTTPStatus.NOT_FOUND, "there is nothing at this path"))
        if not route.takes(head.method):
            sentence = "this path does not take this method"
            return self._turn_away("method", refusal(HTTPStatus.METHOD_NOT_ALLOWED, sentence, extra=route.allow))
        if route.takes_json and not self._admitted:
            sentence = "this path needs a client certificate of the authority and the name that this server is told"
            return self._turn_away("client", refusal(HTTPStatus.FORBIDDEN, sentence))
        if head.upgrade:
            self._last = True
            return self._turn_away("http", refusal(HTTPStatus.BAD_REQUEST, "this server upgrades to nothing"))
        if route.takes_json:
            return self._check_json(head)
        return True

    def _check_json(self, head: RawRequestMessage) -> bool:
        kind = head.headers.get("Content-Type", "")
        if kind not in _JSON_TYPES and not _is_json(kind):
            sentence = "Content-Type must be application/json"
            return self._turn_away("content_type", refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence))
        if head.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            sentence = "Content-Encoding must be identity, or absent"
            return self._turn_away("encoding", refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, sentence))
        return True

    def _go_on(self, payload: StreamReader) -> None:
        """Answer if the body is whole, wait for the rest of it if it may come."""
        if payload.total_bytes > self._lobby.limits.body or self._choppy:
            self._turn_away("size", _too_large(self._lobby.limits.body))
        elif payload.is_eof():
            self._answer(payload)
        elif self._reading:
            self._hold(payload)
        else:
            self._start_reading(payload)

    def _start_reading(self, payload: StreamReader) -> None:
        """The first look at a body that comes in pieces."""
        assert self._head is not None
        headers = self._head.headers
        if int(headers.get("Content-Length", "0")) > self._lobby.limits.body:
            self._turn_away("size", _too_large(self._lobby.limits.body))
            return
        expects = headers.get("Expect")
        if expects is not None and expects.lower() != "100-continue":
            self._turn_away("http", refusal(HTTPStatus.EXPECTATION_FAILED, "Expect must be 100-continue"))
            return
        if not self._lobby.load.may_read():
            self._turn_away("busy", busy("too many requests at once"))
            return
        self._reading = True
        self._lobby.load.reading += 1
        self.expires = self._began + deadline(self._query, self._lobby.limits.request_time)
        if expects is not None and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._hold(payload)

    def _hold(self, payload: StreamReader) -> None:
        load = self._lobby.load
        load.buffered += payload.total_bytes - self._held
        self._held = payload.total_bytes
        if load.buffered > self._lobby.limits.buffered:
            self._turn_away("busy", busy("too many requests at once"))

    def _answer(self, payload: StreamReader) -> None:
        assert self._route is not None
        assert self._head is not None
        now = self._loop.time()
        if not self._lobby.load.may_answer(now):
            self._turn_away("busy", busy("too many requests at once"))
            return
        sender = self._head.headers.get("User-Agent", "")
        self._send(self._route.answer(Call(payload.read_nowait(), self._query, now - self._began, sender)))

    def _turn_away(self, reason: str, reply: Reply) -> bool:
        """Refuse a request; the connection stays if nothing of the request is still to come."""
        self._lobby.refused(reason)
        if self._payload is not None and self._payload.is_eof():
            self._payload.read_nowait()
            self._send(reply)
        else:
            self._refuse(reply)
        return False

    def _send(self, reply: Reply) -> None:
        """Write the answer, and be ready for the next request or close."""
        head, transport = self._head, self._transport
        assert head is not None
        if transport is None:
            return
        close = self._last or head.should_close or self._lobby.draining
        transport.write(response_bytes(reply, close=close, with_body=head.method != "HEAD"))
        self._release()
        self._head = self._payload = self._route = None
        self._began = 0.0
        if close:
            self._closing = True
            self._allow(self._lobby.limits.close_time)
            transport.close()
        else:
            self._parser.message_consumed()
            self._allow(self._lobby.limits.keepalive)
        if reply.then is not None:
            reply.then()

    def _refuse(self, reply: Reply) -> None:
        """Answer a request that is not all there, read past the rest for a moment, and close.

        Closing at once would reset the connection, and the client would never see why.
        """
        self._closing = True
        self._release()
        self._payload = None
        self._allow(self._lobby.limits.close_time)
        if self._transport is not None:
            self._transport.write(response_bytes(reply, close=True))

    def _allow(self, seconds: float) -> None:
        """Time from now on; one that does not take its answers gets no more of it, whatever it asks."""
        expires = self._loop.time() + seconds
        self.expires = min(self.expires, expires) if self._stalled else expires

    def _release(self) -> None:
        load = self._lobby.load
        load.buffered -= self._held
        self._held = 0
        if self._reading:
            load.reading -= 1
            self._reading = False


_TOO_SLOW = refusal(HTTPStatus.REQUEST_TIMEOUT, "the request came too slowly")


def _is_json(kind: str) -> bool:
    media, _, parameters = kind.lower().partition(";")
    name, _, value = parameters.strip().partition("=")
    return media.strip() == "application/json" and (not name or (name == "charset" and value.strip('" ') == "utf-8"))


def _too_large(limit: int) -> Reply:
    return refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must be at most {limit} bytes")
