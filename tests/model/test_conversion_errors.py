"""Errors about invalid pods, in plain words."""

from __future__ import annotations

from typing import Any

import pytest

from webhook.errors import ReviewError
from webhook.model.field_paths import FieldPath
from webhook.model.pods import parse_pod

LIMITS: FieldPath = ("spec", "containers", 1, "resources", "limits")


def with_limits(limits: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{}, {"resources": {"limits": limits}}]}}


CASES: dict[str, tuple[Any, FieldPath, str]] = {
    "an amount that is a list": (
        with_limits({"cpu": "1", "memory": 5, "nvidia.com/gpu": [1]}),
        (*LIMITS, "nvidia.com/gpu"),
        "spec.containers[1].resources.limits['nvidia.com/gpu']: must be a number or text, found a list",
    ),
    "an amount that is a boolean": (
        with_limits({"cpu": 1, "nvidia.com/gpu": True}),
        (*LIMITS, "nvidia.com/gpu"),
        "spec.containers[1].resources.limits['nvidia.com/gpu']: must be a number or text, found true or false",
    ),
    "a value under an unprintable key": (
        with_limits({"\x1b[2J": [1]}),
        LIMITS,
        "spec.containers[1].resources.limits: must be a number or text, found a list",
    ),
    "no spec": ({"metadata": {}, "spec": None}, (), "spec: must be set, found nothing"),
    "no metadata": ({"spec": {}}, (), "metadata: must be set, found nothing"),
    "a label that is a number": (
        {"metadata": {"labels": {"a": "b", "c": 1}}, "spec": {}},
        ("metadata", "labels", "c"),
        "metadata.labels.c: must be text, found a whole number",
    ),
    "an optional field": (
        {"metadata": {}, "spec": {"activeDeadlineSeconds": 1.5}},
        ("spec", "activeDeadlineSeconds"),
        "spec.activeDeadlineSeconds: must be a whole number, found a number",
    ),
    "not a map": (7, (), "must be a map, found a whole number"),
}


@pytest.mark.parametrize(("data", "path", "sentence"), CASES.values(), ids=CASES)
def test_invalid_pod_names_field_and_expectation(data: Any, path: FieldPath, sentence: str) -> None:
    with pytest.raises(ReviewError) as caught:
        parse_pod(data)
    assert (caught.value.path, caught.value.message) == (path, sentence)
    assert str(caught.value) == f"object: is not a Pod: {sentence}"
