"""HTTP connections: aiohttp's C parser, one response at a time, and a deadline for every state.

`aiohttp.web` would create a task, a request object and a response object for each request. Handlers here never wait
once the body has arrived, so requests are answered in the parser's callback. Over TLS on one core that takes 25 µs of
CPU per request for HTTP and TLS together, instead of 69.

Unusual requests are rejected: pipelined requests get one response and a closed connection; an upgrade or a malformed
request gets 400 and a closed connection. So there is never a second interpretation of where one request ends.

A connection is trusted if its client presented an accepted certificate or, where none is required, has sent a review.
Only trusted ones stay open after a response; the others have slots of their own, so they cannot displace trusted ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from aiohttp.http import HttpProcessingError, HttpRequestParser, RawRequestMessage
from aiohttp.streams import StreamReader

from webhook.web.http_messages import (
    HttpRequest,
    HttpResponse,
    HttpRoute,
    busy_response,
    encode_response,
    error_response,
)
from webhook.web.limits import LARGE_BODY, ClientQueues, ServerLimits, ServerLoad, request_deadline, tls_memory
from webhook.web.tls import ClientCertificateRules, PeerCertificate

MAX_LINE = 8190
MAX_HEADERS = 64
_JSON_TYPES = frozenset({"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"})


class HttpConnection(asyncio.Protocol):
    """The asyncio protocol of one connection, also passed to aiohttp's parser and stream as their protocol."""

    def __init__(self, registry: ConnectionRegistry, loop: asyncio.AbstractEventLoop, address: str = "") -> None:
        self.address = address
        self._registry = registry
        self._loop = loop
        self._parser: HttpRequestParser | None = HttpRequestParser(
            cast("asyncio.Protocol", self),  # type: ignore[arg-type] # the parser only pauses and resumes it
            loop,
            registry.limits.chunk_memory,
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
        self._largest_read = LARGE_BODY
        self._retained = 0
        self._reading = False
        self._waiting = False
        self._too_many_chunks = False
        self._close_after_response = False
        self._closing = False
        self._stalled = False
        self._client_allowed = False
        self._certificate: PeerCertificate | None = None
        self._retired = False
        self.expires = 0.0

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline for the first request; the TLS handshake is complete."""
        self._transport = cast("asyncio.Transport", transport)
        self._certificate = transport.get_extra_info("peercert")
        accepted = self._registry.accepts_certificate(self._certificate)
        self._client_allowed = accepted or not self._registry.requires_certificates
        limits = self._registry.limits
        self._set_deadline(limits.keepalive if self._client_allowed else limits.request_time)
        if not self._registry.add(self, trusted=accepted):
            self._closing = True
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Release everything that the connection used."""
        self._transport = None
        self._closing = True
        self._release_request()
        self._registry.load.retained -= self._retained
        self._registry.load.free_memory.count_body(self._retained)
        self._registry.discard(self)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and respond if it completes a request."""
        if len(data) > self._largest_read:
            self._count_retained(len(data))
        if self._closing or self._parser is None:
            return
        if not self._started_at:
            self._started_at = self._loop.time()
            self._set_deadline(self._registry.limits.request_time)
        try:
            messages, upgraded, _rest = self._parser.feed_data(data)
        except HttpProcessingError:
            self._registry.on_rejected("bad_request")
            self._reject_and_close(_BAD_REQUEST)
            return
        if messages:
            self._close_after_response = upgraded or len(messages) > 1 or self._head is not None
            if self._head is None and not self._check_head(*messages[0]):
                return
        if self._payload is not None and not self._waiting:
            self._continue_request(self._payload)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its responses, and start a deadline."""
        if self._transport is not None:
            self._transport.pause_reading()
            self._set_deadline(self._registry.limits.stall_time)
            self._stalled = True

    def resume_writing(self) -> None:
        """Continue: the client has read its responses."""
        self._stalled = False
        if self._transport is not None and not self._closing and not self._waiting:
            self._transport.resume_reading()
            limits = self._registry.limits
            self._set_deadline(limits.request_time if self._started_at else limits.keepalive)

    # Called by aiohttp's stream. The size of bodies is limited here, so it never has to wait.

    def pause_reading(self) -> None:
        """Note that the stream exceeds the memory for a body: it has too many small chunks."""
        self._too_many_chunks = True

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Do nothing: reading was not paused."""

    # Called by the registry.

    @property
    def busy(self) -> bool:
        """True while a request is being received or a response is being sent."""
        transport = self._transport
        return bool(self._started_at) or (transport is not None and transport.get_write_buffer_size() > 0)

    @property
    def receives_body(self) -> bool:
        """True while a body is being received, or waits for its turn."""
        return self._reading or self._waiting

    def apply_client_rules(self, rules: ClientCertificateRules) -> None:
        """Check the client by other rules, and close after the next response: the old ones verified its certificate."""
        self._client_allowed = not rules.required or rules.allows(self._certificate)
        self._retired = True

    def expire(self) -> None:
        """Send 408 for a slow request; close an idle connection, or one whose client does not read."""
        if self._started_at and not self._closing:
            self._registry.on_rejected("timeout")
            self._reject_and_close(_TIMEOUT_RESPONSE)
        else:
            self.abort()

    def abort(self) -> None:
        """Close it immediately."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def close_after_write(self) -> None:
        """Close it after pending data was sent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # Requests.

    def _check_head(self, head: RawRequestMessage, payload: StreamReader) -> bool:
        self._head, self._payload = head, payload
        path, _, self._query = head.path.partition("?")
        self._route = route = self._registry.routes.get(path)
        if route is None:
            return self._reject("not_found", error_response(HTTPStatus.NOT_FOUND, "no such path"))
        if head.method not in (("POST",) if route.accepts_json else ("GET", "HEAD")):
            message = "this path does not support this method"
            allow = b"Allow: POST\r\n" if route.accepts_json else b"Allow: GET, HEAD\r\n"
            response = error_response(HTTPStatus.METHOD_NOT_ALLOWED, message, extra_headers=allow)
            return self._reject("method_not_allowed", response)
        if route.accepts_json and not self._client_allowed:
            message = "this path requires a client certificate of the configured authority and name"
            return self._reject("client_certificate", error_response(HTTPStatus.FORBIDDEN, message))
        if head.upgrade:
            self._close_after_response = True
            return self._reject("bad_request", error_response(HTTPStatus.BAD_REQUEST, "upgrades are not supported"))
        content_type = head.headers.get("Content-Type", "")
        if route.accepts_json and content_type not in _JSON_TYPES and not _is_json_content_type(content_type):
            message = "Content-Type must be application/json"
            return self._reject("content_type", error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message))
        if route.accepts_json and head.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            message = "Content-Encoding must be identity, or absent"
            return self._reject("content_encoding", error_response(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message))
        return True

    def _continue_request(self, payload: StreamReader) -> None:
        if payload.total_bytes > self._registry.limits.body or self._too_many_chunks:
            self._reject("body_too_large", _body_too_large(self._registry.limits.body))
        elif payload.is_eof():
            self._dispatch(payload)
        elif self._reading:
            self._buffer_body(payload)
        else:
            self._start_reading_body(payload)

    def _start_reading_body(self, payload: StreamReader) -> None:
        assert self._head is not None
        headers = self._head.headers
        if int(headers.get("Content-Length", "0")) > self._registry.limits.body:
            self._reject("body_too_large", _body_too_large(self._registry.limits.body))
            return
        expects = headers.get("Expect")
        if expects is not None and expects.lower() != "100-continue":
            self._reject("bad_request", error_response(HTTPStatus.EXPECTATION_FAILED, "Expect must be 100-continue"))
            return
        if not self._registry.load.can_read_body():
            self._reject("overloaded", _OVERLOADED)
            return
        self._reading = True
        self._registry.load.reading += 1
        self.expires = self._started_at + request_deadline(self._query, self._registry.limits.request_time)
        if expects is not None and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._buffer_body(payload)

    def _buffer_body(self, payload: StreamReader) -> None:
        self._count_buffered(payload)
        if payload.total_bytes > LARGE_BODY and self._registry.load.is_full:
            self._reject("overloaded", _OVERLOADED)

    def _count_buffered(self, payload: StreamReader) -> None:
        self._registry.load.buffered += payload.total_bytes - self._buffered
        self._buffered = payload.total_bytes

    def _count_retained(self, read: int) -> None:
        load, before = self._registry.load, self._retained
        self._largest_read, self._retained = read, tls_memory(read)
        load.retained += self._retained - before
        if load.is_overfull:
            self._registry.on_rejected("overloaded")
            self.abort()

    def _dispatch(self, payload: StreamReader) -> None:
        load = self._registry.load
        if not load.can_answer(self._loop.time()):
            self._reject("overloaded", _OVERLOADED)
        elif payload.total_bytes > LARGE_BODY and self._transport is not None:
            self._count_buffered(payload)
            if load.is_full:
                self._reject("overloaded", _OVERLOADED)
                return
            load.free_memory.count_body(payload.total_bytes)
            self._waiting = True
            self._transport.pause_reading()
            load.large_requests.add(self._answer_large)
        else:
            self._answer(payload)

    def _answer_large(self) -> None:
        """Answer when it is this request's turn, unless its time is over or its client has left."""
        self._waiting = False
        if self._payload is None or self._transport is None or self._closing:
            return
        self._transport.resume_reading()
        self._answer(self._payload)

    def _answer(self, payload: StreamReader) -> None:
        assert self._route is not None
        assert self._head is not None
        elapsed, headers = self._loop.time() - self._started_at, self._head.headers
        self._send_response(self._route.handle(HttpRequest(payload.read_nowait(), self._query, elapsed, headers)))

    def _reject(self, reason: str, response: HttpResponse) -> bool:
        """Reject a request and return False; the connection stays open if the request was received completely."""
        self._registry.on_rejected(reason)
        if self._payload is not None and self._payload.is_eof():
            self._payload.read_nowait()
            self._send_response(response)
        else:
            self._reject_and_close(response)
        return False

    def _send_response(self, response: HttpResponse) -> None:
        head, transport = self._head, self._transport
        assert head is not None
        if transport is None:
            return
        ends = self._close_after_response or self._retired or self._registry.draining
        close = ends or head.should_close or not self._stays_open()
        transport.write(encode_response(response, close=close, with_body=head.method != "HEAD"))
        self._release_buffers()
        self._head = self._payload = self._route = None
        self._started_at = 0.0
        if close:
            self._closing = True
            close_time = self._registry.limits.close_time
            self._set_deadline(close_time / 4 if self._retained else close_time)
            transport.close()
        elif self._parser is not None:
            self._parser.message_consumed()
            self._set_deadline(self._registry.limits.keepalive)
        if response.after_send is not None:
            response.after_send()

    def _stays_open(self) -> bool:
        """Return whether the client may send more: it reviews, and TLS keeps no memory beyond the limit for it.

        Probes, scrapers and others connect again.
        """
        if self._retained and self._registry.load.retained > self._registry.limits.retained:
            return False
        reviews = self._client_allowed and self._route is not None and self._route.accepts_json
        return reviews and self._registry.trust(self)

    def _reject_and_close(self, response: HttpResponse) -> None:
        """Respond to an incomplete request, discard its rest for a moment, and close.

        Closing at once would reset the connection, and the client would not receive the response.
        """
        self._closing = True
        self._release_request()
        self._set_deadline(self._registry.limits.close_time)
        if self._transport is not None:
            self._transport.write(encode_response(response, close=True))

    def _set_deadline(self, seconds: float) -> None:
        """Set the deadline; a client that does not read its responses cannot extend it."""
        expires = self._loop.time() + seconds
        self.expires = min(self.expires, expires) if self._stalled else expires

    def _release_request(self) -> None:
        """Release an incomplete request. The parser has it too, and both are in cycles with the connection."""
        self._release_buffers()
        self._payload = self._parser = None

    def _release_buffers(self) -> None:
        load = self._registry.load
        load.buffered -= self._buffered
        self._buffered = 0
        if self._reading:
            load.reading -= 1
            self._reading = False


@dataclass(slots=True, eq=False)
class ConnectionRegistry:
    """The connections of one event loop.

    Attributes:
        on_rejected: Called with a reason for each rejected request or connection; the reasons are a closed set.
        client_rules: Which clients may call routes with JSON; None for all.
        draining: True once the process shuts down: every response then closes its connection.
    """

    routes: Mapping[str, HttpRoute]
    limits: ServerLimits
    on_rejected: Callable[[str], None]
    client_rules: ClientCertificateRules | None = None
    draining: bool = field(init=False, default=False)
    trusted: ClientQueues[HttpConnection] = field(init=False, default_factory=ClientQueues)
    untrusted: ClientQueues[HttpConnection] = field(init=False, default_factory=ClientQueues)
    load: ServerLoad = field(init=False)

    def __post_init__(self) -> None:
        self.load = ServerLoad(self.limits)

    @property
    def connections(self) -> list[HttpConnection]:
        """All connections."""
        return [*self.trusted, *self.untrusted]

    def add(self, connection: HttpConnection, *, trusted: bool = False) -> bool:
        """Add a connection, which replaces another if there are too many of its kind; False if none can be closed."""
        queues, limit = (self.trusted, self.limits.trusted) if trusted else (self.untrusted, self.limits.untrusted)
        if len(queues) >= limit and not self._displace(queues):
            return False
        queues.add(connection.address, connection)
        return True

    def trust(self, connection: HttpConnection) -> bool:
        """Make a connection trusted, the one used last; False if there are too many and none can be closed."""
        if self.trusted.discard(connection.address, connection):
            self.trusted.add(connection.address, connection)
            return True
        if not self.add(connection, trusted=True):
            return False
        self.untrusted.discard(connection.address, connection)
        return True

    @property
    def requires_certificates(self) -> bool:
        """True if clients need a certificate by now."""
        return self.client_rules is not None and self.client_rules.required

    def accepts_certificate(self, certificate: PeerCertificate | None) -> bool:
        """Return whether the rules accept a certificate; from the first one on, every client needs one."""
        rules = self.client_rules
        if rules is None or not rules.allows(certificate):
            return False
        if not rules.required:
            self.replace_client_rules(rules._replace(required=True))
        return True

    def replace_client_rules(self, rules: ClientCertificateRules) -> None:
        """Check the clients of all connections by other rules; certificates that were required stay required."""
        self.client_rules = rules = rules._replace(required=rules.required or self.requires_certificates)
        for connection in self.connections:
            connection.apply_client_rules(rules)

    def discard(self, connection: HttpConnection) -> None:
        """Remove a connection that was closed."""
        if not self.untrusted.discard(connection.address, connection):
            self.trusted.discard(connection.address, connection)

    def _displace(self, queues: ClientQueues[HttpConnection]) -> bool:
        """Close the longest unused surplus connection, unless its request is being received."""
        self.on_rejected("too_many_connections")
        for connection in queues.surplus():
            if not connection.receives_body:
                queues.discard(connection.address, connection)
                connection.abort()
                return True
        return False

    async def close_expired(self) -> None:
        """Close connections whose deadline has passed. Checking all of them is cheaper than a timer for each."""
        now = asyncio.get_running_loop().time()
        for connection in [each for each in self.connections if each.expires < now]:
            connection.expire()

    @property
    def busy(self) -> bool:
        """True while any connection receives a request or sends a response."""
        return any(connection.busy for connection in self.connections)


_TIMEOUT_RESPONSE = error_response(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to arrive")

_OVERLOADED = busy_response("too many concurrent requests")

_BAD_REQUEST = error_response(HTTPStatus.BAD_REQUEST, "the request is not valid HTTP/1.1")


def _is_json_content_type(content_type: str) -> bool:
    media, _, parameters = content_type.lower().partition(";")
    name, _, value = parameters.strip().partition("=")
    return media.strip() == "application/json" and (not name or (name == "charset" and value.strip('" ') == "utf-8"))


def _body_too_large(limit: int) -> HttpResponse:
    return error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must be at most {limit} bytes")
