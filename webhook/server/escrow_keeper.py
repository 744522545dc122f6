"""Divide shared quotas with the other replicas, in the background: one annotation of a Lease has the escrows of all.

Clocks are not compared. A replica relies on its escrows for `VALID_SECONDS` after it sent its last successful write.
The others take an entry back after it was unchanged for so long by their own clocks, plus the longest time until a pod
that was just admitted is stored and observed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from webhook.cache.informers import UNSEEN_POD_SECONDS
from webhook.cache.store import ObjectStore
from webhook.cache.stored_objects import parse_resource_version
from webhook.errors import ApiError
from webhook.kube.leader_election import LeaseApi, LeaseName
from webhook.model.quota_escrow import EscrowEntry, EscrowPlan, plan_escrows
from webhook.server.admission_state import AdmissionState
from webhook.web.health import HealthCheck

ESCROWS_ANNOTATION = "rightslice.dev/quota-escrows"
QUOTA_LEASE = "rightslice-quotas"

VALID_SECONDS = 10.0
RENEW_SECONDS = 3.0
CALL_SECONDS = 3.0
TAKE_BACK_SECONDS = VALID_SECONDS + UNSEEN_POD_SECONDS

TICK_SECONDS = 0.25
PAUSE_SECONDS = 0.05
"""Least pause between two writes, for each replica."""

ERROR_PAUSE_SECONDS = 1.0

FORBIDDEN_SECONDS = 60.0
"""Time after which a forbidden Lease does not prevent admissions. An API server that starts forbids everything."""

FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
MAX_CONFLICTS = 5

_decode_record = msgspec.json.Decoder(dict[str, EscrowEntry]).decode
_encode_record = msgspec.json.Encoder().encode

Lease = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class EscrowKeeper:
    """Keeps the escrows of one replica.

    Attributes:
        replica: Unique name of this process.
        pods_contact: Returns when the API server last confirmed the pods, seconds of the monotonic clock.
        error: Why the last attempt failed; "" if it succeeded.
    """

    api: LeaseApi
    name: LeaseName
    replica: str
    state: AdmissionState
    pods_contact: Callable[[], float]
    monotonic: Callable[[], float] = time.monotonic
    error: str = ""
    _lease: Lease | None = field(init=False, default=None)
    _record: dict[str, EscrowEntry] = field(init=False, default_factory=dict)
    _changed_at: dict[str, tuple[int, float]] = field(init=False, default_factory=dict)
    _renewed_at: float = field(init=False, default=float("-inf"))
    _forbidden_at: float = field(init=False, default=float("inf"))
    _wake: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        """Bind the reviews to the escrows."""
        self.state.escrows.shared = True
        self.state.escrows.on_wanted = self._wake.set

    @property
    def selector(self) -> str:
        """The field selector of the Lease."""
        return f"metadata.name={self.name.name}"

    def store(self) -> ObjectStore[dict[str, Any]]:
        """Return the store of a reflector for the Lease."""
        return ObjectStore(lambda lease: str(lease["metadata"]["name"]), self._on_change)

    async def run(self) -> None:
        """Keep the escrows until cancelled."""
        while True:
            self._wake.clear()
            await self.step()
            if self.error:
                await asyncio.sleep(ERROR_PAUSE_SECONDS)
            await asyncio.sleep(PAUSE_SECONDS * random.uniform(1.0, 1.0 + len(self._record)))  # noqa: S311 - jitter
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TICK_SECONDS)

    async def step(self) -> None:
        """Write our entry if it must change, or be renewed. Errors are kept in `error`."""
        self.state.escrows.apply_policies(self.state.policies)
        if not self.state.ready or self.state.view.is_stale or not (self.state.escrows.quotas or self._has_escrows()):
            return
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._write_if_needed()
        except (ApiError, TimeoutError) as error:
            self._lease = None  # so that it is read again
            self.error = str(error) or f"no answer within {CALL_SECONDS:.0f} s"
            self._note_failure(forbidden=isinstance(error, ApiError) and error.status == FORBIDDEN)
        else:
            self.error, self._forbidden_at, self.state.escrows.shared = "", float("inf"), True

    def _note_failure(self, *, forbidden: bool) -> None:
        """Compare quotas with this replica's own view if the Lease stays forbidden, as before there were escrows."""
        now = self.monotonic()
        self._forbidden_at = min(self._forbidden_at, now) if forbidden else float("inf")
        if now - self._forbidden_at >= FORBIDDEN_SECONDS:
            self.state.escrows.shared = False
            self.error = f"not divided among the replicas, which together may exceed them: {self.error}"

    async def release(self) -> None:
        """Give our escrows back, apart from pods in flight."""
        self.state.escrows.clear()
        self.state.escrows.valid_until = 0.0
        if not self._has_escrows():
            return
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                for _ in range(MAX_CONFLICTS):
                    await self._read()
                    if await self._store(self._plan_release().entry):
                        return

    def checks(self) -> list[HealthCheck]:
        """Return the lines of `/readyz?verbose`."""
        escrows = self.state.escrows
        if not escrows.quotas:
            return []
        age = self.monotonic() - self._renewed_at
        return [HealthCheck("shared quotas", not self.error, self.error or f"agreed {age:.0f} s ago", required=False)]

    def _has_escrows(self) -> bool:
        own = self._record.get(self.replica)
        return own is not None and not own.released

    async def _write_if_needed(self) -> None:
        for _ in range(MAX_CONFLICTS):
            if self._lease is None:
                await self._read()
            if self._lease is None:
                return await self._create()  # the others lose what they hold before anybody raises an escrow
            if not self._may_plan() or await self._write_once():
                return None
        return None

    def _may_plan(self) -> bool:
        """Return False while the view is rebuilt and the age of its pods is unknown."""
        own = self._record.get(self.replica)
        return own is None or self.state.view.pod_versions.complete >= own.pods_version

    async def _write_once(self) -> bool:
        """Plan, and store the plan if something changes; return False after a conflict."""
        now, escrows = self.monotonic(), self.state.escrows
        own = self._record.get(self.replica)
        if own is None:
            escrows.clear()
        balances = escrows.balances(self.state.view, now)
        plan = plan_escrows(self.replica, self._record_of_living(), balances, self.state.view.pod_versions)
        plan = plan if escrows.quotas else self._plan_release()
        if own is not None and own.has_same_amounts(plan.entry) and now < self._renewed_at + RENEW_SECONDS:
            return True
        escrows.lower(plan.unspent)
        if not await self._store(plan.entry):
            return False
        self._renewed_at = now
        escrows.valid_until = max(escrows.valid_until, now + VALID_SECONDS)
        escrows.raise_by(balances, plan.unspent, now)
        return True

    def _plan_release(self) -> EscrowPlan:
        view, own = self.state.view, self._record.get(self.replica, EscrowEntry())
        in_flight = {name: view.pool_in_flight(quota.pool) for name, quota in self.state.escrows.quotas.items()}
        escrows = {name: milli for name, milli in in_flight.items() if milli}
        version = max(own.pods_version, view.pod_versions.changed)
        return EscrowPlan(EscrowEntry(own.renewals + 1, version, escrows, released=True), {})

    def _record_of_living(self) -> dict[str, EscrowEntry]:
        """Return the record without entries of replicas whose last pod has been observed, or was not created."""
        end = self.pods_contact() - TAKE_BACK_SECONDS
        living = {name for name, (_, changed_at) in self._changed_at.items() if changed_at > end}
        return {name: entry for name, entry in self._record.items() if name == self.replica or name in living}

    async def _read(self) -> None:
        try:
            self._set_lease(await self.api.get(self.name.path))
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            self._set_lease(None)

    async def _create(self) -> None:
        metadata = {"namespace": self.name.namespace, "name": self.name.name}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
        try:
            self._set_lease(await self.api.create(self.name.collection_path, body))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            await self._read()

    async def _store(self, entry: EscrowEntry) -> bool:
        """Store our entry if nobody has changed the record since; return whether it was stored."""
        lease, record = self._lease, self._record_of_living() | {self.replica: entry}
        if lease is None:
            return False
        metadata = lease["metadata"]
        annotations = {**(metadata.get("annotations") or {}), ESCROWS_ANNOTATION: _encode_record(record).decode()}
        try:
            stored = await self.api.replace(
                self.name.path, {**lease, "metadata": {**metadata, "annotations": annotations}}
            )
        except ApiError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise
            await asyncio.sleep(random.uniform(0, 0.02))  # noqa: S311 - jitter
            await self._read()
            return False
        self._set_lease(stored)
        return True

    def _on_change(self, _key: str, _before: object, after: dict[str, Any] | None) -> None:
        if after is None or _lease_version(after) > _lease_version(self._lease):
            self._set_lease(after)
            self._wake.set()

    def _set_lease(self, lease: Lease | None) -> None:
        now = self.monotonic()
        self._lease, self._record = lease, _read_record(lease)
        before = self._changed_at
        self._changed_at = {
            name: before[name] if before.get(name, (-1, 0.0))[0] == entry.renewals else (entry.renewals, now)
            for name, entry in self._record.items()
        }


def _read_record(lease: Lease | None) -> dict[str, EscrowEntry]:
    """Return the entries; none if the annotation is missing or was changed by somebody else to what is no record."""
    annotations = ((lease or {}).get("metadata") or {}).get("annotations") or {}
    try:
        return _decode_record(annotations.get(ESCROWS_ANNOTATION, "{}"))
    except (msgspec.MsgspecError, TypeError):
        return {}


def _lease_version(lease: Lease | None) -> int:
    return parse_resource_version(lease["metadata"].get("resourceVersion")) if lease is not None else 0
