"""Listens on loopback while the console runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

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
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, logger=_error_logger())
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield f"http://{f'[{host}]' if family == socket.AF_INET6 else host}:{bound}/"
        finally:
            await runner.cleanup()


def _error_logger() -> logging.Logger:
    """Return the logger of errors of the console; the answer to a request that is not valid HTTP says enough."""
    logger = logging.getLogger("rightslice.console")
    logger.addFilter(_is_internal)
    return logger


def _is_internal(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
