"""Servers that are not a Prometheus, or a broken one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aiohttp import web

NONE: Mapping[str, str] = {}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextmanager
def serve_answer(answer: Answer) -> Iterator[str]:
    """Serve this answer to every request, in a thread; yields the URL."""
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(_start(answer))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(answer: Answer) -> web.AppRunner:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def fixed_answer(
    text: str | bytes, kind: str = "application/json", status: int = 200, headers: Mapping[str, str] = NONE
) -> Answer:
    """Return a handler that always gives the same answer."""
    body = text.encode() if isinstance(text, str) else text

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers={"Content-Type": kind} | dict(headers))

    return answer


async def never_answer(_: web.Request) -> web.StreamResponse:
    """Do not answer."""
    await asyncio.sleep(60)
    return web.Response()


async def slow_answer(request: web.Request) -> web.StreamResponse:
    """Answer without end, a byte at a time."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


async def endless_answer(request: web.Request) -> web.StreamResponse:
    """Answer without end, as fast as it is read."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 262_144)


async def truncated_answer(request: web.Request) -> web.StreamResponse:
    """Close the connection before the end of the answer."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status":')
    assert request.transport is not None
    request.transport.close()
    return response


def fake_prometheus(
    *,
    clock: Callable[[], object] = time.time,
    starting: Mapping[str, Any] | None = None,
    containing: Mapping[str, Any] | None = None,
    names: Sequence[str] = ("DCGM_FI_DEV_FB_USED",),
    extra: Mapping[str, Any] | None = None,
) -> Answer:
    """Return a handler that answers as Prometheus does, with one GPU and these series for range queries.

    Args:
        clock: Returns the server's time.
        ranges: Series by the beginning of the query.
        about: Series by a part of the query, if no beginning matches.
        names: The metrics that exist.
        beside: Further fields of each answer.
    """

    more = dict(extra or {})

    async def answer(request: web.Request) -> web.StreamResponse:
        parameters = {**request.query, **(await request.post())}
        if request.path.endswith("/values"):
            match = str(parameters["match[]"])
            kind = "DCGM" if "DCGM" in match else "kube"
            there = [name for name in names if name.startswith(kind) and 'exported_pod=""' in match]
            return _success(there, **more)
        query = str(parameters["query"])
        if query == "time()":
            return _success({"resultType": "scalar", "result": [0, str(clock())]}, **more)
        if request.path.endswith("query_range"):
            found: Any = [value for start, value in (starting or {}).items() if query.startswith(start)]
            found += [value for part, value in (containing or {}).items() if part in query]
            return _success({"resultType": "matrix", "result": [*found, []][0]}, **more)
        return _success({"resultType": "vector", "result": []}, **more)

    return answer


def _success(data: object, **more: object) -> web.Response:
    return web.Response(text=json.dumps({"status": "success", "data": data} | more), content_type="application/json")
