"""What a replica counts survives steps of the clock, and ends with the replica."""

from __future__ import annotations

import io
import os
from datetime import datetime, timedelta
from random import Random

import pytest

from tests.builders import make_namespace, make_pod
from tests.cluster import random_objects
from tests.engine.invariants import everything
from tests.example_cluster import NO_USAGE, NOW, mig_node, policies_of, policy, request_of, view_of, whole_node
from tests.server.site import encoded, review
from webhook.engine.decide import decide
from webhook.errors import ReviewError
from webhook.model.usage import UsageView
from webhook.server import handlers
from webhook.server.admission_state import ASSUME_TTL_SECONDS, AdmissionState, PolicyLoadStatus
from webhook.server.handlers import AdmissionHandler
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import HttpRequest
from webhook.web.limits import CpuLimit

QUOTA = policies_of(policy("mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 6000}]}"))
STEPS = [timedelta(0), timedelta(minutes=10), timedelta(minutes=-10), timedelta(hours=-1), timedelta(hours=1)]


def fresh_state() -> AdmissionState:
    view = view_of(make_namespace("team"), whole_node())
    return AdmissionState(QUOTA, view, UsageView(), PolicyLoadStatus(NOW))


def validate(state: AdmissionState, number: int, now: datetime = NOW) -> bool:
    """Return whether /validate admits a pod with a GPU at this time."""
    pod = make_pod(f"p{number}").gpus(1).build()
    pod["metadata"]["uid"] = f"u-{number}"
    return b'"allowed":true' in respond(state, "validate", encoded(review(pod, uid=f"r-{number}")), now)


def respond(state: AdmissionState, route: str, body: bytes, now: datetime) -> bytes:
    """Return the response to a review at this time."""
    telemetry = Telemetry(make_logger("error", io.StringIO()))
    handler = AdmissionHandler(route, state, lambda: now, decide, telemetry, 5.0, CpuLimit())
    response = handler.handle(HttpRequest(body, "", 0.0, {}))
    assert response.status == 200
    return response.body


def test_reservations_of_a_shared_quota_survive_steps_of_the_clock() -> None:
    state = fresh_state()
    admitted = [validate(state, number, NOW + STEPS[number % len(STEPS)]) for number in range(12)]

    assert admitted == [True] * 6 + [False] * 6


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_an_assumed_slice_is_neither_dropped_nor_kept_by_a_step_of_the_clock(
    step: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 1000.0
    monkeypatch.setattr(handlers, "monotonic", lambda: seconds)
    view = view_of(make_namespace("team"), mig_node(small=1, large=0))
    sizes = policies_of(policy("mode: enforce\nrightSizing: {}"))
    state = AdmissionState(sizes, view, UsageView(), PolicyLoadStatus(NOW))

    def gets_a_slice(name: str, now: datetime) -> bool:
        pod = make_pod(name).gpus(1).needs("8Gi").build()
        return b'"patch"' in respond(state, "mutate", encoded(review(pod, uid=name)), now)

    assert gets_a_slice("a", NOW)
    assert not gets_a_slice("b", NOW + step), "the only slice is assigned"
    seconds += ASSUME_TTL_SECONDS - 1
    assert not gets_a_slice("c", NOW + step)
    seconds += 1
    assert gets_a_slice("d", NOW + step), "the first pod never appeared"


def test_a_replica_that_is_killed_after_a_reservation_leaves_none_behind() -> None:
    """No reply, no pod: the API server stores nothing, and the next replica lists what is stored."""
    for round_number in range(100):
        killed = fresh_state()
        assert validate(killed, round_number)

        restarted = fresh_state()
        assert [validate(restarted, number) for number in range(7)] == [True] * 6 + [False]


PODS = int(os.environ.get("RIGHTSLICE_FUZZ", "30000")) // 100
ENFORCED, AUDITED = (policies_of(everything(mode, shapes=False)) for mode in ("enforce", "audit"))


def test_audit_and_enforcement_find_the_same_in_random_pods_and_audit_changes_none() -> None:
    random = Random(os.environ.get("RIGHTSLICE_FUZZ_SEED", "1"))
    view, evaluated = view_of(make_namespace("team"), whole_node()), 0
    for number in range(PODS):
        try:
            request = request_of({**random_objects.pod(random, f"p{number}"), "apiVersion": "v1", "kind": "Pod"})
        except ReviewError:  # the API server rejects it too
            continue
        enforced, audited = (decide(request, each, view, NO_USAGE, NOW) for each in (ENFORCED, AUDITED))
        evaluated += 1

        assert [finding.code for finding in audited.findings] == [finding.code for finding in enforced.findings]
        assert (audited.patch, audited.denials) == ((), ())
    assert evaluated > PODS // 2
