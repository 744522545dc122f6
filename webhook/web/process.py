"""Run a serving process: garbage collection, the limit of open files, and graceful shutdown.

Shutdown: report not ready, keep serving for a while, finish open requests, and exit with 0.

API servers send requests over pooled connections until the change of endpoints has reached them. So the process keeps
serving, closes each connection after its response, and exits afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit

from webhook.telemetry.logs import StructuredLogger
from webhook.web.listener import HttpListener

FINISH_SECONDS = 6.0
"""For requests that have started: the longest request time and a second."""

DRAIN_POLL_SECONDS = 0.02

YOUNG_GENERATION_THRESHOLD = 50_000
"""Allocations between two collections of young objects: a few hundred requests."""

SPARE_DESCRIPTORS = 64
"""For the listening socket, the event loop, and files that are read while all connections are open."""


async def serve_until_signal(server: HttpListener, drain_seconds: float, log: StructuredLogger) -> None:
    """Serve until SIGTERM or SIGINT, then drain. A second signal stops draining."""
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await stop.wait()
    log.info("shutting down", drain_seconds=drain_seconds)
    await drain_connections(server, drain_seconds, stop_now)
    log.info("stopped")


async def drain_connections(server: HttpListener, seconds: float, stop_now: asyncio.Event) -> None:
    """Report not ready, serve for `seconds` more, then finish open requests and close."""
    server.registry.draining = True
    with suppress(TimeoutError):
        await asyncio.wait_for(stop_now.wait(), seconds)
    server.stop_listening()
    loop = asyncio.get_running_loop()
    end = loop.time() + FINISH_SECONDS
    while server.registry.busy and not stop_now.is_set() and loop.time() < end:
        await asyncio.sleep(DRAIN_POLL_SECONDS)
    await server.close()


def freeze_and_tune_gc() -> None:
    """Exclude all current objects from collection, and collect young ones seldom. Call it when everything is loaded.

    Loaded objects live as long as the process, and a request leaves hardly any reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_GENERATION_THRESHOLD, 20, 100)


def raise_descriptor_limit(connections: int) -> int:
    """Raise the soft limit of open files for a number of connections; return how many are possible."""
    soft, hard = getrlimit(RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft == RLIM_INFINITY or soft >= wanted:
        return connections
    limit = wanted if hard == RLIM_INFINITY else min(wanted, hard)
    setrlimit(RLIMIT_NOFILE, (limit, hard))
    return max(1, limit - SPARE_DESCRIPTORS)
