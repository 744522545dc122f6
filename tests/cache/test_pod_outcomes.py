"""Outcomes of GPU pods, from watch events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.builders import Json, PodMaker, make_pod
from webhook.cache.pod_outcomes import LOOK_BACK_SECONDS, MAX_DELETED_PODS, OutcomePod, OutcomeStore, read_outcome
from webhook.model.pod_outcomes import PodOutcome
from webhook.policy.rollout import HaltThresholds, Rollout, find_halt

MOMENT = "2026-06-01T12:00:00Z"
AT = datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp()
KILLED = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": MOMENT}}
FAILED = {"terminated": {"reason": "Error", "exitCode": 1, "finishedAt": MOMENT}}
DONE = {"terminated": {"reason": "Completed", "exitCode": 0, "finishedAt": MOMENT}}
ENDED = {"containerStatuses": [{"name": "main", "state": DONE}]}
LATER = "2026-06-01T12:00:05Z"
DECISION = {"policies": ["sizing", "labels"], "digest": "0123456789ab", "changed": ["resources"]}


def watched(name: str = "a", **status: Any) -> OutcomePod:
    pod = make_pod(name).gpus(1).owned_by("StatefulSet", "train").container("logs")
    pod.container("sidecar", kind="initContainers", resources={"limits": {"nvidia.com/gpu": "1"}})
    data: Json = pod.build()
    data["metadata"] |= {"uid": name, "creationTimestamp": MOMENT}
    data["status"] = status
    return msgspec.convert(data, OutcomePod)


def unscheduled(status: str, reason: str = "Unschedulable") -> list[Json]:
    return [{"type": "PodScheduled", "status": status, "reason": reason, "lastTransitionTime": MOMENT}]


def disrupted(moment: str) -> list[Json]:
    return [{"type": "DisruptionTarget", "status": "True", "lastTransitionTime": moment}]


HARM: dict[str, tuple[Json, str]] = {
    "running": ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, ""),
    "an OOM-killed container": ({"containerStatuses": [{"name": "main", "state": KILLED}]}, "oom_killed"),
    "an OOM-killed container without GPUs": ({"containerStatuses": [{"name": "logs", "state": KILLED}]}, ""),
    "an OOM-killed container that was restarted": (
        {"containerStatuses": [{"name": "main", "lastState": KILLED, "state": {}}]},
        "oom_killed",
    ),
    "an OOM-killed sidecar with a GPU": (
        {"initContainerStatuses": [{"name": "sidecar", "state": KILLED}]},
        "oom_killed",
    ),
    "a failed container": ({"containerStatuses": [{"name": "main", "state": FAILED}]}, ""),
    "evicted by the kubelet": ({"phase": "Failed", "reason": "Evicted"}, "evicted ended"),
    "evicted through the API": ({"conditions": disrupted(MOMENT)}, "evicted"),
    "evicted, and then terminated": (
        {"phase": "Succeeded", "conditions": disrupted(MOMENT), **ENDED},
        "evicted ended",
    ),
    "removed by a drain after it finished": (
        {"phase": "Succeeded", "conditions": disrupted(LATER), **ENDED},
        "ended",
    ),
    "finished": ({"phase": "Succeeded", **ENDED}, "ended"),
    "finished without containers": (
        {"phase": "Failed", "reason": "DeadlineExceeded", "conditions": unscheduled("False")},
        "ended",
    ),
    "one finished container": ({"phase": "Running", **ENDED}, ""),
    "unschedulable": ({"phase": "Pending", "conditions": unscheduled("False")}, "pending"),
    "gated": (
        {"phase": "Pending", "conditions": unscheduled("False", "SchedulingGated")},
        "",
    ),
    "scheduled and starting": ({"phase": "Pending", "conditions": unscheduled("True")}, ""),
}


@pytest.mark.parametrize(("status", "outcomes"), HARM.values(), ids=HARM)
def test_outcome_of_a_pod(status: Json, outcomes: str) -> None:
    want = PodOutcome("team", "StatefulSet/train", (), **dict.fromkeys(outcomes.split(), AT))
    assert read_outcome(watched(**status)) == want


CHANGED_BY: dict[str, tuple[Json, set[str]]] = {
    "changed by one policy": ({"changedBy": {"sizing": ["resources"]}}, {"sizing"}),
    "changed by one of two matching policies": ({"changedBy": {"labels": ["labels"]}}, {"labels"}),
    "changed by several policies together": ({"changedBy": {"a, b": ["resources"], "c": ["labels"]}}, {"a", "b", "c"}),
    "a record without the changing policies": ({}, {"sizing", "labels"}),
}


@pytest.mark.parametrize(("record", "policies"), CHANGED_BY.values(), ids=CHANGED_BY)
def test_outcome_has_the_policies_that_changed_the_pod(record: Json, policies: set[str]) -> None:
    data = make_pod().gpus(1).annotate("rightslice.dev/decision", json.dumps(DECISION | record)).build()
    outcome = read_outcome(msgspec.convert(data, OutcomePod))
    assert outcome is not None
    assert set(outcome.policies) == policies


def test_pod_that_a_policy_matched_without_a_change_is_in_the_control_group() -> None:
    note = json.dumps(DECISION | {"changedBy": {"labels": ["labels"]}})
    data = make_pod("k").gpus(1).annotate("rightslice.dev/decision", note).build()
    killed = data | {"status": {"containerStatuses": [{"name": "main", "state": KILLED}]}}
    found = [outcome for pod in (data, killed) if (outcome := read_outcome(msgspec.convert(pod, OutcomePod)))]
    rollout = Rollout(100, "seed", HaltThresholds(oom=1, evictions=None, pending=None, window_minutes=60))

    assert find_halt("sizing", rollout, found, since=0, now=AT + 1) is None
    assert find_halt("labels", rollout, found[1:], since=0, now=AT + 1) is not None


def test_pod_with_a_gpu_in_an_init_container_counts() -> None:
    gpu = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    pod = make_pod().container("warm-up", kind="initContainers", resources=gpu).build()
    assert read_outcome(msgspec.convert(pod, OutcomePod)) is not None


NO_GPUS = {
    "no GPU resource": make_pod(),
    "a request for zero GPUs": make_pod().gpus(0),
    "an invalid amount": make_pod().gpus("some"),
}


@pytest.mark.parametrize("pod", NO_GPUS.values(), ids=NO_GPUS)
def test_pod_without_gpus_has_no_outcome(pod: PodMaker) -> None:
    assert read_outcome(msgspec.convert(pod.build(), OutcomePod)) is None


def test_oom_kill_of_a_container_without_gpu_does_not_count() -> None:
    none = {"limits": {"nvidia.com/gpu": "0"}}
    data = make_pod().gpus(1).container("logs", resources=none).build()
    data["status"] = {"containerStatuses": [{"name": "logs", "state": KILLED}]}
    outcome = read_outcome(msgspec.convert(data, OutcomePod))
    assert outcome is not None
    assert outcome.oom_killed == 0


def test_terminating_pod_is_not_pending() -> None:
    data = make_pod().gpus(1).build()
    data["metadata"]["deletionTimestamp"] = MOMENT
    data["status"] = {"phase": "Pending", "conditions": unscheduled("False")}
    outcome = read_outcome(msgspec.convert(data, OutcomePod))
    assert outcome is not None
    assert outcome.pending == 0


class Clock:
    """An adjustable clock."""

    seconds = AT

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


def list_pods(outcomes: OutcomeStore, *pods: OutcomePod) -> None:
    outcomes.begin()
    for pod in pods:
        outcomes.upsert(pod)
    outcomes.swap()


def test_deleted_pods_are_kept_for_a_day() -> None:
    clock = Clock()
    outcomes = OutcomeStore(clock)
    list_pods(outcomes, watched("a"), watched("b"), watched("c"))
    outcomes.remove(watched("a", containerStatuses=[{"name": "main", "state": KILLED}]))
    list_pods(outcomes, watched("c"))
    found = sorted((one.oom_killed, one.deleted) for one in outcomes.all())
    assert found == [(0, 0), (0, AT), (AT, AT)]
    clock.seconds += LOOK_BACK_SECONDS + 1
    outcomes.remove(watched("c"))
    assert [one.deleted for one in outcomes.all()] == [clock.seconds]


def test_pending_time_starts_when_the_last_gate_is_removed() -> None:
    """The condition keeps the time of the gate, because it was `False` before too."""
    clock = Clock()
    outcomes = OutcomeStore(clock)
    outcomes.begin()
    outcomes.swap()
    gated, waiting = (
        watched(phase="Pending", conditions=unscheduled("False", reason))
        for reason in ("SchedulingGated", "Unschedulable")
    )
    outcomes.upsert(gated)
    clock.seconds += 3600
    outcomes.upsert(waiting)
    clock.seconds += 60
    list_pods(outcomes, waiting)
    assert [one.pending for one in outcomes.all()] == [AT + 3600]


def test_oom_kill_is_kept_after_other_terminations() -> None:
    """A status has only the last two terminations of a container."""
    outcomes = OutcomeStore(Clock())
    list_pods(outcomes, watched(containerStatuses=[{"name": "main", "lastState": KILLED}]))
    failed = watched(containerStatuses=[{"name": "main", "lastState": FAILED, "state": FAILED}])
    outcomes.upsert(failed)
    list_pods(outcomes, failed)
    assert [one.oom_killed for one in outcomes.all()] == [AT]


def test_incomplete_list_changes_nothing() -> None:
    outcomes = OutcomeStore(Clock())
    list_pods(outcomes, watched("a"))
    outcomes.begin()
    outcomes.upsert(watched("b"))
    assert len(list(outcomes.all())) == 1


def test_number_of_deleted_pods_is_limited() -> None:
    outcomes = OutcomeStore(Clock())
    for number in range(MAX_DELETED_PODS + 10):
        outcomes._record_deletion(str(number), PodOutcome("team", "w", ()))
    assert len(list(outcomes.all())) == MAX_DELETED_PODS
