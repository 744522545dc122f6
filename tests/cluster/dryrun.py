"""Server-side dry runs of pods over many connections; nothing is stored."""

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

from tests.cluster.polling import PATIENCE_SECONDS
from tests.cluster.random_objects import OVERHEAD, PRIORITIES, RUNTIME_CLASSES

Json = dict[str, Any]
MARKER_RESOURCE = "rightslice.test/marker"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
TIMEOUT_SECONDS = PATIENCE_SECONDS
CONNECTIONS = 24
NO_LABELS: Mapping[str, str] = {}


class ApiAnswer(NamedTuple):
    """HTTP status and body of a response."""

    status: int
    body: Json


class DryRunClient:
    """A client of one API server that can wait until its admission caches hold every LimitRange and quota.

    Each of its two caches is filled by one ordered watch. So once a later change affects a pod, every earlier change
    is cached too.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._rounds = count(1)
        self._marker_namespace = ""

    async def send(self, method: str, path: str, body: Json | None = None, **params: str) -> ApiAnswer:
        """Send one request."""
        deadline = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self._url + path, data=data, headers=headers, params=params, timeout=deadline
        ) as reply:
            return ApiAnswer(reply.status, await reply.json())

    async def dry_run_pods(self, namespace: str, pods: Iterable[Json]) -> list[ApiAnswer]:
        """Return the API server's dry-run answer for each pod."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        return await asyncio.gather(*(self.send("POST", path, pod, dryRun="All") for pod in pods))

    async def add_namespace(self, name: str, labels: Mapping[str, str] = NO_LABELS) -> None:
        """Create a namespace, and wait for its default service account."""
        body = {"metadata": {"name": name, "labels": dict(labels)}}
        created = await self.send("POST", "/api/v1/namespaces", body)
        assert created.status == 201, created
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.send("GET", account)).status != 200:
                await asyncio.sleep(0.05)

    async def create_marker_namespace(self, namespace: str) -> None:
        """Create the namespace of the cache markers, and the classes that pods use."""
        self._marker_namespace = namespace
        await self.add_namespace(namespace)
        for value, name in enumerate(PRIORITIES):
            body: Json = {"metadata": {"name": name}, "value": value}
            await self.send("POST", PRIORITY_CLASSES, body)
        for runtime in RUNTIME_CLASSES:
            body = {"metadata": {"name": runtime}, "handler": runtime}
            await self.send(
                "POST", RUNTIMES, body | ({"overhead": {"podFixed": OVERHEAD}} if runtime == "kata" else {})
            )
        for name, resource in (("first", "example.com/first"), ("mark", MARKER_RESOURCE)):
            spec: Json = {"limits": [{"type": "Container", "default": {resource: "0"}}]}
            await self.create(
                f"/api/v1/namespaces/{self._marker_namespace}/limitranges", {"metadata": {"name": name}, "spec": spec}
            )
            quota = {"metadata": {"name": name}, "spec": {"hard": {f"requests.{resource}": "0"}}}
            await self.create(f"/api/v1/namespaces/{self._marker_namespace}/resourcequotas", quota)
        await self.wait_for_quota_status(namespace, 2)

    async def create(self, path: str, body: Json) -> Json:
        """Create an object, and return it."""
        answer = await self.send("POST", path, body)
        assert answer.status == 201, answer
        return answer.body

    async def wait_for_quota_status(self, namespace: str, quotas: int) -> list[Json]:
        """Return the quotas of a namespace once the quota controller has counted this many."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while True:
                items: list[Json] = (await self.send("GET", f"/api/v1/namespaces/{namespace}/resourcequotas")).body[
                    "items"
                ]
                if len(items) >= quotas and all(item["status"].get("hard") == item["spec"]["hard"] for item in items):
                    return items
                await asyncio.sleep(0.05)

    async def set_default_priority_class(self, name: str, *, default: bool) -> None:
        """Make a PriorityClass the default or not, and wait until new pods get it."""
        answer = await self.send("PATCH", f"{PRIORITY_CLASSES}/{name}", {"globalDefault": default})
        assert answer.status == 200, answer
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}}
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (await self.dry_run_pods("default", [probe]))[0].body["spec"].get("priorityClassName") != (
                name if default else None
            ):
                await asyncio.sleep(0.05)

    async def list_classes(self) -> list[Json]:
        """Return the RuntimeClasses and PriorityClasses, with their kinds."""
        found: list[Json] = []
        for path in (RUNTIMES, PRIORITY_CLASSES):
            listed = (await self.send("GET", path)).body
            kind = {"apiVersion": listed["apiVersion"], "kind": listed["kind"].removesuffix("List")}
            found += [kind | item for item in listed["items"]]
        return found

    async def wait_for_admission_caches(self) -> None:
        """Wait until the API server enforces every LimitRange and quota created so far."""
        mark = str(next(self._rounds))
        defaults = {
            "spec": {
                "limits": [
                    {"type": "Container", "default": {MARKER_RESOURCE: mark}, "defaultRequest": {MARKER_RESOURCE: mark}}
                ]
            }
        }
        status = {
            "status": {"hard": {f"requests.{MARKER_RESOURCE}": mark}, "used": {f"requests.{MARKER_RESOURCE}": "1000"}}
        }
        for path, change in (("limitranges/mark", defaults), ("resourcequotas/mark/status", status)):
            answer = await self.send("PATCH", f"/api/v1/namespaces/{self._marker_namespace}/{path}", change)
            assert answer.status == 200, answer
        probe = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}}
        key = f"requests.{MARKER_RESOURCE}"
        expected_end = f"requested: {key}={mark}, used: {key}=1k, limited: {key}={mark}"
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (
                not (await self.dry_run_pods(self._marker_namespace, [probe]))[0]
                .body.get("message", "")
                .endswith(expected_end)
            ):
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_dry_run_client(url: str, ca: Path, token: str) -> AsyncIterator[DryRunClient]:
    """Open a client for the block."""
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=ssl.create_default_context(cafile=str(ca)))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield DryRunClient(session, url)
