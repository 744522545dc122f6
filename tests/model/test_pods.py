"""Pods from the API server: unknown fields ignored, nulls absent, and an error for anything else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_pod
from webhook.errors import ReviewError
from webhook.model.pods import parse_pod, pod_display_name

PLAIN = make_pod("p").gpus(1).build()


def spec(**fields: Any) -> dict[str, Any]:
    return {**PLAIN, "spec": {**PLAIN["spec"], **fields}}


def nested(levels: int) -> object:
    inner: object = None
    for _ in range(levels):
        inner = [inner]
    return inner


SAME: dict[str, dict[str, Any]] = {
    "nulls for lists and maps": spec(nodeSelector=None, tolerations=[None], volumes=None),
    "nulls in the metadata": {**PLAIN, "metadata": {**PLAIN["metadata"], "labels": None}},
    "fields of a later Kubernetes": spec(newField={"a": 1}),
}
BAD: dict[str, object] = {
    "not a map": [],
    "no metadata and spec": {},
    "text for a list": spec(containers="one"),
    "a number for a name": {**PLAIN, "metadata": {"name": 1}},
    "a boolean for an amount": spec(containers=[{"resources": {"limits": {"nvidia.com/gpu": True}}}]),
    "too deep": nested(100_000),
}


@pytest.mark.parametrize("data", SAME.values(), ids=SAME)
def test_equal_pods(data: dict[str, Any]) -> None:
    assert parse_pod(data) == parse_pod(PLAIN)


def test_a_number_as_a_quantity() -> None:
    pod = parse_pod(spec(containers=[{"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}}]))
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad(data: object) -> None:
    with pytest.raises(ReviewError, match="object: is not a Pod"):
        parse_pod(data)


def test_the_display_name_of_a_pod_without_a_name() -> None:
    named, making, bare = make_pod("p").build(), make_pod().build(), make_pod().build()
    making["metadata"] = {"generateName": "job-"}
    bare["metadata"] = {}
    assert [pod_display_name(parse_pod(data)) for data in (named, making, bare)] == ["p", "job-*", "(no name)"]
