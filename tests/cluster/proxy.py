"""A TCP proxy that acts like a Service: each new connection goes to the next backend, and open connections stay."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

CHUNK = 65536


class TcpProxy:
    """Forwards connections to backends in turn.

    Attributes:
        backends: Local ports; may be changed while it runs.
    """

    def __init__(self, backends: list[int]) -> None:
        self.backends = backends
        self._accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until it ends."""
        self._accepted += 1
        backends = self.backends
        with closing(writer):
            try:
                backend_reader, backend_writer = await asyncio.open_connection(
                    "127.0.0.1", backends[self._accepted % len(backends)]
                )
            except OSError:
                return
            with closing(backend_writer):
                pumps = [
                    asyncio.create_task(_pump(reader, backend_writer)),
                    asyncio.create_task(_pump(backend_reader, writer)),
                ]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()


@contextmanager
def serve_proxy(port: int, backends: list[int], address: str = "127.0.0.1") -> Iterator[TcpProxy]:
    """Serve a proxy on a port of this machine for the block."""
    proxy, loop = TcpProxy(backends), asyncio.new_event_loop()
    server = loop.run_until_complete(_listen(proxy, port, address))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _listen(proxy: TcpProxy, port: int, address: str) -> asyncio.Server:
    return await asyncio.start_server(proxy.serve, address, port)


async def _cancel_other_tasks() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
