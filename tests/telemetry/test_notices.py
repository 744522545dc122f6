"""What the owner of a pod is told, how often, and that it never grows without bound."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make import make_pod
from tests.world import NO_USAGE, NOW, policies_of, policy, request_of, view_of, whole_node
from webhook.engine.decide import decide
from webhook.engine.guarding.bypasses import BYPASSES
from webhook.model.decisions import Decision
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.pods import pod_of
from webhook.model.requests import Request
from webhook.telemetry.notices import HOUR, MOST_WAITING, Notices

DENIED = Finding("GPU-L102", Mode.ENFORCE, (), "must be so")
WARNED = Finding("GPU-T201", Mode.WARN, (), "no node has it")
NOTED = Finding("GPU-S201", Mode.AUDIT, (), "is privileged")
SHAPED = Finding("GPU-R101", Mode.ENFORCE, (), "was right-sized")


class Clock:
    """Seconds since 1970, as a test sets them."""

    seconds = 1e9

    def __call__(self) -> float:
        return self.seconds


def notices_of(clock: Clock) -> Notices:
    """Notices that somebody writes."""
    notices = Notices(clock)
    notices.wanted = True
    return notices


def request(owner: str = "train", **fields: Any) -> Request:
    pod = make_pod().owned_by("Job", owner) if owner else make_pod()
    given = {"operation": "CREATE", "group": "", "kind": "Pod", "namespace": "team", "name": "", "uid": "u-1"}
    return Request(pod=pod_of(pod.build()), load=dict, **(given | fields))


def test_an_owner_hears_of_denials_and_warnings() -> None:
    notices = notices_of(Clock())
    notices.note(request(), Decision((DENIED, WARNED, NOTED, SHAPED)))

    assert [(each.owner.name, each.code, each.message) for each in notices.waiting] == [
        ("train", "GPU-L102", "denied a pod: [GPU-L102] must be so."),
        ("train", "GPU-T201", "warning about a pod: [GPU-T201] no node has it."),
    ]


QUIET: dict[str, Request] = {
    "a pod of nobody": request(""),
    "a trial": request(dry_run=True),
    "an update": request(operation="UPDATE"),
}


@pytest.mark.parametrize("one", QUIET.values(), ids=QUIET)
def test_nobody_hears_of(one: Request) -> None:
    notices = notices_of(Clock())
    notices.note(one, Decision((DENIED,)))

    assert not notices.waiting


def test_an_owner_hears_of_a_code_once_an_hour() -> None:
    clock = Clock()
    notices = notices_of(clock)
    for _ in range(5):
        notices.note(request(), Decision((DENIED,)))
    notices.note(request("other"), Decision((DENIED,)))
    assert len(notices.waiting) == 2

    clock.seconds += HOUR
    notices.note(request(), Decision((DENIED,)))
    assert len(notices.waiting) == 3


def test_what_there_is_no_room_for_is_dropped_and_counted() -> None:
    notices = notices_of(Clock())
    for number in range(MOST_WAITING + 7):
        notices.note(request(f"job-{number}"), Decision((DENIED,)))

    assert (len(notices.waiting), notices.dropped) == (MOST_WAITING, 7)


def test_none_is_taken_before_there_is_somebody_who_writes_them() -> None:
    notices = Notices(Clock())
    for number in range(MOST_WAITING + 7):
        notices.note(request(f"job-{number}"), Decision((DENIED,)))
    assert (len(notices.waiting), notices.dropped) == (0, 0)


VALUES = {
    "CUDA_MPS_TOKEN": "s3cret",
    "LD_LIBRARY_PATH": "/s3cret",
    "LD_PRELOAD": "/s3cret.so",
    "NVIDIA_VISIBLE_DEVICES": "s3cret",
    "NVIDIA_DRIVER_CAPABILITIES": "s3cret",
    "NVIDIA_REQUIRE_CUDA": "cuda>=s3cret",
}


@pytest.mark.parametrize(("name", "value"), VALUES.items(), ids=VALUES)
def test_no_value_of_a_variable_is_told(name: str, value: str) -> None:
    """The API server tells a refused request's sender what he wrote; Events have other readers."""
    pod = make_pod().gpus(1).env(name, value).owned_by("Job", "train").build()
    policies = policies_of(policy(f"mode: enforce\nsecurity: {{deny: [{', '.join(BYPASSES)}]}}\ncuda: {{}}\n"))
    one = request_of(pod)
    decision = decide(one, policies, view_of(whole_node()), NO_USAGE, NOW)
    assert any("env" in found.path for found in decision.findings)

    notices = notices_of(Clock())
    notices.note(one, decision)
    assert notices.waiting
    assert not any("s3cret" in each.message for each in notices.waiting)
    assert any(".env[" in each.message for each in notices.waiting), "where it stands is told"
