"""Listens on loopback while the console runs."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from webhook.console.guard import allowed_hosts
from webhook.console.reading import NewestReading
from webhook.console.server import build_console

SHUTDOWN_SECONDS = 1.0
"""Time that responses have to end."""


@asynccontextmanager
async def serve_console(reading: NewestReading, host: str, port: int) -> AsyncIterator[str]:
    """Serve pages, and give the address of the first one; port 0 means any free port.

    Raises:
        OSError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        bound = listening.getsockname()[1]
        app = build_console(reading, allowed_hosts(host, bound))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield f"http://{f'[{host}]' if family == socket.AF_INET6 else host}:{bound}/"
        finally:
            await runner.cleanup()
