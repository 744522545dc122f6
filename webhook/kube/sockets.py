"""The sockets of one HTTP session, so that none outlives it.

The session closes only connections that it still holds. One that carried a watch or a call that was cut off it lets
go of at once, while TLS waits for the other side's goodbye: for half a minute, if the other side hangs.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from weakref import WeakSet

from aiohttp.connector import AddrInfoType

SOCKET_CLOSE_SECONDS = 1.0
"""The most that `close` waits: the event loop closes a socket that was shut down in its next turn."""


class SocketTracker:
    """Makes sockets, and knows which of them are open."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()

    def create_socket(self, address: AddrInfoType) -> socket.socket:
        """A socket for an address, as aiohttp's `socket_factory`."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    async def close(self) -> None:
        """Shut down what is open still, and wait until the event loop has closed it."""
        for each in list(self._sockets):
            with suppress(OSError):  # it is not connected, or closed
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(SOCKET_CLOSE_SECONDS):
                while any(each.fileno() >= 0 for each in list(self._sockets)):
                    await asyncio.sleep(0.005)
