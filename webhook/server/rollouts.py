"""Halts rollouts whose pods fail more often than others; only the leader does so.

The halt is stored in the status of the policy, which every replica watches, so it survives restarts and shows its
reason. A change of the policy's spec resumes the rollout. A policy in a file has no status: its share is enforced
without monitoring.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from webhook.cache.pod_outcomes import OutcomeStore
from webhook.cache.policy_objects import HALTED, find_condition, is_rollout_halted
from webhook.errors import ApiError
from webhook.kube.reflector import WatchStatus
from webhook.policy.policy_set import Policy
from webhook.policy.rollout import RolloutHalt, find_halt
from webhook.server.admission_state import AdmissionState, Clock
from webhook.server.event_writer import EventApi, build_event
from webhook.server.policy_sources import FILE_WINS
from webhook.server.policy_status import CONFLICT, GONE, PolicyObjectSource, StatusApi, status_path
from webhook.telemetry.telemetry import Telemetry
from webhook.well_known import API_VERSION

EVALUATE_SECONDS = 5.0
MAX_STATUS_MESSAGE = 1024


class RolloutApi(StatusApi, EventApi, Protocol):
    """The methods of `webhook.kube.api.KubeClient` that are used."""


class PodReflector(Protocol):
    """A reflector that writes pod outcomes; a new one each time this replica becomes the leader."""

    @property
    def status(self) -> WatchStatus:
        """Its status."""

    async def run(self) -> None:
        """Run until cancelled."""


@dataclass(slots=True)
class RolloutController:
    """Evaluates and halts rollouts.

    Attributes:
        make_reflector: Creates a reflector that writes to the given store.
        is_leader: Returns whether this replica is the leader now.
    """

    api: RolloutApi
    objects: PolicyObjectSource
    state: AdmissionState
    make_reflector: Callable[[OutcomeStore], PodReflector]
    is_leader: Callable[[], bool]
    telemetry: Telemetry
    clock: Clock
    _error: str = field(init=False, default="")

    async def run(self) -> None:
        """Evaluate until cancelled."""
        while True:
            await asyncio.sleep(EVALUATE_SECONDS)
            if self.is_leader() and self._active_rollouts():
                await self._watch_while_leader()

    async def _watch_while_leader(self) -> None:
        outcomes = OutcomeStore(self.clock)
        reflector = self.make_reflector(outcomes)
        task = asyncio.create_task(reflector.run())
        try:
            while self.is_leader() and self._active_rollouts() and not task.done():
                if reflector.status.synced:
                    await self.evaluate_rollouts(outcomes)
                await asyncio.sleep(EVALUATE_SECONDS)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def evaluate_rollouts(self, outcomes: OutcomeStore) -> None:
        """Compare the pods of every active rollout with the others."""
        last_error = ""
        for policy, data in self._active_rollouts():
            try:
                await self._evaluate_rollout(policy, data, outcomes)
            except ApiError as error:
                last_error = last_error if error.status in (CONFLICT, GONE) else str(error)
        if last_error and last_error != self._error:
            self.telemetry.record_status_error(last_error)
        self._error = last_error

    async def _evaluate_rollout(self, policy: Policy, data: Mapping[str, Any], outcomes: OutcomeStore) -> None:
        now, rollout = self.clock(), policy.rollout
        assert rollout is not None
        since = rollout_started_at(data)
        if since is None:
            await self._write_condition(data, None, now)
            return
        pods = list(outcomes.all())
        halt = await asyncio.to_thread(find_halt, policy.name, rollout, pods, since.timestamp(), now.timestamp())
        if halt is not None:
            await self._write_condition(data, halt, now)
            self.telemetry.record_rollout_halted(policy.name, halt.reason, halt.message)
            await self._create_event(data, halt, now)

    def _active_rollouts(self) -> list[tuple[Policy, Mapping[str, Any]]]:
        """Return active rollouts with halt thresholds that are not halted, with their objects."""
        objects, unused = self.objects.objects(), self.state.policy_load.unused
        policies = [each for each in self.state.policies.policies if each.rollout and each.rollout.halt_thresholds]
        return [
            (policy, objects[source])
            for policy, source in [(policy, f"GPUPolicy/{policy.name}") for policy in policies]
            if source in objects and unused.get(source) != FILE_WINS and not is_rollout_halted(objects[source])
        ]

    async def _write_condition(self, data: Mapping[str, Any], halt: RolloutHalt | None, now: datetime) -> None:
        """Write to the status that monitoring starts, or that the rollout is halted; other conditions are kept."""
        conditions = (data.get("status") or {}).get("conditions") or []
        others = [one for one in conditions if one.get("type") != HALTED]
        metadata = data["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": [*others, halted_condition(halt, int(metadata.get("generation", 0)), now)]},
        }
        await self.api.patch(status_path(f"GPUPolicy/{metadata['name']}"), body, "merge")

    async def _create_event(self, data: Mapping[str, Any], halt: RolloutHalt, now: datetime) -> None:
        """Create an Event on the policy; a failure is only counted, because the condition has the same message."""
        name, uid = data["metadata"]["name"], data["metadata"].get("uid", "")
        metadata = {"namespace": "default", "generateName": f"{name[:200]}."}  # as for any cluster-scoped object
        involved = {"apiVersion": API_VERSION, "kind": "GPUPolicy", "name": name, "uid": uid}
        event = build_event(metadata, involved, HALTED, f"{halt.reason}: {halt.message}", now)
        try:
            await self.api.create("/api/v1/namespaces/default/events", event)
        except ApiError:
            self.telemetry.count_event("error")
        else:
            self.telemetry.count_event("success")


def rollout_started_at(data: Mapping[str, Any]) -> datetime | None:
    """Return when monitoring of this spec started; None if it has not."""
    condition = find_condition(data, HALTED)
    return datetime.fromisoformat(condition["lastTransitionTime"]) if condition is not None else None


def halted_condition(halt: RolloutHalt | None, generation: int, now: datetime) -> dict[str, Any]:
    """Return the condition; `lastTransitionTime` is also the start of monitoring."""
    status, reason, message = (
        ("True", *halt) if halt else ("False", "Monitoring", "the pods of the rollout are monitored")
    )
    advice = "; the policy is in audit mode until its spec is changed" if halt else ""
    return {
        "type": HALTED,
        "status": status,
        "reason": reason,
        "message": f"{message}{advice}"[:MAX_STATUS_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }
