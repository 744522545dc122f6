"""Accepts connections and completes their TLS handshakes, so that a flood of them delays no request.

A handshake costs about as much CPU as ten requests on an open connection, and nobody is authenticated before its end.
So a handshake starts when its first byte has arrived, a few start in each iteration of the event loop, and client
addresses take turns. If too many wait, the longest waiting one is closed (see `ClientQueues.surplus`).
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass

from webhook.web.connection import ConnectionRegistry, HttpConnection
from webhook.web.limits import ClientQueues
from webhook.web.tls import ServerTls

BACKLOG = 1024
TLS_SHUTDOWN_SECONDS = 2.0
"""The time limit for a client to close TLS."""

ACCEPTS_PER_ITERATION = 64
HANDSHAKES_PER_ITERATION = 4
"""New handshakes per iteration of the event loop: 1 to 2 ms of CPU before open connections are served again."""

RETRY_SECONDS = 0.1
"""The pause after the system has no file descriptor or memory left for a connection."""


@dataclass(slots=True, eq=False)
class PendingConnection:
    """An accepted connection whose TLS handshake is not complete.

    Attributes:
        expires: When it is closed without a first byte, by the loop's clock. The handshake has a limit of its own.
        handshake: The task of the handshake; None before its first byte.
    """

    socket: socket.socket
    address: str
    expires: float
    handshake: asyncio.Task[None] | None = None


class ConnectionAcceptor:
    """Accepts connections for a registry.

    Attributes:
        pending: Accepted connections whose handshake is not complete.
    """

    def __init__(self, registry: ConnectionRegistry, tls: ServerTls | None, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._tls = tls
        self._loop = loop
        self._listening: list[socket.socket] = []
        self.pending: ClientQueues[PendingConnection] = ClientQueues()
        self._ready: ClientQueues[PendingConnection] = ClientQueues()
        self._started: ClientQueues[PendingConnection] = ClientQueues()

    async def listen(self, host: str, port: int) -> int:
        """Bind all addresses of a host, accept connections there, and return the port of the first one."""
        self._listening = await bind_sockets(host, port)
        for listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)
        return int(self._listening[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Accept the connections that wait in the system, and no more."""
        for listening in self._listening:
            self._accept(listening)
            self._loop.remove_reader(listening.fileno())
            listening.close()
        self._listening = []

    async def close(self) -> None:
        """Stop, and end all handshakes."""
        self.stop_listening()
        for pending in [each for each in self.pending if each.handshake is None]:
            self._close(pending)
        started = list(self._started)
        for pending in started:
            self._close(pending)
        await asyncio.gather(*(each.handshake for each in started if each.handshake is not None))

    async def close_expired(self) -> None:
        """Close connections whose client has sent nothing in time."""
        now = self._loop.time()
        for pending in [each for each in self.pending if each.handshake is None and each.expires < now]:
            self._registry.on_rejected("timeout")
            self._close(pending)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:
                self._registry.on_rejected("too_many_connections")
                self._pause_accepting(listening)
                return
            accepted.setblocking(False)
            self._add(PendingConnection(accepted, address[0], self._loop.time() + self._registry.limits.handshake_time))

    def _pause_accepting(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(RETRY_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _add(self, pending: PendingConnection) -> None:
        if len(self.pending) >= self._registry.limits.pending:
            self._displace(self.pending)
        self.pending.add(pending.address, pending)
        self._loop.add_reader(pending.socket.fileno(), self._on_first_byte, pending)

    def _on_first_byte(self, pending: PendingConnection) -> None:
        self._loop.remove_reader(pending.socket.fileno())
        if not self._ready:
            self._loop.call_soon(self._start_handshakes)
        self._ready.add(pending.address, pending)

    def _start_handshakes(self) -> None:
        """Start a few handshakes, and continue in the next iteration: open connections are served in between."""
        for _ in range(min(HANDSHAKES_PER_ITERATION, len(self._ready))):
            if len(self._started) >= self._registry.limits.handshakes:
                self._displace(self._started)
            pending = self._ready.pop_next()
            self._started.add(pending.address, pending)
            pending.handshake = self._loop.create_task(self._complete_handshake(pending))
        if self._ready:
            self._loop.call_soon(self._start_handshakes)

    async def _complete_handshake(self, pending: PendingConnection) -> None:
        limits, context = self._registry.limits, self._tls.context if self._tls is not None else None
        try:
            with suppress(OSError):  # the client sent something else than TLS, an untrusted certificate, or nothing
                await self._loop.connect_accepted_socket(
                    lambda: HttpConnection(self._registry, self._loop, pending.address),
                    pending.socket,
                    ssl=context,
                    ssl_handshake_timeout=limits.handshake_time if context else None,
                    ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS if context else None,
                )
        finally:
            self._forget(pending)

    def _displace(self, queues: ClientQueues[PendingConnection]) -> None:
        """Close the longest waiting surplus connection."""
        self._registry.on_rejected("too_many_handshakes")
        self._close(next(queues.surplus()))

    def _close(self, pending: PendingConnection) -> None:
        self._forget(pending)
        if pending.handshake is None:
            self._loop.remove_reader(pending.socket.fileno())
            pending.socket.close()
            return
        with suppress(OSError):  # it is closed already; otherwise the handshake reads its end, and closes it
            pending.socket.shutdown(socket.SHUT_RDWR)

    def _forget(self, pending: PendingConnection) -> None:
        for queues in (self.pending, self._ready, self._started):
            queues.discard(pending.address, pending)


async def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host; port 0 lets the system choose one.

    Raises:
        OSError: an address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            bound.append(socket.create_server(address, family=family, backlog=BACKLOG))
            bound[-1].setblocking(False)
            bound[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound
