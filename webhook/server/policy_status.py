"""Writes the `status` of policy objects.

The leader writes the condition `Ready`. Every replica counts matches and denials, and adds its own counts at most once
a minute. A write that conflicts is repeated next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from webhook.errors import ApiError
from webhook.server.admission_state import AdmissionState, Clock
from webhook.server.policy_sources import UnusedReason
from webhook.telemetry.telemetry import Telemetry
from webhook.well_known import GROUP_PATH

RESOURCES = {"GPUPolicy": "gpupolicies", "GPUPolicyException": "gpupolicyexceptions"}
SYNC_SECONDS = 2.0
COUNT_SECONDS = 60.0
MAX_CONDITION_MESSAGE = 2000
CONFLICT, GONE = 409, 404
"""The object was changed meanwhile; the next write uses the change."""


class PolicyCounts(NamedTuple):
    """Reviews that a policy matched, and that it denied."""

    matched: int = 0
    denied: int = 0


class StatusApi(Protocol):
    """The method of `webhook.kube.api.KubeClient` that is used."""

    async def patch(self, path: str, body: Any, kind: Any) -> dict[str, Any]:
        """Patch an object."""


class PolicyObjectSource(Protocol):
    """The policies and exceptions of the cluster."""

    def objects(self) -> Mapping[str, Mapping[str, Any]]:
        """Return objects by source name, for example `GPUPolicy/NAME`."""


def ready_status(data: Mapping[str, Any], unused: UnusedReason | None, now: datetime) -> dict[str, Any] | None:
    """Return the status with the condition `Ready`; None if it is already written."""
    status, generation = data.get("status") or {}, _generation_of(data)
    inactive = unused or expiry_reason(data, now)
    reason, message = inactive or ("Active", "the current spec is active")
    message = message[:MAX_CONDITION_MESSAGE]
    condition = {"type": "Ready", "status": str(inactive is None), "reason": reason, "message": message}
    conditions = status.get("conditions") or []
    before: dict[str, Any] = next((each for each in conditions if each.get("type") == "Ready"), {})
    if status.get("observedGeneration") == generation and condition.items() <= before.items():
        return None
    unchanged = before.get("status") == condition["status"]
    since = before["lastTransitionTime"] if unchanged else f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ready = {**condition, "observedGeneration": generation, "lastTransitionTime": since}
    counts = {} if status.get("observedGeneration") == generation else PolicyCounts()._asdict()
    others = [each for each in conditions if each.get("type") != "Ready"]
    return {"observedGeneration": generation, "conditions": [*others, ready], **counts}


def expiry_reason(data: Mapping[str, Any], now: datetime) -> UnusedReason | None:
    """Return why an exception has no effect any more; None if it has not expired, or is not an exception."""
    expiration = (data.get("spec") or {}).get("expirationTime")
    if not isinstance(expiration, str) or now < datetime.fromisoformat(expiration.upper()):
        return None
    message = f"expired on {expiration} and has no effect. Delete it, or set a later expirationTime"
    return UnusedReason("Expired", message)


def status_with_counts(data: Mapping[str, Any], increase: PolicyCounts) -> dict[str, Any] | None:
    """Return the status with a replica's counts added; None if there are none, or the spec is not observed yet."""
    status = data.get("status") or {}
    if not any(increase) or status.get("observedGeneration") != _generation_of(data):
        return None
    return {name: int(status.get(name) or 0) + amount for name, amount in increase._asdict().items()}


@dataclass(slots=True)
class PolicyStatusWriter:
    """Writes the status of every policy and exception that is an object.

    Attributes:
        is_leader: Returns whether this replica is the leader now.
    """

    api: StatusApi
    objects: PolicyObjectSource
    state: AdmissionState
    is_leader: Callable[[], bool]
    telemetry: Telemetry
    clock: Clock
    _reported: dict[str, tuple[int, PolicyCounts]] = field(init=False, default_factory=dict)
    _error: str = field(init=False, default="")

    async def run(self) -> None:
        """Write until cancelled."""
        syncs = 0
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            syncs += 1
            try:
                await self.sync(with_counts=syncs % round(COUNT_SECONDS / SYNC_SECONDS) == 0)
            except Exception as error:
                self.telemetry.record_internal_error("policy_status", error)

    async def sync(self, *, with_counts: bool) -> None:
        """Write every status that is out of date."""
        unused, last_error = self.state.policy_load.unused, ""
        objects = self.objects.objects()
        self._reported = {source: reported for source, reported in self._reported.items() if source in objects}
        for source, data in objects.items():
            counts, increase = self._unreported_counts(source, data)
            status = ready_status(data, unused.get(source), self.clock()) if self.is_leader() else None
            adds_counts = with_counts and status is None and source not in unused
            counted = status_with_counts(data, increase) if adds_counts else None
            try:
                if to_write := status or counted:
                    body = {"metadata": {"resourceVersion": data["metadata"]["resourceVersion"]}, "status": to_write}
                    await self.api.patch(status_path(source), body, "merge")
            except ApiError as error:
                last_error = last_error if error.status in (CONFLICT, GONE) else str(error)
            else:
                if counted:
                    self._reported[source] = (_generation_of(data), counts)
        if last_error and last_error != self._error:
            self.telemetry.record_status_error(last_error)
        self._error = last_error

    def _unreported_counts(self, source: str, data: Mapping[str, Any]) -> tuple[PolicyCounts, PolicyCounts]:
        """Return this replica's counts, and the part that is not in the status; a new spec starts at zero."""
        kind, _, name = source.partition("/")
        metrics, generation = self.telemetry.metrics, _generation_of(data)
        is_policy = kind == "GPUPolicy"
        counts = PolicyCounts(metrics.matches[name], metrics.denials[name]) if is_policy else PolicyCounts()
        reported_generation, reported = self._reported.setdefault(source, (generation, counts))
        if reported_generation != generation:
            reported = counts
            self._reported[source] = (generation, counts)
        return counts, PolicyCounts(counts.matched - reported.matched, counts.denied - reported.denied)


def status_path(source: str) -> str:
    """Return the path of the status of `GPUPolicy/NAME` or `GPUPolicyException/NAMESPACE/NAME`."""
    kind, *names = source.split("/")
    namespace = f"/namespaces/{names[0]}" if len(names) == 2 else ""
    return f"{GROUP_PATH}{namespace}/{RESOURCES[kind]}/{names[-1]}/status"


def _generation_of(data: Mapping[str, Any]) -> int:
    return int(data["metadata"].get("generation", 0))
