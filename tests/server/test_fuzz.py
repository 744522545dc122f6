"""Mutated reviews through the complete admission path: each gets a valid response.

A short run is part of every test run; `make fuzz` goes on for a million, from another seed each time, and
`make fuzz FUZZ=10000000` for longer. A failure names its seed and number: `make fuzz SEED=…` comes by it again.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import jsonpatch
import pytest

from benchmarks.reviews import review as bench_review
from tests.conftest import ROOT
from tests.server.mutations import MutatedReview, bases, damage
from tests.server.site import NOW
from webhook.cache.snapshot import read_snapshot
from webhook.engine.decision_cache import DecisionCache
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.handlers import API_SERVER, AdmissionHandler
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import MAX_ERROR_LENGTH, HttpRequest, HttpResponse

COUNT = int(os.environ.get("RIGHTSLICE_FUZZ", "2000"))
SEED = os.environ.get("RIGHTSLICE_FUZZ_SEED", "rightslice")
HANGING = 20.0
"""CPU seconds after which one review counts as hung. A slow machine needs a hundredth of that."""

EVERYTHING = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: everything}
spec:
  mode: enforce
  failurePolicy: Fail
  match:
    operations: [CREATE, UPDATE]
    matchConditions:
      - {name: named, expression: "!has(object.metadata.name) || object.metadata.name.matches('^.*$')"}
      - {name: loops, expression: "object.spec.containers.all(c, !has(c.name) || c.name != oldObject)"}
  rightSizing: {isolation: none, minSavingPercent: 0, default: {memory: 4Gi}}
  limits:
    perPod: [{resource: nvidia.com/gpu, allowed: [1, 2, 4, 8]}, {resource: cpu, max: "64"}]
    perContainer: [{resource: "*", max: 1Ti}, {resource: memory, default: 4Gi}]
    perGPU: [{resource: cpu, default: "4", max: "32"}]
    accounting: native
  injection: {tolerations: auto, nodeAffinity: auto, runtimeClassName: nvidia, spread: preferred, labels: {a: b}}
  topology: {nvlink: required, multiNodeDomain: nvidia.com/gpu.clique}
  cuda: {}
  security:
    deny: [visibleDevicesEnv, unreadableEnv, privileged, hostNamespaces, hostPathDevices, cdiAnnotations, nodeName,
      mixedGPURequests, forgedAnnotations, mirrorPod, loaderEnv, sharedProcessNamespace, resourceClaims]
"""


def routes() -> dict[str, AdmissionHandler]:
    """Return both routes of a server with a strict policy and the shipped ones, in the demo cluster."""
    library = [(str(file), file.read_text()) for file in sorted((ROOT / "policies").glob("*.yaml"))]
    loaded = load_policies([*library, ("everything.yaml", EVERYTHING)])
    assert loaded.policies is not None, loaded.errors
    state = AdmissionState(loaded.policies, read_snapshot("demo").view, UsageView(), PolicyLoadStatus(NOW))
    seconds = count()
    telemetry = Telemetry(make_logger("info", io.StringIO()))

    def clock() -> Any:
        return NOW + timedelta(seconds=next(seconds))

    decide = DecisionCache().decide
    return {route: AdmissionHandler(route, state, clock, decide, telemetry, 5.0) for route in ("mutate", "validate")}


@contextmanager
def patience() -> Iterator[None]:
    """Fail the test if a review takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, HANGING)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check(route: str, mutated: MutatedReview, reply: HttpResponse) -> None:
    """Check a response to any input."""
    answer = json.loads(reply.body)
    if reply.status != 200:
        assert reply.status in (400, 413)
        assert answer["error"].isprintable()
        assert 10 < len(answer["error"]) <= MAX_ERROR_LENGTH
        return
    response = answer["response"]
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    if mutated.whole:
        assert response["uid"] == json.loads(mutated.body)["request"]["uid"]
    assert all(line.isprintable() and len(line) <= 256 for line in response.get("warnings", ()))
    if route == "validate":
        assert "patch" not in response
        assert response["allowed"] or response["status"]["message"]
        return
    assert response["allowed"] is True
    if "patch" in response:
        check_patch(json.loads(b64decode(response["patch"])), mutated.body)


def check_patch(operations: list[Any], body: bytes) -> None:
    """Apply the patch: one that cannot be applied fails the request, whatever the failure policy."""
    assert {operation["op"] for operation in operations} <= {"add", "replace"}
    jsonpatch.apply_patch(json.loads(body)["request"]["object"], operations)


def sources() -> list[str]:
    """Return the examples, and the corpus if it exists."""
    corpus = Path(os.environ.get("RIGHTSLICE_SHARED", ROOT.parent / "shared")) / "corpus" / "manifests"
    return [str(ROOT / "examples" / "pods"), *([str(corpus)] if corpus.is_dir() else [])]


def test_every_mutated_review_gets_a_valid_response() -> None:
    reviews = [bench_review(), *bases(sources())]
    answering, outcomes = routes(), Counter[str]()
    for number in range(COUNT):
        chance = Random(f"{SEED}-{number}")
        mutated = damage(chance.choice(reviews), reviews, chance)
        route, sender = chance.choice(("mutate", "validate")), chance.choice((API_SERVER, "curl"))
        try:
            with patience():
                reply = answering[route].handle(HttpRequest(mutated.body, "", 0.0, sender))
                check(route, mutated, reply)
                if reply.after_send is not None:
                    reply.after_send()
        except Exception as error:
            pytest.fail(f"seed {SEED}, number {number}, to /{route} by {sender}: {error!r}\n{mutated.body[:4000]!r}")
        outcomes[str(reply.status)] += 1
        if number % 100_000 == 99_999:
            sys.stdout.write(f"{number + 1} mutated reviews, seed {SEED}: {dict(outcomes)}\n")
            sys.stdout.flush()
    assert min(outcomes["200"], outcomes["400"]) > COUNT // 20, "there are valid and invalid reviews"
