"""A TCP proxy that acts like a Service: each new connection goes to the next backend, and open connections stay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

CHUNK = 65536


class TcpProxy:
    """Where connections go.

    Attributes:
        backends: Ports of this machine; may be changed while it runs.
    """

    def __init__(self, backends: list[int]) -> None:
        self.backends = backends
        self._taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        self._taken += 1
        backends = self.backends
        with closing(writer):
            try:
                there, away = await asyncio.open_connection("127.0.0.1", backends[self._taken % len(backends)])
            except OSError:
                return
            with closing(away):
                ways = [asyncio.create_task(_pump(reader, away)), asyncio.create_task(_pump(there, writer))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()


@contextmanager
def serve_proxy(port: int, backends: list[int]) -> Iterator[TcpProxy]:
    """Inside, a proxy listens on a port of this machine."""
    proxy, loop = TcpProxy(backends), asyncio.new_event_loop()
    server = loop.run_until_complete(_listen(proxy, port))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _listen(proxy: TcpProxy, port: int) -> asyncio.Server:
    return await asyncio.start_server(proxy.serve, "127.0.0.1", port)


async def _end_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
