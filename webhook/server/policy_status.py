"""What became of policies that are objects, written into their `status`.

The leader says whether each is in use. How often one matched and denied is counted by every replica, which adds its
own share once a minute at most; a write that somebody else was faster with is left for the next time.
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


class PolicyCounts(NamedTuple):
    """How many reviews a policy spoke about, and how many of them it denied."""

    matched: int = 0
    denied: int = 0

    def minus(self, before: PolicyCounts) -> PolicyCounts:
        """What came after an earlier one."""
        return PolicyCounts(self.matched - before.matched, self.denied - before.denied)


class StatusApi(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def patch(self, path: str, body: Any, kind: Any) -> dict[str, Any]:
        """Change an object."""


class PolicyObjectSource(Protocol):
    """Policies and exceptions of the cluster."""

    def objects(self) -> Mapping[str, Mapping[str, Any]]:
        """By kind and name, as `GPUPolicy/NAME`."""


def ready_status(data: Mapping[str, Any], unused: UnusedReason | None, now: datetime) -> dict[str, Any] | None:
    """The status that says whether an object is in use; None: it says so already."""
    status, generation = data.get("status") or {}, _generation_of(data)
    idle = unused or expiry_reason(data, now)
    reason, message = idle or ("InUse", "in use as it is written here")
    said = {"type": "Ready", "status": str(idle is None), "reason": reason, "message": message[:MAX_CONDITION_MESSAGE]}
    conditions = status.get("conditions") or []
    before: dict[str, Any] = next((each for each in conditions if each.get("type") == "Ready"), {})
    if status.get("observedGeneration") == generation and said.items() <= before.items():
        return None
    same = before.get("status") == said["status"]
    since = before["lastTransitionTime"] if same else f"{now:%Y-%m-%dT%H:%M:%SZ}"
    ready = {**said, "observedGeneration": generation, "lastTransitionTime": since}
    counts = {} if status.get("observedGeneration") == generation else PolicyCounts()._asdict()
    others = [each for each in conditions if each.get("type") != "Ready"]
    return {"observedGeneration": generation, "conditions": [*others, ready], **counts}


def expiry_reason(data: Mapping[str, Any], now: datetime) -> UnusedReason | None:
    """Why an exception does nothing any more; None: it is not over, or is no exception."""
    written = (data.get("spec") or {}).get("expirationTime")
    if not isinstance(written, str) or now < datetime.fromisoformat(written.upper()):
        return None
    return UnusedReason(
        "Expired", f"over since {written}: it takes nothing back. Delete it, or write a later expirationTime"
    )


def status_with_counts(data: Mapping[str, Any], more: PolicyCounts) -> dict[str, Any] | None:
    """The status with a replica's share added; None: there is nothing to add, or nobody has seen this spec yet."""
    status = data.get("status") or {}
    if not any(more) or status.get("observedGeneration") != _generation_of(data):
        return None
    return {name: int(status.get(name) or 0) + amount for name, amount in more._asdict().items()}


@dataclass(slots=True)
class PolicyStatusWriter:
    """Keeps the status of every policy and exception that is an object.

    Attributes:
        leads: Is this replica the leader now?
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
        """Look until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            looks += 1
            try:
                await self.sync(with_counts=looks % round(COUNT_SECONDS / SYNC_SECONDS) == 0)
            except Exception as error:
                self.telemetry.record_crash("policystatus", "", error)

    async def sync(self, *, with_counts: bool) -> None:
        """Write every status that is not as it should be."""
        unused, trouble = self.state.policy_load.unused, ""
        objects = self.objects.objects()
        self._reported = {source: told for source, told in self._reported.items() if source in objects}
        for source, data in objects.items():
            tally, more = self._unreported_counts(source, data)
            said = ready_status(data, unused.get(source), self.clock()) if self.is_leader() else None
            may_count = with_counts and said is None and source not in unused
            counted = status_with_counts(data, more) if may_count else None
            try:
                await self._write(source, data, said or counted)
            except ApiError as error:
                trouble = trouble if error.status in (CONFLICT, GONE) else str(error)
            else:
                if counted:
                    self._reported[source] = (_generation_of(data), tally)
        self._report_error(trouble)

    async def _write(self, source: str, data: Mapping[str, Any], status: Mapping[str, Any] | None) -> None:
        """Write a status, if there is one to write and nobody was faster."""
        if status is not None:
            body = {"metadata": {"resourceVersion": data["metadata"]["resourceVersion"]}, "status": status}
            await self.api.patch(status_path(source), body, "merge")

    def _unreported_counts(self, source: str, data: Mapping[str, Any]) -> tuple[PolicyCounts, PolicyCounts]:
        """What this replica has counted, and what of it nobody was told; a new spec is counted from nothing."""
        kind, _, name = source.partition("/")
        counts = self.telemetry.metrics
        tally = PolicyCounts(counts.matched[name], counts.denied[name]) if kind == "GPUPolicy" else PolicyCounts()
        generation, told = self._reported.setdefault(source, (_generation_of(data), tally))
        if generation != _generation_of(data):
            told = tally
            self._reported[source] = (_generation_of(data), tally)
        return tally, tally.minus(told)

    def _report_error(self, trouble: str) -> None:
        """Say what is wrong when it begins and changes, and no more often."""
        if trouble and trouble != self._error:
            self.telemetry.record_status_error(trouble)
        self._error = trouble


def status_path(source: str) -> str:
    """Where the status of `GPUPolicy/NAME` or `GPUPolicyException/NAMESPACE/NAME` is."""
    kind, *names = source.split("/")
    namespace = f"/namespaces/{names[0]}" if len(names) == 2 else ""
    return f"{GROUP_PATH}{namespace}/{RESOURCES[kind]}/{names[-1]}/status"


def _generation_of(data: Mapping[str, Any]) -> int:
    return int(data["metadata"].get("generation", 0))
