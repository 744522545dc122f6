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
from tests.builders import make_namespace, make_node, make_pod
from tests.conftest import ROOT
from tests.server.mutations import MutatedReview, bases, damage
from tests.server.site import NOW, encoded, review
from webhook.cache.snapshot import read_snapshot, view_of_objects
from webhook.engine.decision_cache import DecisionCache
from webhook.errors import SourceLocation
from webhook.model.cluster_view import ClusterView
from webhook.model.usage import UsageView
from webhook.policy.loader import load_policies
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.handlers import API_SERVER, AdmissionHandler
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.web.http_messages import MAX_ERROR_LENGTH, HttpRequest, HttpResponse
from webhook.web.limits import CpuLimit

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


HARD = dict.fromkeys(
    ("requests.cpu", "limits.memory", "requests.nvidia.com/gpu", "requests.example.com/a", "pods"), "1e20"
)
BOUNDED: tuple[dict[str, Any], ...] = (
    make_namespace("team"),
    {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "range", "namespace": "team"},
        "spec": {
            "limits": [
                {"type": "Container", "max": {"memory": "1e30"}, "maxLimitRequestRatio": {"cpu": "4"}},
                {"type": "Pod", "min": {"cpu": "10m"}, "max": {"cpu": "1e30"}},
            ]
        },
    },
    {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "quota", "namespace": "team"},
        "spec": {"hard": HARD},
        "status": {"hard": HARD, "used": dict.fromkeys(HARD, "1")},
    },
    make_node("node", {}, **{"nvidia.com/gpu": 8}),
)
"""The namespace of most reviews, with a LimitRange and a quota that compare amounts of any size."""


def bounded_view() -> ClusterView:
    """Return a cluster with that namespace."""
    return view_of_objects((each, SourceLocation("bounded.json")) for each in BOUNDED)


def routes(view: ClusterView) -> dict[str, AdmissionHandler]:
    """Return both routes of a server with a strict policy and the shipped ones."""
    library = [(str(file), file.read_text()) for file in sorted((ROOT / "policies").glob("*.yaml"))]
    loaded = load_policies([*library, ("everything.yaml", EVERYTHING)])
    assert loaded.policies is not None, loaded.errors
    state = AdmissionState(loaded.policies, view, UsageView(), PolicyLoadStatus(NOW))
    seconds = count()
    telemetry = Telemetry(make_logger("info", io.StringIO()))

    def clock() -> Any:
        return NOW + timedelta(seconds=next(seconds))

    decide = DecisionCache().decide
    limit = CpuLimit(HANGING)
    return {
        route: AdmissionHandler(route, state, clock, decide, telemetry, 5.0, limit) for route in ("mutate", "validate")
    }


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


def amounts_review(**limits: object) -> bytes:
    """Return the review of a pod with a GPU and these limits."""
    pod = make_pod().gpus(1).needs("8Gi").build()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"} | limits}
    pod["spec"]["tolerations"] = [{"operator": "Exists", "tolerationSeconds": 10**30}] if not limits else []
    return encoded(review(pod))


def count_review(replicas: int) -> bytes:
    """Return the review of a Deployment of GPU pods with so many replicas."""
    pod = make_pod().gpus(1).build()
    spec = {"replicas": replicas, "template": {"metadata": {"labels": {"app": "a"}}, "spec": pod["spec"]}}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    return encoded(review(deployment, kind=kind, resource=kind | {"resource": "deployments"}))


UNUSUAL_AMOUNTS: dict[str, tuple[bytes, tuple[int, int]]] = {
    "a zero with the least exponent": (amounts_review(cpu="0e-2147483648"), (200, 200)),
    "a large exponent in a namespace with a quota": (amounts_review(**{"nvidia.com/gpu": "1e402"}), (200, 200)),
    "the largest exponent": (amounts_review(cpu="1e2147483647"), (200, 200)),
    "a page size beyond 64 bits": (amounts_review(**{"cpu": "1", "hugepages-1e30": "1"}), (200, 200)),
    "an amount of 100 bits": (amounts_review(memory=10**30), (200, 400)),
    "one more replica than 63 bits hold": (count_review(2**63), (200, 200)),
    "a toleration of 100 bits": (amounts_review(), (200, 400)),
}
"""Bodies, and the statuses for an API server and for other clients: of these, integers must have 64 bits."""


@pytest.mark.parametrize(("body", "statuses"), UNUSUAL_AMOUNTS.values(), ids=UNUSUAL_AMOUNTS)
def test_an_unusual_amount_gets_an_answer(body: bytes, statuses: tuple[int, int]) -> None:
    for route, handler in routes(bounded_view()).items():
        with patience():
            replies = [
                handler.handle(HttpRequest(body, "", 0.0, {"User-Agent": sender})) for sender in (API_SERVER, "curl")
            ]
        assert {reply.status for reply in replies} <= {*statuses}
        assert replies[1].status == statuses[1], route
        for reply in replies:
            check(route, MutatedReview(body, whole=True), reply)


def test_every_mutated_review_gets_a_valid_response() -> None:
    reviews = [bench_review(), *bases(sources())]
    servers, outcomes = (routes(read_snapshot("demo").view), routes(bounded_view())), Counter[str]()
    for number in range(COUNT):
        chance = Random(f"{SEED}-{number}")
        mutated = damage(chance.choice(reviews), reviews, chance)
        route, sender = chance.choice(("mutate", "validate")), chance.choice((API_SERVER, "curl"))
        try:
            with patience():
                reply = chance.choice(servers)[route].handle(HttpRequest(mutated.body, "", 0.0, {"User-Agent": sender}))
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
