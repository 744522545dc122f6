"""The agent's Lease: renewed every two minutes, owned by its Node, with backoff on errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from webhook.agent.gpunode_publisher import RENEW_SECONDS, AgentLease
from webhook.errors import ApiError
from webhook.well_known import SYSTEM_NAMESPACE

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/gpu-1"


class Cluster:
    """An API server that knows one node, and takes what is applied. `lease` is the uid of the one that is there."""

    def __init__(self) -> None:
        self.leases: list[Mapping[str, Any]] = []
        self.node: str | None = "u-1"
        self.lease, self.made, self.read = "", 0, 0
        self.failing = False
        self.asked = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.asked += 1
        self.read += 1
        if self.node is None:
            raise ApiError(f"GET {path}", 404, "NotFound", "")
        return {"metadata": {"name": "gpu-1", "uid": self.node}}

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("a Lease is applied")

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = {}) -> dict[str, Any]:
        assert (path, kind) == (LEASE, "apply")
        self.asked += 1
        if self.failing:
            raise ApiError("PATCH", 503, "Unavailable", "later")
        self.leases.append(body)
        if not self.lease:
            self.made += 1
            self.lease = f"l-{self.made}"
        return {**body, "metadata": {**body["metadata"], "uid": self.lease}}

    @property
    def owner(self) -> str:
        return str(self.leases[-1]["metadata"]["ownerReferences"][0]["uid"])


class World:
    """A Lease and its clock."""

    def __init__(self) -> None:
        self.cluster, self.now = Cluster(), 0.0
        moment = datetime(2026, 6, 1, tzinfo=UTC)
        self.heartbeat = AgentLease(self.cluster, "gpu-1", lambda: self.now, lambda: moment, Random(1))

    async def beat(self, at: float) -> bool:
        self.now = at
        return await self.heartbeat.renew()


async def test_lease_has_its_owner_and_renewal_time() -> None:
    world = World()
    assert await world.beat(0)
    (lease,) = world.cluster.leases
    assert lease["metadata"]["ownerReferences"][0] | {"uid": "u-1"} == lease["metadata"]["ownerReferences"][0]
    assert lease["spec"]["renewTime"] == "2026-06-01T00:00:00.000000Z"


async def test_lease_is_written_thirty_times_an_hour() -> None:
    world = World()
    written = [await world.beat(second) for second in range(0, 3600, 10)]
    assert 28 <= sum(written) <= 34


async def test_failing_api_server_is_retried_with_backoff() -> None:
    world = World()
    world.cluster.failing = True
    for second in range(0, 3600, 10):
        world.now = second
        try:
            await world.heartbeat.renew()
        except ApiError:
            continue
    assert world.cluster.asked < 20
    world.cluster.failing = False
    assert await world.beat(3600 + 4 * RENEW_SECONDS)


async def test_reregistered_node_owns_the_lease_after_the_next_renewal() -> None:
    world = World()
    await world.beat(0)
    world.cluster.node, world.cluster.lease = "u-2", ""  # the garbage collector deletes what the old Node owned
    await world.beat(RENEW_SECONDS)
    assert world.cluster.owner == "u-2"


async def test_owner_is_read_until_the_node_exists() -> None:
    world = World()
    await world.beat(0)
    world.cluster.node, world.cluster.lease = None, ""
    with pytest.raises(ApiError, match="404"):
        await world.beat(RENEW_SECONDS)
    world.cluster.node = "u-2"
    await world.beat(2 * RENEW_SECONDS)
    assert world.cluster.owner == "u-2"


async def test_node_is_read_only_if_the_lease_was_missing() -> None:
    world = World()
    for second in range(0, 3600, 10):
        await world.beat(second)
    assert world.cluster.read == 1
    world.cluster.lease = ""  # somebody deleted it
    for second in range(3600, 7200, 10):
        await world.beat(second)
    assert world.cluster.read == 2


async def test_failure_is_raised() -> None:
    world = World()
    world.cluster.failing = True
    with pytest.raises(ApiError, match="503"):
        await world.beat(0)
