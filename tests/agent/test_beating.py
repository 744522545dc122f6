"""The agent's Lease: written every two minutes, tied to its node, and less often while the API server is in trouble."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from webhook.agent.beating import BEAT_SECONDS, NAMESPACE, Heartbeat
from webhook.errors import ApiError

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gpu-1"


class Cluster:
    """An API server that knows one node, and takes what is applied."""

    def __init__(self) -> None:
        self.leases: list[Mapping[str, Any]] = []
        self.failing = False
        self.asked = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        return {"metadata": {"name": "gpu-1", "uid": "u-1"}}

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("a Lease is applied")

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = {}) -> dict[str, Any]:
        assert (path, kind) == (LEASE, "apply")
        self.asked += 1
        if self.failing:
            raise ApiError("PATCH", 503, "Unavailable", "later")
        self.leases.append(body)
        return dict(body)


class World:
    """A heartbeat, and the time that it goes by."""

    def __init__(self) -> None:
        self.cluster, self.now = Cluster(), 0.0
        moment = datetime(2026, 6, 1, tzinfo=UTC)
        self.heartbeat = Heartbeat(self.cluster, "gpu-1", lambda: self.now, lambda: moment, Random(1))

    async def beat(self, at: float) -> bool:
        self.now = at
        return await self.heartbeat.beat()


async def test_it_is_tied_to_its_node_and_says_when() -> None:
    world = World()
    assert await world.beat(0)
    (lease,) = world.cluster.leases
    assert lease["metadata"]["ownerReferences"][0] | {"uid": "u-1"} == lease["metadata"]["ownerReferences"][0]
    assert lease["spec"]["renewTime"] == "2026-06-01T00:00:00.000000Z"


async def test_an_hour_costs_some_thirty_writes() -> None:
    world = World()
    written = [await world.beat(second) for second in range(0, 3600, 10)]
    assert 28 <= sum(written) <= 34


async def test_an_api_server_in_trouble_is_asked_less_and_less() -> None:
    world = World()
    world.cluster.failing = True
    for second in range(0, 3600, 10):
        world.now = second
        try:
            await world.heartbeat.beat()
        except ApiError:
            continue
    assert world.cluster.asked < 20
    world.cluster.failing = False
    assert await world.beat(3600 + 4 * BEAT_SECONDS)


async def test_a_failure_is_told() -> None:
    world = World()
    world.cluster.failing = True
    with pytest.raises(ApiError, match="503"):
        await world.beat(0)
