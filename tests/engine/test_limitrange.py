"""LimitRange: what LimitRanger's validating step would say, in the plain cases."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from tests.make import make_pod
from webhook.engine.limitrange import Amounts, injected, refusals
from webhook.model.objects import LimitRange
from webhook.model.pods import pod_of

GPU = "nvidia.com/gpu"


def limit_range(**item: Any) -> LimitRange:
    """A LimitRange with one item."""
    data = {"metadata": {"name": "lr"}, "spec": {"limits": [{"type": "Container"} | item]}}
    return msgspec.convert(data, LimitRange)


def container(limit: object = None, request: object = None) -> Amounts:
    """A container that asks for GPUs."""
    path = ("spec", "containers", 0)
    limits = {} if limit is None else {GPU: str(limit)}
    return Amounts(path, limits, {GPU: str(request)} if request is not None else dict(limits))


class Case(NamedTuple):
    limits: LimitRange
    containers: list[Amounts]
    words: list[str]


CASES = {
    "at the maximum passes": Case(limit_range(max={GPU: "2"}), [container(2)], []),
    "over the maximum": Case(limit_range(max={GPU: "2"}), [container(3)], ["at most 2"]),
    "under the minimum": Case(limit_range(min={GPU: "2"}), [container(1)], ["at least 2"]),
    "unnamed under a maximum is refused": Case(limit_range(max={GPU: "2"}), [container()], ["at most 2"]),
    "unnamed with a default takes the default": Case(
        limit_range(max={GPU: "2"}, default={GPU: "2"}, defaultRequest={GPU: "2"}), [container()], []
    ),
    "an explicit zero passes a maximum": Case(limit_range(max={GPU: "2"}), [container(0)], []),
    "a ratio refuses zero": Case(limit_range(maxLimitRequestRatio={GPU: "1"}), [container(0)], ["at most 1 times"]),
    "a pod's sum counts": Case(limit_range(type="Pod", max={GPU: "2"}), [container(2), container(1)], ["each Pod"]),
    "a claim's range is not about pods": Case(
        limit_range(type="PersistentVolumeClaim", max={GPU: "0"}), [container(1)], []
    ),
    "an unreadable bound says nothing": Case(limit_range(max={GPU: "many"}), [container(9)], []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_refusals(case: Case) -> None:
    found = refusals([case.limits], case.containers, frozenset({GPU}))
    assert len(found) == len(case.words)
    assert all(word in remark.message for word, remark in zip(case.words, found, strict=True))


NOTE = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
DEFAULTING = limit_range(default={GPU: "4"}, defaultRequest={GPU: "4"})


@pytest.mark.parametrize(
    ("note", "count", "ranges", "want"),
    [
        pytest.param(NOTE, "4", [DEFAULTING], True, id="noted, and the default's amount"),
        pytest.param("", "4", [DEFAULTING], False, id="not noted: the user wrote it"),
        pytest.param(NOTE, "2", [DEFAULTING], False, id="another amount: the user wrote it"),
        pytest.param(NOTE, "4", [], False, id="a forged note without a LimitRange"),
        pytest.param(NOTE.replace("main", "side"), "4", [DEFAULTING], False, id="noted for another container"),
        pytest.param(NOTE.replace(GPU, "cpu"), "4", [DEFAULTING], False, id="noted for another resource"),
    ],
)
def test_injected(note: str, count: str, ranges: list[LimitRange], want: bool) -> None:
    pod = pod_of(make_pod().gpus(count).annotate("kubernetes.io/limit-ranger", note).build())
    assert injected(pod, "main", pod.spec.containers[0].resources, GPU, ranges) is want
