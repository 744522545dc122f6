"""The CRDs on a real API server: it accepts what lint accepts, and rejects what a schema can express."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.conftest import ROOT
from tests.policy.policy_texts import exception_text, policy_text
from tests.policy.test_loader import WHOLE
from tests.server.test_policy_admission import FILES, OBJECTS, whole
from webhook.policy.loader import load_policies

POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"
EXCEPTIONS = "/apis/rightslice.dev/v1alpha1/gpupolicyexceptions"

NOT_IN_SCHEMA = {
    "a misspelled section",
    "a field of another tool",
    "a misspelled field behind a choice of forms",
    "a condition that is not CEL",
    "a condition about an unknown name",
    "a condition that is a number",
    "a pattern that RE2 rejects",
    "two defaults for one resource",
    "a toleration of every taint",
    "a toleration with a value for Exists",
    "seconds without NoExecute",
    "a word that is not auto",
    "a comparison with a word",
}
"""Errors that a schema cannot express, or that a choice of forms hides from it. Our webhook rejects these."""


@pytest.fixture(scope="module")
def served(plane: Plane) -> Plane:
    """A plane that serves our kinds."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "crds"))
    eventually(lambda: all(is_served(plane, path) for path in (POLICIES, EXCEPTIONS)))
    return plane


def is_served(plane: Plane, path: str) -> bool:
    """Return whether the API server serves the collection; until then it answers 404 and 429."""
    try:
        plane.api.get(path)
    except RefusedError:
        return False
    return True


def rejection_message(plane: Plane, data: Json, path: str = POLICIES) -> str:
    """Return the message that rejects an object in a dry run; "" if it is accepted."""
    try:
        plane.api.create(path, data, dryRun="All")
    except RefusedError as refusal:
        return refusal.message
    return ""


def test_the_schema_rejects_invalid_objects_that_it_can_express(served: Plane) -> None:
    assert {name for name, data in OBJECTS.items() if not rejection_message(served, data)} == NOT_IN_SCHEMA


@pytest.mark.parametrize("text", [*dict(FILES).values(), WHOLE], ids=[*dict(FILES), "everything at once"])
def test_what_lint_accepts_is_accepted(served: Plane, text: str) -> None:
    data = whole(text.replace("status: {conditions: null}", "").replace("  creationTimestamp: null\n", ""))
    assert data is not None

    assert rejection_message(served, data) == ""


EDGES: dict[str, dict[str, Any]] = {
    "amounts as numbers and as text": {"limits": {"perPod": [{"resource": "a/b", "allowed": [1, "2", "500m", "1e3"]}]}},
    "a memory in bytes": {"rightSizing": {"default": {"memory": 8 * 2**30}}},
    "the minimum memory": {"rightSizing": {"default": {"memory": "1Mi", "compute": "0.1%"}}},
    "a whole GPU of compute": {"rightSizing": {"default": {"memory": "1Gi", "compute": "100.0%"}}},
    "equal bounds and a default between them": {
        "limits": {"perContainer": [{"resource": "cpu", "min": 2, "max": "2000m", "default": "2"}]}
    },
    "a default that is an allowed value in another notation": {
        "limits": {"perContainer": [{"resource": "cpu", "allowed": ["1000m", 2], "default": 1}]}
    },
    "an operator without values, and an empty list": {
        "match": {"objectSelector": {"matchExpressions": [{"key": "a/b", "operator": "Exists", "values": []}]}}
    },
    "the maximum number of entries": {
        "match": {"namespaces": ["n" * 253] * 256, "objectSelector": {"matchLabels": {f"k{i}": "" for i in range(64)}}}
    },
    "an empty spec": {},
}


@pytest.mark.parametrize("spec", EDGES.values(), ids=EDGES)
def test_values_at_an_edge_are_accepted_by_both(served: Plane, spec: dict[str, Any]) -> None:
    text = policy_text("edge", **spec)

    assert load_policies([("p.yaml", text)]).errors == ()
    assert rejection_message(served, json.loads(text)) == ""


def test_an_exception_is_accepted(served: Plane) -> None:
    path = "/apis/rightslice.dev/v1alpha1/namespaces/default/gpupolicyexceptions"
    data = json.loads(exception_text())
    data["metadata"]["namespace"] = "default"

    assert rejection_message(served, data, path) == ""
    assert "GPU-S999" in rejection_message(served, data | {"spec": data["spec"] | {"codes": ["GPU-S999"]}}, path)


def test_a_misspelled_field_is_kept_and_no_default_is_written(served: Plane) -> None:
    data = json.loads(policy_text("kept", securty={"deny": []}))

    stored = served.api.create(POLICIES, data, dryRun="All")

    assert stored["spec"] == data["spec"]


def test_kubectl_shows_mode_readiness_and_counts(served: Plane) -> None:
    served.api.create(POLICIES, json.loads(policy_text("shown", mode="warn", description="One sentence.")))
    try:
        served.api.patch(f"{POLICIES}/shown/status", {"status": status()})

        header, row = served.kubectl("get", "gpupol", "shown", "-o", "wide").stdout.splitlines()
    finally:
        served.api.delete(f"{POLICIES}/shown")

    assert header.split() == ["NAME", "MODE", "READY", "MATCHED", "DENIED", "AGE", "DESCRIPTION", "MESSAGE"]
    assert row.split()[:5] == ["shown", "warn", "False", "12", "3"]
    assert row.endswith("One sentence.   spec.mode: must be …")


def status() -> Json:
    """Return a status as Rightslice writes it."""
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "Faulty",
        "message": "spec.mode: must be …",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-06-01T00:00:00Z",
    }
    return {"observedGeneration": 1, "matched": 12, "denied": 3, "conditions": [ready]}
