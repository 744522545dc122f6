"""Leader election with a Lease, like client-go's.

Clocks are not compared. A candidate acquires a Lease after it was unchanged for its duration, by the candidate's
own monotonic clock. A leader counts from the moment when it sent its last successful renewal, and stops before another
can start. A Lease is not a fence: a leader that was paused in the middle of a call may still finish it, so its
writes must be conditional on the `resourceVersion` that it read.

`kubernetes.aio` has leader election too, but it uses the wall clock, which can jump, and ends at the first failed
connection.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

from webhook.errors import ApiError
from webhook.kube.api import find_object


@dataclass(frozen=True, slots=True)
class NamespacedName:
    """Namespace and name of an object; a subclass per resource type.

    Attributes:
        API: The path of group and version.
        RESOURCE: The plural name of the resource type.
    """

    API: ClassVar[str]
    RESOURCE: ClassVar[str]

    namespace: str
    name: str

    @property
    def collection_path(self) -> str:
        """The path of the collection."""
        return f"{self.API}/namespaces/{self.namespace}/{self.RESOURCE}"

    @property
    def path(self) -> str:
        """The path of the object."""
        return f"{self.collection_path}/{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


LEASE_SECONDS = 15
RENEW_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""The defaults of client-go. The Lease lasts 5 s longer than its leader relies on it; a renewal has five attempts."""

RELEASE_SECONDS = 1
"""The duration of a released Lease: the next candidate need not wait."""


class LeaseApi(Protocol):
    """The methods of `webhook.kube.api.KubeClient` that are used."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""

    async def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace an object if its `resourceVersion` matches."""


class LeaseName(NamespacedName):
    """Namespace and name of a Lease."""

    __slots__ = ()
    API = "/apis/coordination.k8s.io/v1"
    RESOURCE = "leases"


class LeaderElector:
    """One candidate of an election. Run `run` as a task, and check `is_leader` before each write.

    Attributes:
        holder: The identity that held the Lease when it was last read; "" for none.
        last_error: Why the last attempt failed; None if it succeeded.
    """

    def __init__(
        self,
        api: LeaseApi,
        lease: LeaseName,
        identity: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a candidate with a unique name; `monotonic` is a clock in seconds that never jumps."""
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
        """True if this replica certainly leads now."""
        return self._monotonic() < self._leads_until

    async def run(self) -> None:
        """Acquire and renew the Lease until cancelled."""
        while True:
            await self.try_acquire_or_renew()
            await asyncio.sleep(RETRY_SECONDS * random.uniform(1.0, 1.2))  # noqa: S311 - jitter, not a secret

    async def try_acquire_or_renew(self) -> None:
        """Renew our Lease, or acquire one that is not renewed. Stores an `ApiError` in `last_error`."""
        started = self._monotonic()
        try:
            if await self._write_lease(await self._read_lease(), started):
                self._leads_until = started + RENEW_SECONDS
                self.holder = self._identity
        except ApiError as error:
            self.last_error = None if error.status == 409 else error
        else:
            self.last_error = None

    async def release(self) -> None:
        """Stop leading, and let the next candidate start at once."""
        was_leader, self._leads_until = self.is_leader, float("-inf")
        if not was_leader:
            return
        with suppress(ApiError):
            lease = await self._api.get(self.lease.path)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                spec |= {"holderIdentity": "", "leaseDurationSeconds": RELEASE_SECONDS}
                await self._api.replace(self.lease.path, lease | {"spec": spec})

    async def _read_lease(self) -> dict[str, Any] | None:
        lease = await find_object(self._api, self.lease.path)
        if lease is None:
            return None
        self.holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
        version = str(lease["metadata"].get("resourceVersion", ""))
        if version != self._observed_version:
            self._observed_version, self._observed_at = version, self._monotonic()
        return lease

    async def _write_lease(self, lease: dict[str, Any] | None, now: float) -> bool:
        spec = (lease or {}).get("spec") or {}
        acquired = {"spec": acquired_lease_spec(spec, self._identity, datetime.now(UTC))}
        if lease is None:
            metadata = {"namespace": self.lease.namespace, "name": self.lease.name}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
            await self._api.create(self.lease.collection_path, body | acquired)
            return True
        holder, unchanged = spec.get("holderIdentity"), now - self._observed_at
        if holder not in (None, "", self._identity) and unchanged < (spec.get("leaseDurationSeconds") or LEASE_SECONDS):
            return False
        await self._api.replace(self.lease.path, lease | acquired)
        return True


def acquired_lease_spec(spec: Mapping[str, Any], identity: str, now: datetime) -> dict[str, Any]:
    """Return the spec of an acquired or renewed Lease. Its times are informative; no candidate uses them."""
    timestamp = f"{now:%Y-%m-%dT%H:%M:%S.%f}Z"
    renewed = {"holderIdentity": identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": timestamp}
    if spec.get("holderIdentity") == identity:
        return {**spec, **renewed}
    transitions = int(spec.get("leaseTransitions") or 0) + bool(spec)
    return {**spec, **renewed, "acquireTime": timestamp, "leaseTransitions": transitions}
