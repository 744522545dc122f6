"""Which replica leads: a Lease, taken and renewed as client-go does it.

Nobody compares clocks: a candidate waits until it has seen the Lease unchanged for as long as it says, by its own
monotonic clock; a leader counts from the moment it sent its last renewal that went through, and stops earlier than
anyone else may begin. A Lease is no fence: a leader that was frozen in the middle of a call may still finish it, so
what it writes must be conditional on what it has read.

`kubernetes.aio` has an election too. It measures with the wall clock, which steps, and ends at the first
connection that breaks.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from webhook.errors import ApiError
from webhook.kube.namespaced_name import NamespacedName

LEASE_SECONDS = 15
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""The three of client-go: a Lease outlives what a leader relies on by 5 s; five tries go into a renewal."""

RELEASE_SECONDS = 1
"""What a Lease is set to when its leader leaves: the next candidate need not wait for it."""


class LeaseApi(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Write an object, if it has not changed since it was read."""


class LeaseName(NamespacedName):
    """Where the Lease is."""

    __slots__ = ()
    API = "/apis/coordination.k8s.io/v1"
    RESOURCE = "leases"


class LeaderElector:
    """One replica's part in an election. `run` it as a task; ask `leads` before each write.

    Attributes:
        holder: Who holds the Lease, as last seen; empty: nobody.
        lease: The Lease that is the prize.
        trouble: Why the last try failed; None: it did not.
    """

    def __init__(
        self,
        api: LeaseApi,
        lease: LeaseName,
        identity: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take part.

        Args:
            api: The API server.
            lease: The Lease that is the prize.
            identity: This replica's name; no other may have it.
            monotonic: Seconds of a clock that never steps.
        """
        self.holder = ""
        self.lease = lease
        self.last_error: ApiError | None = None
        self._api = api
        self._identity = identity
        self._monotonic = monotonic
        self._leads_until = float("-inf")
        self._observed_version = ""
        self._observed_at = 0.0

    @property
    def is_leader(self) -> bool:
        """Is it sure that this replica leads now?"""
        return self._monotonic() < self._leads_until

    async def run(self) -> None:
        """Try for the Lease, and keep it, until cancelled."""
        while True:
            await self.try_acquire_or_renew()
            await asyncio.sleep(RETRY_SECONDS * random.uniform(1.0, 1.2))  # noqa: S311 - spreads tries, keeps no secret

    async def try_acquire_or_renew(self) -> None:
        """One try: renew our Lease, or take one that nobody renews. Never raises for what the API server says."""
        began = self._monotonic()
        try:
            if await self._write_lease(await self._read_lease(), began):
                self._leads_until = began + RENEW_SECONDS
                self.holder = self._identity
        except ApiError as error:
            self.last_error = None if error.status == 409 else error
        else:
            self.last_error = None

    async def release(self) -> None:
        """Stop leading, and let the next one begin at once."""
        held, self._leads_until = self.is_leader, float("-inf")
        if not held:
            return
        with suppress(ApiError):
            lease = await self._api.get(self.lease.path)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                spec |= {"holderIdentity": "", "leaseDurationSeconds": RELEASE_SECONDS}
                await self._api.replace(self.lease.path, lease | {"spec": spec})

    async def _read_lease(self) -> dict[str, Any] | None:
        try:
            lease = await self._api.get(self.lease.path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        self.holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        version = str(lease["metadata"].get("resourceVersion", ""))
        if version != self._observed_version:
            self._observed_version, self._observed_at = version, self._monotonic()
        return lease

    async def _write_lease(self, lease: dict[str, Any] | None, now: float) -> bool:
        """Write what is due; False where the Lease is another's."""
        if lease is None:
            metadata = {"namespace": self.lease.namespace, "name": self.lease.name}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            await self._api.create(
                self.lease.collection_path, body | {"spec": acquired_lease_spec({}, self._identity, datetime.now(UTC))}
            )
            return True
        spec = lease.get("spec") or {}
        if not can_acquire(spec, self._identity, now - self._observed_at):
            return False
        await self._api.replace(
            self.lease.path, lease | {"spec": acquired_lease_spec(spec, self._identity, datetime.now(UTC))}
        )
        return True


def can_acquire(spec: Mapping[str, Any], identity: str, unchanged: float) -> bool:
    """May a candidate write itself into a Lease that it has seen unchanged for so many seconds?"""
    holder = spec.get("holderIdentity")
    return not holder or holder == identity or unchanged >= (spec.get("leaseDurationSeconds") or LEASE_SECONDS)


def acquired_lease_spec(spec: Mapping[str, Any], identity: str, now: datetime) -> dict[str, Any]:
    """The spec of a Lease that a replica takes or renews. The times are for people: nobody counts by them."""
    moment = f"{now:%Y-%m-%dT%H:%M:%S.%f}Z"
    renewed = {"holderIdentity": identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": moment}
    if spec.get("holderIdentity") == identity:
        return {**spec, **renewed}
    transitions = int(spec.get("leaseTransitions") or 0) + bool(spec)
    return {**spec, **renewed, "acquireTime": moment, "leaseTransitions": transitions}
