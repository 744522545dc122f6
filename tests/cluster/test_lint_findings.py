"""Lint findings about LimitRanges are real, and the corrected objects are accepted and have no findings."""

from __future__ import annotations

import pytest

from tests.cluster.client import Json, RefusedError
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.engine.test_linting import CLASS, MILLI, limit_range
from tests.engine.test_linting_rules import REFUSED, TAKEN
from webhook.engine.linting import fix_object, lint_all_objects, lint_object

GPU = "nvidia.com/gpu"
HARMFUL_RANGES = {
    "a maximum alone": limit_range({"max": {GPU: "4"}}),
    "a minimum alone": limit_range({"min": {GPU: "1"}}),
    "a default": limit_range({"default": {GPU: "1"}}),
    "a maximum of pods": limit_range({"type": "Pod", "max": {GPU: "4"}}),
    "a maximum of pods and a minimum of containers": limit_range(
        {"type": "Pod", "max": {GPU: "4"}}, {"min": {GPU: "1"}}
    ),
    "gpu-milli and devices": limit_range({"max": {MILLI: "4000", CLASS: "2"}}),
    "a minimum of devices": limit_range({"min": {CLASS: "1"}}),
    "a ratio of devices": limit_range({"maxLimitRequestRatio": {CLASS: "1"}}),
    "a ratio": limit_range({"maxLimitRequestRatio": {GPU: "1"}}),
    "all fields": limit_range(
        {"max": {GPU: "4"}, "min": {GPU: "1"}, "default": {GPU: "2"}, "maxLimitRequestRatio": {GPU: "1"}},
        {"type": "Pod", "max": {GPU: "8"}, "min": {GPU: "1"}},
    ),
}


def create_plain_pod(plane: Plane, namespace: str) -> str:
    """Create a pod without GPUs, and return "refused" or its defaulted resources."""
    body = {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main", "image": "example/app:1"}]}}
    try:
        made = plane.api.create(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    except RefusedError as refusal:
        return f"refused: {refusal.message}"
    sides = made["spec"]["containers"][0]["resources"].values()
    return ", ".join(sorted({amount for side in sides for amount in side.values()})) or "none"


@pytest.mark.parametrize("harmful", HARMFUL_RANGES.values(), ids=HARMFUL_RANGES)
def test_the_finding_affects_a_plain_pod_and_the_correction_does_not(
    plane: Plane, namespace: str, harmful: Json
) -> None:
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    stored = harmful | {"metadata": {"name": "lr"}}
    assert lint_object(stored)
    plane.api.create(path, stored)
    eventually(lambda: create_plain_pod(plane, namespace), until=lambda result: result != "none")

    corrected = fix_object(stored, lint_object(stored))
    assert lint_object(corrected) == []
    if corrected["spec"]["limits"]:
        plane.api.replace(f"{path}/lr", corrected)
    else:
        plane.api.delete(f"{path}/lr")
    eventually(lambda: create_plain_pod(plane, namespace), until=lambda result: result in ("none", "0"))


def test_a_pod_maximum_with_a_default_of_zero_is_no_finding(plane: Plane, namespace: str) -> None:
    objects = [limit_range({"type": "Pod", "max": {GPU: "4"}}), limit_range({"default": {GPU: "0"}})]
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    assert lint_all_objects(objects) == [[], []]
    for number, data in enumerate(objects):
        plane.api.create(path, data | {"metadata": {"name": f"lr-{number}"}})
    eventually(lambda: create_plain_pod(plane, namespace), until=lambda result: result == "0")


def rejection_message(plane: Plane, namespace: str, data: Json) -> str:
    """Return the message that rejects an object in a dry run; "" if it is accepted."""
    path = f"/api/v1/namespaces/{namespace}/{data['kind'].lower()}s"
    try:
        plane.api.create(path, data | {"metadata": {"name": "tried"}}, dryRun="All")
    except RefusedError as refusal:
        return refusal.message
    return ""


def test_lint_errors_equal_the_api_servers_rejections(plane: Plane, namespace: str) -> None:
    answers = {name: (rejection_message(plane, namespace, data), text) for name, (data, _, text) in REFUSED.items()}
    assert {name: answer for name, (answer, text) in answers.items() if text not in answer} == {}
    assert {name: answer for name, data in TAKEN.items() if (answer := rejection_message(plane, namespace, data))} == {}
