"""A scripted API server: each request gets the next response and is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from webhook.kube.access import ClusterAccess
from webhook.kube.api import KubeClient

Json = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

PATIENCE = 60.0
END = object()
"""In a stream: end the response normally instead of staying silent."""


class MinimumRandom:
    """A random source that always returns the minimum."""

    def uniform(self, a: float, _b: float) -> float:
        return a


class ScriptedServer:
    """Sends the scripted responses in order; after the last one, watches stay open and silent.

    Attributes:
        requests: The requests so far.
    """

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self.requests: list[web.Request] = []
        self._answers = list(answers)
        self._ended = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        await request.read()
        if self._answers:
            return await self._answers.pop(0)(request)
        return await stream()(request)

    def queries(self) -> list[dict[str, str]]:
        """The parameters of each request, without the random length of watches."""
        return [{key: value for key, value in each.query.items() if key != "timeoutSeconds"} for each in self.requests]


@asynccontextmanager
async def scripted_api(
    folder: Path, *answers: Answer, token: str = "t0", seconds: float = 10.0
) -> AsyncIterator[tuple[ScriptedServer, KubeClient]]:
    """Run a scripted server, and a client with a kubeconfig for it."""
    server = ScriptedServer(answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(app) as running:
        file = kubeconfig(folder, str(running.make_url("/")), token)
        async with KubeClient(await ClusterAccess(str(file)).read(), seconds=seconds) as api:
            yield server, api


def kubeconfig(folder: Path, url: str, token: str, user: Json | None = None) -> Path:
    """Write a kubeconfig file with one context."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": user if user is not None else {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def json_answer(body: Any, status: int = 200, **headers: str) -> Answer:
    """Return a JSON response, or a text as it is."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        if isinstance(body, str):
            return web.Response(text=body, status=status, headers=named, content_type="text/html")
        return web.json_response(body, status=status, headers=named)

    return answer


def error_answer(status: int, reason: str = "", message: str = "no", **headers: str) -> Answer:
    """Return an error response of the API."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
    return json_answer(body, status, **headers)


def stream(*lines: Any, partial_line: bytes = b"", cut: bool = False) -> Answer:
    """Return the response of a watch: events or bytes, then silence; END ends it.

    Args:
        lines: Events as data, bytes that are sent as they are, or an asyncio.Event to wait for.
        partial_line: Half a line to send at the end.
        cut: Then break the connection without ending the response.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for line in lines:
            if line is END:
                await response.write_eof()
                return response
            if isinstance(line, asyncio.Event):
                await line.wait()
                continue
            await response.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        if partial_line:
            await response.write(partial_line)
        if cut:
            assert request.transport is not None
            request.transport.close()
            return response
        await asyncio.sleep(PATIENCE)
        return response

    return answer


def namespace_data(name: str, version: int = 1, **labels: str) -> Json:
    """Return a namespace as JSON data."""
    return {"metadata": {"name": name, "resourceVersion": str(version), "labels": labels}}


def event(kind: str, data: Json) -> Json:
    return {"type": kind, "object": data}


def bookmark(version: int, *, end: bool = False) -> Json:
    notes = {"annotations": {"k8s.io/initial-events-end": "true"}} if end else {}
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version), **notes}})


def error(code: int, reason: str = "Expired") -> Json:
    status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"}
    return event("ERROR", {**status, "metadata": {}})


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)
