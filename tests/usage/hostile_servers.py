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
    """The URL of a server that treats every request the same, in a thread of its own."""
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


def says(
    text: str | bytes, kind: str = "application/json", status: int = 200, headers: Mapping[str, str] = NONE
) -> Answer:
    """Always the same answer."""
    body = text.encode() if isinstance(text, str) else text

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers={"Content-Type": kind} | dict(headers))

    return answer


async def never(_: web.Request) -> web.StreamResponse:
    """No answer at all."""
    await asyncio.sleep(60)
    return web.Response()


async def drips(request: web.Request) -> web.StreamResponse:
    """An answer that never ends, a byte at a time."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


async def pours(request: web.Request) -> web.StreamResponse:
    """An endless answer, as fast as it is read."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 262_144)


async def breaks_off(request: web.Request) -> web.StreamResponse:
    """An answer that ends before its length."""
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status":')
    assert request.transport is not None
    request.transport.close()
    return response


def plays(
    *,
    clock: Callable[[], object] = time.time,
    ranges: Mapping[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    names: Sequence[str] = ("DCGM_FI_DEV_FB_USED",),
    beside: Mapping[str, Any] | None = None,
) -> Answer:
    """Something that says all the right words: one GPU, and for queries of ranges what is given, by how they begin.

    Args:
        clock: What it says the moment is.
        ranges: Series by how a query begins.
        about: The same by what a query speaks of, where no beginning fits.
        names: Metrics that it has.
        beside: What stands beside the data of each answer.
    """

    more = dict(beside or {})

    async def answer(request: web.Request) -> web.StreamResponse:
        asked = {**request.query, **(await request.post())}
        if request.path.endswith("/values"):
            match = str(asked["match[]"])
            kind = "DCGM" if "DCGM" in match else "kube"
            there = [name for name in names if name.startswith(kind) and 'exported_pod=""' in match]
            return _success(there, **more)
        query = str(asked["query"])
        if query == "time()":
            return _success({"resultType": "scalar", "result": [0, str(clock())]}, **more)
        if request.path.endswith("query_range"):
            spoken_of = [value for word, value in (about or {}).items() if word in query]
            found: Any = [value for start, value in (ranges or {}).items() if query.startswith(start)]
            return _success({"resultType": "matrix", "result": [*found, *spoken_of, []][0]}, **more)
        return _success({"resultType": "vector", "result": []}, **more)

    return answer


def _success(data: object, **more: object) -> web.Response:
    return web.Response(text=json.dumps({"status": "success", "data": data} | more), content_type="application/json")
