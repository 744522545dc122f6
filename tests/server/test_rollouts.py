"""The leader halts a rollout in the status of its policy with one Event, and all replicas follow."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders import Json
from tests.policy.policy_texts import load_texts, policy_text
from tests.server.site import make_state
from webhook.cache.pod_outcomes import OutcomeStore
from webhook.cache.policy_objects import PolicyObjects
from webhook.errors import ApiError
from webhook.kube.reflector import WatchStatus
from webhook.model.pod_outcomes import PodOutcome
from webhook.policy.rollout import RolloutHalt
from webhook.server import rollouts as rollouts_module
from webhook.server.admission_state import PolicyLoadStatus
from webhook.server.policy_sources import FILE_WINS, UnusedReason
from webhook.server.rollouts import RolloutController, halted_condition, rollout_started_at
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
SPEC = {"mode": "enforce", "rollout": {"percent": 100, "haltOn": {"oom": 10}}, "rightSizing": {}}


class Shared:
    """A cluster with one policy."""

    def __init__(self) -> None:
        self.stored: Json = {"metadata": {"name": "sizing", "generation": 1, "resourceVersion": "1"}, "spec": SPEC}
        self.events: list[Json] = []

    def objects(self) -> Mapping[str, Json]:
        return {"GPUPolicy/sizing": self.stored}

    async def patch(self, path: str, body: Any, kind: str) -> Json:
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise ApiError(path, 409, "Conflict", "modified")
        metadata = self.stored["metadata"]
        self.stored = {
            **self.stored,
            "metadata": {**metadata, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)},
            "status": {**self.stored.get("status", {}), **body["status"]},
        }
        return self.stored

    async def create(self, path: str, body: Mapping[str, Any]) -> Json:
        self.events.append({"path": path, **body})
        return dict(body)

    @property
    def condition(self) -> Json:
        found = [one for one in self.stored["status"]["conditions"] if one["type"] == "RolloutHalted"]
        assert len(found) == 1
        return dict(found[0])


class Pods:
    """A reflector that fills its store at once."""

    def __init__(self, outcomes: OutcomeStore, found: list[PodOutcome]) -> None:
        self.status = WatchStatus("pods", synced=True)
        self._outcomes, self._found = outcomes, found

    async def run(self) -> None:
        self._outcomes._present = {str(index): one for index, one in enumerate(self._found)}
        await asyncio.Event().wait()


class Leader:
    """A leader with an adjustable clock."""

    def __init__(self, shared: Shared, *found: PodOutcome) -> None:
        self.log, self.now, self.leads = io.StringIO(), NOW, True
        self.state = make_state()
        self.state.policies = load_texts(policy_text("sizing", **SPEC))
        self.outcomes = OutcomeStore(lambda: self.now)
        self.outcomes._present = {str(index): one for index, one in enumerate(found)}
        self.rollouts = RolloutController(
            shared,
            shared,
            self.state,
            lambda outcomes: Pods(outcomes, list(found)),
            lambda: self.leads,
            Telemetry(make_logger("info", self.log)),
            lambda: self.now,
        )


def killed(after: timedelta = timedelta(minutes=1)) -> PodOutcome:
    moment = (NOW + after).timestamp()
    return PodOutcome("team", "StatefulSet/train", ("sizing",), oom_killed=moment)


async def test_monitoring_of_a_new_rollout_starts_now() -> None:
    shared = Shared()
    leader = Leader(shared, killed(-timedelta(minutes=1)))
    for _ in range(3):
        await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert (shared.condition["status"], shared.condition["reason"]) == ("False", "Monitoring")
    assert rollout_started_at(shared.stored) == NOW
    assert shared.stored["metadata"]["resourceVersion"] == "2"


async def test_a_rollout_with_more_failures_is_halted_with_one_event() -> None:
    shared = Shared()
    leader = Leader(shared, killed())
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    leader.now += timedelta(minutes=2)
    for _ in range(3):
        await leader.rollouts.evaluate_rollouts(leader.outcomes)

    assert (shared.condition["status"], shared.condition["reason"]) == ("True", "OutOfMemory")
    assert "1 of 1 pods in the share were OOMKilled" in shared.condition["message"]
    assert "until its spec is changed" in shared.condition["message"]
    [event] = shared.events
    assert event["path"] == "/api/v1/namespaces/default/events"
    assert (event["involvedObject"]["kind"], event["reason"]) == ("GPUPolicy", "RolloutHalted")
    assert leader.log.getvalue().count("rollout halted") == 1


async def test_a_changed_spec_restarts_the_rollout() -> None:
    shared = Shared()
    leader = Leader(shared, killed())
    shared.stored["status"] = {"conditions": [halted_condition(RolloutHalt("OutOfMemory", "once"), 1, NOW)]}
    leader.now += timedelta(minutes=5)
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert shared.condition["status"] == "True"

    shared.stored["metadata"]["generation"] = 2
    for _ in range(2):
        await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert (shared.condition["status"], shared.condition["observedGeneration"]) == ("False", 2)


async def test_conditions_of_others_stay_and_a_conflict_is_retried() -> None:
    shared = Shared()
    ready = {"type": "Ready", "status": "True"}
    shared.stored["status"] = {"conditions": [ready]}
    leader, outdated = Leader(shared), shared.stored
    shared.stored = {**outdated, "metadata": {**outdated["metadata"], "resourceVersion": "9"}}
    leader.rollouts.objects = type("Old", (), {"objects": lambda _self: {"GPUPolicy/sizing": outdated}})()
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert shared.stored["status"]["conditions"] == [ready]
    leader.rollouts.objects = shared
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert ready in shared.stored["status"]["conditions"]
    assert len(shared.stored["status"]["conditions"]) == 2


async def test_a_policy_in_a_file_is_not_monitored() -> None:
    shared = Shared()
    leader = Leader(shared, killed())
    leader.state.policy_load = PolicyLoadStatus(NOW, unused={"GPUPolicy/sizing": FILE_WINS})
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert "status" not in shared.stored


async def test_a_policy_is_monitored_while_its_changed_spec_is_invalid() -> None:
    """Its last valid version is active."""
    shared = Shared()
    leader = Leader(shared, killed())
    leader.state.policy_load = PolicyLoadStatus(
        NOW, unused={"GPUPolicy/sizing": UnusedReason("Invalid", "spec.rollout")}
    )
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    leader.now += timedelta(minutes=2)
    await leader.rollouts.evaluate_rollouts(leader.outcomes)
    assert shared.condition["status"] == "True"


@pytest.mark.parametrize("leads", [True, False])
async def test_only_the_leader_monitors(leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_module, "EVALUATE_SECONDS", 0.01)
    shared = Shared()
    leader = Leader(shared, killed())
    leader.leads = leads
    task = asyncio.create_task(leader.rollouts.run())
    with suppress(TimeoutError):
        async with asyncio.timeout(30 if leads else 0.2):
            while "status" not in shared.stored:
                await asyncio.sleep(0.01)
            leader.now += timedelta(minutes=2)
            while not shared.events:
                await asyncio.sleep(0.01)
    task.cancel()
    assert len(shared.events) == int(leads)


def test_halted_names_come_from_the_status_of_objects() -> None:
    objects = PolicyObjects()
    data: Json = {"metadata": {"name": "sizing", "generation": 1}, "spec": SPEC}
    objects.policies.upsert(data)
    version = objects.version
    assert objects.halted_names() == []
    halted = {"conditions": [halted_condition(RolloutHalt("Pending", "pods are pending"), 1, NOW)]}
    objects.policies.upsert({**data, "status": halted})
    assert objects.halted_names() == ["GPUPolicy/sizing"]
    assert objects.version == version + 1
    objects.policies.upsert({**data, "metadata": {"name": "sizing", "generation": 2}, "status": halted})
    assert objects.halted_names() == []
    assert objects.version == version + 2
