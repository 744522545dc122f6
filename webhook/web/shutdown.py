"""How the process ends: it says so, serves on for a while, finishes what it began, and leaves with 0.

An API server keeps sending over pooled connections for as long as endpoints take to spread, so the process stays
up, answers each request with `Connection: close`, and is only then gone.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any, Protocol

from webhook.web.connection_registry import ConnectionRegistry

FINISH_SECONDS = 6.0
"""For requests that have begun: as long as one may take, and a second."""

DRAIN_POLL_SECONDS = 0.02


class DrainableServer(Protocol):
    """What is drained."""

    registry: ConnectionRegistry

    def stop_listening(self) -> None:
        """Take no more connections."""

    async def close(self) -> None:
        """Close every connection and end the tasks."""


class InfoLogger(Protocol):
    """Who is told."""

    def info(self, event: str, **values: Any) -> None:
        """Say what happened."""


async def serve_until_signal(server: DrainableServer, drain_seconds: float, log: InfoLogger) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal ends the draining at once."""
    told, hurried = asyncio.Event(), asyncio.Event()

    def tell() -> None:
        (hurried if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, tell)
    await told.wait()
    log.info("told to end", drain_seconds=drain_seconds)
    await drain_connections(server, drain_seconds, hurried)
    log.info("ended")


async def drain_connections(server: DrainableServer, seconds: float, hurried: asyncio.Event) -> None:
    """Not ready from now on; serve for `seconds` more; then finish what has begun and close."""
    server.registry.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(hurried.wait(), seconds)
    server.stop_listening()
    loop = asyncio.get_running_loop()
    end = loop.time() + FINISH_SECONDS
    while server.registry.busy and not hurried.is_set() and loop.time() < end:
        await asyncio.sleep(DRAIN_POLL_SECONDS)
    await server.close()
