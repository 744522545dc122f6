"""Events for the owners of pods: content, frequency and bounds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_pod
from tests.example_cluster import NO_USAGE, NOW, policies_of, policy, request_of, view_of, whole_node
from webhook.engine.decide import decide
from webhook.engine.guarding.bypasses import BYPASS_CODES
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import parse_pod
from webhook.telemetry.telemetry import MAX_PENDING, SECONDS_PER_HOUR, OwnerEventQueue

DENIED = Finding("GPU-L102", PolicyMode.ENFORCE, (), "must be so")
WARNED = Finding("GPU-T201", PolicyMode.WARN, (), "no node has it")
AUDITED = Finding("GPU-S201", PolicyMode.AUDIT, (), "is privileged")
RESIZED = Finding("GPU-R101", PolicyMode.ENFORCE, (), "was right-sized")


class Clock:
    """A clock that a test sets, in seconds since 1970."""

    seconds = 1e9

    def __call__(self) -> float:
        return self.seconds


def enabled_queue(clock: Clock) -> OwnerEventQueue:
    """Return a queue whose Events are written."""
    queue = OwnerEventQueue(clock)
    queue.enabled = True
    return queue


def request(owner: str = "train", **fields: Any) -> AdmissionRequest:
    pod = make_pod().owned_by("Job", owner) if owner else make_pod()
    given = {"operation": "CREATE", "group": "", "kind": "Pod", "namespace": "team", "name": "", "uid": "u-1"}
    return AdmissionRequest(pod=parse_pod(pod.build()), load_object=dict, **(given | fields))


def test_denials_and_warnings_are_queued_for_the_owner() -> None:
    queue = enabled_queue(Clock())
    queue.enqueue(request(), Decision((DENIED, WARNED, AUDITED, RESIZED)))

    assert [(each.owner.name, each.code, each.message) for each in queue.pending] == [
        ("train", "GPU-L102", "denied a pod: [GPU-L102] must be so."),
        ("train", "GPU-T201", "warning about a pod: [GPU-T201] no node has it."),
    ]


NOT_QUEUED: dict[str, AdmissionRequest] = {
    "a pod without an owner": request(""),
    "a dry run": request(dry_run=True),
    "an update": request(operation="UPDATE"),
}


@pytest.mark.parametrize("ignored", NOT_QUEUED.values(), ids=NOT_QUEUED)
def test_request_queues_no_event(ignored: AdmissionRequest) -> None:
    queue = enabled_queue(Clock())
    queue.enqueue(ignored, Decision((DENIED,)))

    assert not queue.pending


def test_code_is_queued_once_per_hour_and_owner() -> None:
    clock = Clock()
    queue = enabled_queue(clock)
    for _ in range(5):
        queue.enqueue(request(), Decision((DENIED,)))
    queue.enqueue(request("other"), Decision((DENIED,)))
    assert len(queue.pending) == 2

    clock.seconds += SECONDS_PER_HOUR
    queue.enqueue(request(), Decision((DENIED,)))
    assert len(queue.pending) == 3


def test_events_beyond_the_queue_are_dropped_and_counted() -> None:
    queue = enabled_queue(Clock())
    for number in range(MAX_PENDING + 7):
        queue.enqueue(request(f"job-{number}"), Decision((DENIED,)))

    assert (len(queue.pending), queue.dropped) == (MAX_PENDING, 7)


def test_nothing_is_queued_before_a_writer_runs() -> None:
    queue = OwnerEventQueue(Clock())
    for number in range(MAX_PENDING + 7):
        queue.enqueue(request(f"job-{number}"), Decision((DENIED,)))
    assert (len(queue.pending), queue.dropped) == (0, 0)


VALUES = {
    "CUDA_MPS_TOKEN": "s3cret",
    "LD_LIBRARY_PATH": "/s3cret",
    "LD_PRELOAD": "/s3cret.so",
    "NVIDIA_VISIBLE_DEVICES": "s3cret",
    "NVIDIA_DRIVER_CAPABILITIES": "s3cret",
    "NVIDIA_REQUIRE_CUDA": "cuda>=s3cret",
}


@pytest.mark.parametrize(("name", "value"), VALUES.items(), ids=VALUES)
def test_event_contains_no_value_of_an_environment_variable(name: str, value: str) -> None:
    """The API server returns a denial to the client that wrote the value; Events have other readers."""
    pod = make_pod().gpus(1).env(name, value).owned_by("Job", "train").build()
    policies = policies_of(policy(f"mode: enforce\nsecurity: {{deny: [{', '.join(BYPASS_CODES)}]}}\ncuda: {{}}\n"))
    admission = request_of(pod)
    decision = decide(admission, policies, view_of(whole_node()), NO_USAGE, NOW)
    assert any("env" in found.path for found in decision.findings)

    queue = enabled_queue(Clock())
    queue.enqueue(admission, decision)
    assert queue.pending
    assert not any("s3cret" in each.message for each in queue.pending)
    assert any(".env[" in each.message for each in queue.pending), "the message must contain the path"
