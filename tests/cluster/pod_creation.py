"""Concurrent pod creation over persistent connections, with the answer and latency of each create."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import aiohttp

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import PATIENCE_SECONDS

CLIENTS = 16


class CreateResult(NamedTuple):
    """The result of one create.

    Attributes:
        name: Name of the pod.
        status: HTTP status; 0: no answer.
        message: The reason if it was not created.
        seconds: From its scheduled time until the answer.
    """

    name: str
    status: int
    message: str
    seconds: float

    @property
    def created(self) -> bool:
        """Return whether the pod was created."""
        return self.status == 201


def create_pods(
    plane: Plane,
    pods: Iterable[Json],
    *,
    rate: float | None = None,
    clients: int = CLIENTS,
    patience: float = PATIENCE_SECONDS,
    on_answer: Callable[[int], None] = lambda _count: None,
    retries: int = 0,
) -> list[CreateResult]:
    """Create pods with concurrent clients.

    Args:
        plane: The control plane.
        pods: Pods with names, in existing namespaces.
        rate: Pods per second, each at its scheduled time; None: as fast as possible.
        clients: Number of concurrent clients, each with its own connection.
        patience: Seconds that a client waits for an answer.
        on_answer: Called after each answer with the number of answers so far.
        retries: How often a client repeats a create that is answered 429, after the Retry-After. client-go: 10.

    Returns:
        The results in the order of the answers.
    """
    return asyncio.run(_create_pods(plane, pods, rate, clients, patience, on_answer, retries))


async def _create_pods(
    plane: Plane,
    pods: Iterable[Json],
    rate: float | None,
    clients: int,
    patience: float,
    on_answer: Callable[[int], None],
    retries: int,
) -> list[CreateResult]:
    answers: list[CreateResult] = []
    scheduled = _schedule(pods, rate)
    context = ssl.create_default_context(cafile=str(plane.ca))
    connector = aiohttp.TCPConnector(ssl=context, limit=clients)
    headers = {"Authorization": f"Bearer {plane.token}", "Content-Type": "application/json"}

    async def client() -> None:
        for due, pod in scheduled:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            answers.append(await _create(session, plane.url, pod, due or time.perf_counter(), retries))
            on_answer(len(answers))

    timeout = aiohttp.ClientTimeout(patience)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        await asyncio.gather(*(client() for _ in range(clients)))
    return answers


def _schedule(pods: Iterable[Json], rate: float | None) -> Iterator[tuple[float, Json]]:
    """Yield each pod with its scheduled time; 0: at once."""
    start = time.perf_counter()
    for index, pod in enumerate(pods):
        yield (start + index / rate if rate else 0.0), pod


async def _create(session: aiohttp.ClientSession, url: str, pod: Json, due: float, retries: int) -> CreateResult:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    path = f"{url}/api/v1/namespaces/{namespace}/pods"
    try:
        async with session.post(path, data=json.dumps(pod)) as response:
            body = await response.read()
            if response.status == 429 and retries:
                await asyncio.sleep(float(response.headers["Retry-After"]))
                return await _create(session, url, pod, due, retries - 1)
            message = "" if response.status == 201 else str(json.loads(body).get("message", ""))
            return CreateResult(name, response.status, message, time.perf_counter() - due)
    except (aiohttp.ClientError, TimeoutError) as error:
        return CreateResult(name, 0, repr(error), time.perf_counter() - due)
