"""Pods as they come: deaf to strangers, nulls taken as absent, and a sentence for what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.make import make_pod
from webhook.errors import ReviewError
from webhook.model.pods import decode_pod, name_of, pod_of

GOOD: dict[str, dict[str, Any]] = {
    "no more than its two parts": {},
    "nulls where lists and maps go": {
        "metadata": {"labels": None},
        "spec": {"containers": None, "nodeSelector": None, "tolerations": [None]},
    },
    "fields of a later Kubernetes": {"spec": {"newField": {"a": 1}, "containers": [{"name": "a", "newer": [1]}]}},
    "a number where a quantity goes": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}},
}
BAD = {
    "no map": b"[]",
    "no parts": b"{}",
    "text for a list": b'{"metadata": {}, "spec": {"containers": "one"}}',
    "a number for a name": b'{"metadata": {"name": 1}, "spec": {}}',
    "no JSON": b"{",
    "broken text": b'{"metadata": {"name": "\xff"}}',
    "too deep": b'{"a":' * 100_000,
}


@pytest.mark.parametrize("data", GOOD.values(), ids=GOOD)
def test_good(data: dict[str, Any]) -> None:
    data = {"metadata": {}, "spec": {}} | data
    assert decode_pod(json.dumps(data).encode()) == pod_of(data)


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD)
def test_bad(raw: bytes) -> None:
    with pytest.raises(ReviewError, match="object: is not "):
        decode_pod(raw)


def test_a_pod_without_a_name_is_called_by_what_it_has() -> None:
    named, making, bare = make_pod("p").build(), make_pod().build(), make_pod().build()
    making["metadata"] = {"generateName": "job-"}
    bare["metadata"] = {}
    assert [name_of(pod_of(data)) for data in (named, making, bare)] == ["p", "job-*", "(no name)"]
