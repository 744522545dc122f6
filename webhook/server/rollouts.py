"""The leader watches what becomes of the pods of a rollout, and halts one that does worse than the rest.

A rollout is halted in the status of its policy, which every replica follows: a halt is never forgotten, and an
admin sees why. It goes on when somebody changes the policy's spec. A policy that stands in a file has no status: its
share is enforced, and nobody watches it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from webhook.cache.pod_outcomes import OutcomeStore
from webhook.errors import ApiError
from webhook.model.conditions import HALTED, find_condition, is_rollout_halted
from webhook.policy.policy_set import Policy
from webhook.policy.rollout import RolloutHalt, find_halt
from webhook.server.admission_state import AdmissionState, Clock
from webhook.server.policy_sources import FILE_WINS
from webhook.server.policy_status import status_path
from webhook.telemetry.telemetry import Telemetry
from webhook.well_known import API_VERSION

EVALUATE_SECONDS = 5.0
MAX_STATUS_MESSAGE = 1024
CONFLICT, GONE = 409, 404
"""Somebody else was faster; the next look sees what they wrote."""

COMPONENT = "rightslice"


class RolloutApi(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def patch(self, path: str, body: Any, kind: Any) -> dict[str, Any]:
        """Change an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make one."""


class RolloutObjects(Protocol):
    """Policies of the cluster."""

    def objects(self) -> Mapping[str, Mapping[str, Any]]:
        """By kind and name, as `GPUPolicy/NAME`."""


class SyncedStatus(Protocol):
    """How a watch is doing."""

    synced: bool


class PodReflector(Protocol):
    """A watch that fills outcomes; a new one for each time that this replica leads."""

    @property
    def status(self) -> SyncedStatus:
        """Was everything there once?"""

    async def run(self) -> None:
        """Go on until cancelled."""


@dataclass(slots=True)
class RolloutController:
    """Halts rollouts.

    Attributes:
        watch: Makes a watch that writes to the outcomes it is given.
        leads: Is this replica the leader now?
    """

    api: RolloutApi
    objects: RolloutObjects
    state: AdmissionState
    make_reflector: Callable[[OutcomeStore], PodReflector]
    is_leader: Callable[[], bool]
    telemetry: Telemetry
    clock: Clock
    _error: str = field(init=False, default="")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(EVALUATE_SECONDS)
            if self.is_leader() and self._active_rollouts():
                await self._watch_while_leader()

    async def _watch_while_leader(self) -> None:
        """Watch the pods for as long as this replica leads and there is a rollout to watch."""
        outcomes = OutcomeStore(self.clock)
        watch = self.make_reflector(outcomes)
        task = asyncio.create_task(watch.run())
        try:
            while self.is_leader() and self._active_rollouts() and not task.done():
                if watch.status.synced:
                    await self.evaluate_rollouts(outcomes)
                await asyncio.sleep(EVALUATE_SECONDS)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def evaluate_rollouts(self, outcomes: OutcomeStore) -> None:
        """Hold every rollout that is watched against the rest once."""
        trouble = ""
        for policy, data in self._active_rollouts():
            try:
                await self._evaluate_rollout(policy, data, outcomes)
            except ApiError as error:
                trouble = trouble if error.status in (CONFLICT, GONE) else str(error)
        if trouble and trouble != self._error:
            self.telemetry.record_status_error(trouble)
        self._error = trouble

    async def _evaluate_rollout(self, policy: Policy, data: Mapping[str, Any], outcomes: OutcomeStore) -> None:
        now, rollout = self.clock(), policy.rollout
        assert rollout is not None
        since = rollout_started_at(data)
        if since is None:
            await self._write_condition(data, None, now)
            return
        seen = list(outcomes.all())
        halt = await asyncio.to_thread(find_halt, policy.name, rollout, seen, since.timestamp(), now.timestamp())
        if halt is not None:
            await self._write_condition(data, halt, now)
            self.telemetry.record_rollout_halted(policy.name, halt.reason, halt.message)
            await self._create_event(data, halt, now)

    def _active_rollouts(self) -> list[tuple[Policy, Mapping[str, Any]]]:
        """Rollouts in use that somebody asked to be watched and that are not halted, with their objects."""
        objects, unused = self.objects.objects(), self.state.policy_load.unused
        rolled = [
            policy for policy in self.state.policies.policies if policy.rollout and policy.rollout.halt_thresholds
        ]
        found = [(policy, f"GPUPolicy/{policy.name}") for policy in rolled]
        return [
            (policy, objects[source])
            for policy, source in found
            if source in objects and unused.get(source) != FILE_WINS and not is_rollout_halted(objects[source])
        ]

    async def _write_condition(self, data: Mapping[str, Any], halt: RolloutHalt | None, now: datetime) -> None:
        """Say in the status that the rollout is watched from now on, or halted. Others' conditions stay."""
        conditions = (data.get("status") or {}).get("conditions") or []
        others = [one for one in conditions if one.get("type") != HALTED]
        metadata = data["metadata"]
        body = {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"conditions": [*others, halted_condition(halt, int(metadata.get("generation", 0)), now)]},
        }
        await self.api.patch(status_path(f"GPUPolicy/{metadata['name']}"), body, "merge")

    async def _create_event(self, data: Mapping[str, Any], halt: RolloutHalt, now: datetime) -> None:
        """One Event on the policy. The condition says it too, so one that cannot be written is only counted."""
        try:
            await self.api.create("/api/v1/namespaces/default/events", build_rollout_event(data, halt, now))
        except ApiError:
            self.telemetry.count_event("failed")
        else:
            self.telemetry.count_event("written")


def rollout_started_at(data: Mapping[str, Any]) -> datetime | None:
    """Since when this spec of a policy is watched; None: it is not yet."""
    condition = find_condition(data, HALTED)
    return datetime.fromisoformat(condition["lastTransitionTime"]) if condition is not None else None


def halted_condition(halt: RolloutHalt | None, generation: int, now: datetime) -> dict[str, Any]:
    """The condition. `lastTransitionTime` is also when this spec came to be watched."""
    status, reason, message = ("True", *halt) if halt else ("False", "Watched", "what becomes of its pods is watched")
    advice = "; it is on trial (audit) until its spec is changed" if halt else ""
    return {
        "type": HALTED,
        "status": status,
        "reason": reason,
        "message": f"{message}{advice}"[:MAX_STATUS_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
    }


def build_rollout_event(data: Mapping[str, Any], halt: RolloutHalt, now: datetime) -> dict[str, Any]:
    """The Event on a policy; those of objects without a namespace are kept in `default`."""
    metadata, moment = data["metadata"], f"{now:%Y-%m-%dT%H:%M:%SZ}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "default", "generateName": f"{metadata['name'][:200]}."},
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": "GPUPolicy",
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        },
        "type": "Warning",
        "reason": HALTED,
        "message": f"{halt.reason}: {halt.message}"[:MAX_STATUS_MESSAGE],
        "source": {"component": COMPONENT},
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }
