"""The status of policy objects."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.builders import Json
from tests.server.site import make_state
from webhook.errors import ApiError
from webhook.server.admission_state import PolicyLoadStatus
from webhook.server.policy_sources import FILE_WINS, UnusedReason
from webhook.server.policy_status import PolicyCounts, PolicyStatusWriter, ready_status, status_path, status_with_counts
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
THEN = "2026-05-01T00:00:00Z"
INVALID = UnusedReason("Invalid", "GPUPolicy/guard:7:9: spec.mode: must be audit, warn or enforce (found 'Enforce')")
IN_USE = {
    "type": "Ready",
    "status": "True",
    "reason": "Active",
    "message": "the current spec is active",
    "observedGeneration": 1,
    "lastTransitionTime": THEN,
}


def policy(status: Json | None = None, *, generation: int = 1, version: str = "1") -> Json:
    """Return a policy as a watch stores it."""
    metadata = {"name": "guard", "generation": generation, "resourceVersion": version}
    return {"metadata": metadata, "spec": {}} | ({"status": status} if status is not None else {})


KNOWN = {"observedGeneration": 1, "matched": 7, "denied": 2, "conditions": [IN_USE]}


def ready(status: Json | None) -> Json:
    assert status is not None
    (condition,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    return dict(condition)


def test_a_new_policy_gets_a_ready_condition() -> None:
    status = ready_status(policy(), None, NOW)

    assert ready(status) == IN_USE | {"lastTransitionTime": "2026-06-01T12:00:00Z"}
    assert status is not None
    assert (status["observedGeneration"], status["matched"], status["denied"]) == (1, 0, 0)


def test_an_unchanged_status_is_not_written_again() -> None:
    assert ready_status(policy(KNOWN), None, NOW) is None


def test_an_invalid_policy_reports_its_location() -> None:
    condition = ready(ready_status(policy(KNOWN), INVALID, NOW))

    assert (condition["status"], condition["reason"], condition["message"]) == ("False", *INVALID)
    assert condition["lastTransitionTime"] == "2026-06-01T12:00:00Z"


def test_a_policy_shadowed_by_a_file_is_reported() -> None:
    assert ready(ready_status(policy(KNOWN), FILE_WINS, NOW))["reason"] == "OverriddenByFile"


EXCEPTIONS = {
    "before its expiration": ("2026-06-01T12:00:01Z", "True", "Active"),
    "at its expiration": ("2026-06-01T12:00:00Z", "False", "Expired"),
    "in another time zone": ("2026-06-01T13:00:00+02:00", "False", "Expired"),
}


@pytest.mark.parametrize(("ends", "status", "reason"), EXCEPTIONS.values(), ids=EXCEPTIONS)
def test_an_exception_reports_its_expiration(ends: str, status: str, reason: str) -> None:
    condition = ready(ready_status(policy() | {"spec": {"expirationTime": ends}}, None, NOW))

    assert (condition["status"], condition["reason"]) == (status, reason)


def test_a_valid_change_keeps_its_transition_time_and_resets_counts() -> None:
    status = ready_status(policy(KNOWN, generation=2), None, NOW)

    assert ready(status)["lastTransitionTime"] == THEN
    assert status is not None
    assert (status["observedGeneration"], status["matched"], status["denied"]) == (2, 0, 0)


def test_conditions_of_others_stay() -> None:
    other = {"type": "Reviewed", "status": "True"}
    status = ready_status(policy(KNOWN | {"conditions": [other, IN_USE]}), INVALID, NOW)

    assert status is not None
    assert other in status["conditions"]
    assert "matched" not in status


COUNTED: dict[str, tuple[Json, PolicyCounts, Json | None]] = {
    "counts are added": (policy(KNOWN), PolicyCounts(3, 1), {"matched": 10, "denied": 3}),
    "zero counts are not written": (policy(KNOWN), PolicyCounts(), None),
    "an unobserved spec is not counted": (policy(KNOWN, generation=2), PolicyCounts(3, 1), None),
    "no status yet": (policy(), PolicyCounts(3, 1), None),
}


@pytest.mark.parametrize(("data", "more", "want"), COUNTED.values(), ids=COUNTED)
def test_counts(data: Json, more: PolicyCounts, want: Json | None) -> None:
    assert status_with_counts(data, more) == want


PATHS = {
    "GPUPolicy/guard": "/apis/rightslice.dev/v1alpha1/gpupolicies/guard/status",
    "GPUPolicyException/ours/one": "/apis/rightslice.dev/v1alpha1/namespaces/ours/gpupolicyexceptions/one/status",
}


@pytest.mark.parametrize(("source", "path"), PATHS.items())
def test_status_path(source: str, path: str) -> None:
    assert status_path(source) == path


class Shared:
    """One policy of a cluster, whose status several replicas write."""

    def __init__(self) -> None:
        self.stored = policy()
        self.patches = 0
        self.error: ApiError | None = None

    def objects(self) -> Mapping[str, Json]:
        """Return the objects of a watch that is up to date."""
        return {"GPUPolicy/guard": self.stored}

    async def patch(self, path: str, body: Any, kind: str) -> Json:
        """Change the status if the version matches."""
        if self.error is not None:
            raise self.error
        if body["metadata"]["resourceVersion"] != self.stored["metadata"]["resourceVersion"]:
            raise ApiError(path, 409, "Conflict", "modified")
        self.patches += 1
        metadata = {**self.stored["metadata"], "resourceVersion": str(self.patches + 1)}
        self.stored = {
            **self.stored,
            "metadata": metadata,
            "status": {**self.stored.get("status", {}), **body["status"]},
        }
        return self.stored


class Replica:
    """A replica that counts reviews and writes status."""

    def __init__(self, shared: Shared, *, leads: bool) -> None:
        self.log = io.StringIO()
        self.telemetry = Telemetry(make_logger("info", self.log))
        self.state = make_state()
        self.writer = PolicyStatusWriter(shared, shared, self.state, lambda: leads, self.telemetry, lambda: NOW)

    def count(self, matched: int, denied: int) -> None:
        """Count reviews."""
        self.telemetry.metrics.matches["guard"] += matched
        self.telemetry.metrics.denials["guard"] += denied


async def test_the_status_has_the_counts_of_all_replicas() -> None:
    shared = Shared()
    leader, other = Replica(shared, leads=True), Replica(shared, leads=False)
    for replica in (other, leader):
        await replica.writer.sync(with_counts=False)
    assert shared.patches == 1, "only the leader writes the condition"

    leader.count(5, 1)
    other.count(2, 2)
    for _ in range(2):
        for replica in (leader, other):
            await replica.writer.sync(with_counts=False)
            await replica.writer.sync(with_counts=True)
    assert (shared.stored["status"]["matched"], shared.stored["status"]["denied"]) == (7, 3)
    assert shared.patches == 3


async def test_counts_that_were_not_written_are_written_later() -> None:
    shared = Shared()
    leader = Replica(shared, leads=True)
    await leader.writer.sync(with_counts=False)
    leader.count(5, 0)
    shared.error = ApiError("PATCH /", 409, "Conflict", "modified")
    await leader.writer.sync(with_counts=True)
    shared.error = None
    await leader.writer.sync(with_counts=True)

    assert shared.stored["status"]["matched"] == 5
    assert leader.log.getvalue() == ""


async def test_counts_of_a_changed_policy_start_at_zero() -> None:
    shared = Shared()
    leader = Replica(shared, leads=True)
    await leader.writer.sync(with_counts=False)
    leader.count(5, 5)
    shared.stored["metadata"]["generation"] = 2
    await leader.writer.sync(with_counts=True)
    leader.count(1, 0)
    await leader.writer.sync(with_counts=True)

    assert (shared.stored["status"]["matched"], shared.stored["status"]["denied"]) == (1, 0)


async def test_counts_of_an_older_spec_are_not_added_to_the_new_one() -> None:
    """Another replica leads, and has written that the new spec is active."""
    shared = Shared()
    leader, other = Replica(shared, leads=True), Replica(shared, leads=False)
    for replica in (leader, other):
        await replica.writer.sync(with_counts=False)
    other.count(5, 5)
    shared.stored["metadata"]["generation"] = 2
    await leader.writer.sync(with_counts=False)
    assert shared.stored["status"]["observedGeneration"] == 2
    for matched in (0, 1):
        other.count(matched, 0)
        await other.writer.sync(with_counts=True)

    assert (shared.stored["status"]["matched"], shared.stored["status"]["denied"]) == (1, 0)


class ChangingPolicies(Shared):
    """A cluster in which one policy replaces another."""

    def objects(self) -> Mapping[str, Json]:
        """Return the current policy."""
        return {f"GPUPolicy/{self.stored['metadata']['name']}": self.stored}


async def test_deleted_objects_are_forgotten() -> None:
    shared = ChangingPolicies()
    leader = Replica(shared, leads=True)
    for number in range(5):
        shared.stored = policy()
        shared.stored["metadata"]["name"] = f"guard-{number}"
        await leader.writer.sync(with_counts=True)

    assert list(leader.writer._reported) == ["GPUPolicy/guard-4"]


async def test_an_unused_policy_is_not_counted() -> None:
    shared = Shared()
    leader = Replica(shared, leads=True)
    leader.state.policy_load = PolicyLoadStatus(NOW, unused={"GPUPolicy/guard": FILE_WINS})
    await leader.writer.sync(with_counts=False)
    leader.count(5, 0)
    await leader.writer.sync(with_counts=True)

    assert shared.stored["status"]["matched"] == 0


async def test_a_forbidden_write_is_logged_once() -> None:
    shared = Shared()
    leader = Replica(shared, leads=True)
    shared.error = ApiError("PATCH /", 403, "Forbidden", "cannot patch gpupolicies/status")
    for _ in range(3):
        await leader.writer.sync(with_counts=False)

    assert leader.log.getvalue().count("policy status not written") == 1
