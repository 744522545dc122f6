"""The agent's Lease: renewed every two minutes, owned by its Node, with backoff on errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from webhook.agent.gpunode_publisher import RENEW_SECONDS, AgentLease
from webhook.errors import ApiError
from webhook.well_known import AGENT_NAMESPACE

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases/gpu-1"


class Cluster:
    """An API server with one Node that stores applied Leases; `lease` is the uid of the current one."""

    def __init__(self) -> None:
        self.leases: list[Mapping[str, Any]] = []
        self.node: str | None = "u-1"
        self.lease, self.leases_created, self.node_reads = "", 0, 0
        self.failing = False
        self.requests = 0

    async def get(self, path: str) -> dict[str, Any]:
        self.requests += 1
        self.node_reads += 1
        if self.node is None:
            raise ApiError(f"GET {path}", 404, "NotFound", "")
        return {"metadata": {"name": "gpu-1", "uid": self.node}}

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise AssertionError("a Lease must be applied, not created")

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = {}) -> dict[str, Any]:
        assert (path, kind) == (LEASE, "apply")
        self.requests += 1
        if self.failing:
            raise ApiError("PATCH", 503, "Unavailable", "later")
        self.leases.append(body)
        if not self.lease:
            self.leases_created += 1
            self.lease = f"l-{self.leases_created}"
        return {**body, "metadata": {**body["metadata"], "uid": self.lease}}

    @property
    def owner(self) -> str:
        return str(self.leases[-1]["metadata"]["ownerReferences"][0]["uid"])


class LeaseTest:
    """A Lease, its API server and its clock."""

    def __init__(self) -> None:
        self.cluster, self.now = Cluster(), 0.0
        moment = datetime(2026, 6, 1, tzinfo=UTC)
        self.lease = AgentLease(self.cluster, "gpu-1", lambda: self.now, lambda: moment, Random(1))

    async def renew_at(self, at: float) -> bool:
        self.now = at
        return await self.lease.renew()


async def test_lease_has_its_owner_and_renewal_time() -> None:
    test = LeaseTest()
    assert await test.renew_at(0)
    (lease,) = test.cluster.leases
    assert lease["metadata"]["ownerReferences"][0] | {"uid": "u-1"} == lease["metadata"]["ownerReferences"][0]
    assert lease["spec"]["renewTime"] == "2026-06-01T00:00:00.000000Z"


async def test_lease_is_written_thirty_times_an_hour() -> None:
    test = LeaseTest()
    written = [await test.renew_at(second) for second in range(0, 3600, 10)]
    assert 28 <= sum(written) <= 34


async def test_failing_api_server_is_retried_with_backoff() -> None:
    test = LeaseTest()
    test.cluster.failing = True
    for second in range(0, 3600, 10):
        test.now = second
        try:
            await test.lease.renew()
        except ApiError:
            continue
    assert test.cluster.requests < 20
    test.cluster.failing = False
    assert await test.renew_at(3600 + 4 * RENEW_SECONDS)


async def test_reregistered_node_owns_the_lease_after_the_next_renewal() -> None:
    test = LeaseTest()
    await test.renew_at(0)
    test.cluster.node, test.cluster.lease = "u-2", ""  # the garbage collector deletes objects of the old Node
    await test.renew_at(RENEW_SECONDS)
    assert test.cluster.owner == "u-2"


async def test_owner_is_read_until_the_node_exists() -> None:
    test = LeaseTest()
    await test.renew_at(0)
    test.cluster.node, test.cluster.lease = None, ""
    with pytest.raises(ApiError, match="404"):
        await test.renew_at(RENEW_SECONDS)
    test.cluster.node = "u-2"
    await test.renew_at(2 * RENEW_SECONDS)
    assert test.cluster.owner == "u-2"


async def test_node_is_read_only_if_the_lease_was_missing() -> None:
    test = LeaseTest()
    for second in range(0, 3600, 10):
        await test.renew_at(second)
    assert test.cluster.node_reads == 1
    test.cluster.lease = ""  # deleted
    for second in range(3600, 7200, 10):
        await test.renew_at(second)
    assert test.cluster.node_reads == 2


async def test_failure_is_raised() -> None:
    test = LeaseTest()
    test.cluster.failing = True
    with pytest.raises(ApiError, match="503"):
        await test.renew_at(0)
