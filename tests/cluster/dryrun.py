"""Asking an API server, over many connections, what it would make of pods: server dry-run, nothing is stored."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.cluster.random_objects import PRIORITIES

Json = dict[str, Any]
SEEN = "rightslice.test/seen"
WITHIN = 30
CONNECTIONS = 24
NO_LABELS: Mapping[str, str] = {}


class Answer(NamedTuple):
    """A status and a body."""

    status: int
    body: Json


class DryRuns:
    """Requests to one API server, and a way to know that it has seen every LimitRange and quota made so far.

    Each of its two caches is filled by one ordered watch. So once a change made afterwards shows in what becomes of a
    pod, everything before it has been seen too.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._rounds = count(1)
        self._seen = ""

    async def ask(self, method: str, path: str, body: Json | None = None, **params: str) -> Answer:
        """Send one request."""
        deadline = aiohttp.ClientTimeout(total=WITHIN)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self._url + path, data=data, headers=headers, params=params, timeout=deadline
        ) as reply:
            return Answer(reply.status, await reply.json())

    async def pods(self, namespace: str, pods: Iterable[Json]) -> list[Answer]:
        """What the API server would make of each pod."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await asyncio.gather(*(self.ask("POST", path, pod, dryRun="All") for pod in pods))

    async def add_namespace(self, name: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Make a namespace; its service account comes a moment later."""
        body = {"metadata": {"name": name, "labels": dict(labels)}}
        made = await self.ask("POST", "/api/v1/namespaces", body)
        assert made.status == 201, made
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        async with asyncio.timeout(WITHIN):
            while (await self.ask("GET", account)).status != 200:
                await asyncio.sleep(0.05)

    async def prepare(self, namespace: str) -> None:
        """Make the namespace in which it shows what the API server has seen, and the priorities that pods name."""
        self._seen = namespace
        await self.add_namespace(namespace)
        for value, name in enumerate(PRIORITIES):
            body: Json = {"metadata": {"name": name}, "value": value}
            await self.ask("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        for name, resource in (("first", "example.com/first"), ("mark", SEEN)):
            spec: Json = {"limits": [{"type": "Container", "default": {resource: "0"}}]}
            await self.made(f"/api/v1/namespaces/{self._seen}/limitranges", {"metadata": {"name": name}, "spec": spec})
            quota = {"metadata": {"name": name}, "spec": {"hard": {f"requests.{resource}": "0"}}}
            await self.made(f"/api/v1/namespaces/{self._seen}/resourcequotas", quota)
        await self.counted(namespace, 2)

    async def made(self, path: str, body: Json) -> Json:
        """What an object is, once made."""
        answer = await self.ask("POST", path, body)
        assert answer.status == 201, answer
        return answer.body

    async def counted(self, namespace: str, quotas: int) -> list[Json]:
        """The quotas of a namespace, once the quota controller has counted so many."""
        async with asyncio.timeout(WITHIN):
            while True:
                items: list[Json] = (await self.ask("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")).body[
                    "items"
                ]
                if len(items) >= quotas and all(item["status"].get("hard") == item["spec"]["hard"] for item in items):
                    return items
                await asyncio.sleep(0.05)

    async def all_seen(self) -> None:
        """Wait until the API server goes by every LimitRange and every quota made so far."""
        mark = str(next(self._rounds))
        given = {"spec": {"limits": [{"type": "Container", "default": {SEEN: mark}, "defaultRequest": {SEEN: mark}}]}}
        status = {"status": {"hard": {f"requests.{SEEN}": mark}, "used": {f"requests.{SEEN}": "1000"}}}
        for path, change in (("limitranges/mark", given), ("resourcequotas/mark/status", status)):
            answer = await self.ask("PATCH", f"/api/v1/namespaces/{self._seen}/{path}", change)
            assert answer.status == 200, answer
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}}
        wanted = f"requested: requests.{SEEN}={mark}, used: requests.{SEEN}=1k, limited: requests.{SEEN}={mark}"
        async with asyncio.timeout(WITHIN):
            while not (await self.pods(self._seen, [probe]))[0].body.get("message", "").endswith(wanted):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def dry_runs(url: str, ca: Path, token: str) -> AsyncIterator[DryRuns]:
    """Inside, requests can be sent."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=ssl.create_default_context(cafile=str(ca)))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield DryRuns(session, url)
