"""guard: the annotations that only Rightslice writes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_pod
from tests.engine.guard_violations import find_violations, names
from webhook.model.annotations import (
    DECISION_ANNOTATION,
    ORIGINAL_ANNOTATION,
    parse_decision_record,
    parse_original_resources,
)

WRITTEN = {
    "policies": ["research-baseline"],
    "digest": "0123456789ab",
    "changed": ["resources", "tolerations"],
    "need": "8Gi declared",
    "resource": "nvidia.com/mig-1g.10gb",
    "at": "2026-06-01T00:00:00Z",
}
INJECTED = {"policies": ["research-baseline"], "digest": "0123456789ab", "changed": ["tolerations"]}
BEFORE = {"main": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}


def right_sized_pod() -> PodMaker:
    """Return a pod that was right-sized; the whole GPU stays as "0"."""
    return make_pod().requests("nvidia.com/gpu", "0").requests("nvidia.com/mig-1g.10gb", "1")


def recorded(pod: PodMaker, decision: Any = WRITTEN, original: Any = BEFORE) -> Json:
    """Return the pod with records; text is used as it is, None omits a record."""
    for key, value in ((DECISION_ANNOTATION, decision), (ORIGINAL_ANNOTATION, original)):
        if value is not None:
            pod.annotate(key, value if isinstance(value, str) else json.dumps(value))
    return pod.build()


class Case(NamedTuple):
    pod: Json
    error: str
    """The error in the message; "" for records that Rightslice wrote."""


CASES = {
    "both records of a right-sized pod": Case(recorded(right_sized_pod()), ""),
    "a decision about injection only": Case(recorded(make_pod().gpus(1), INJECTED, None), ""),
    "a decision that gave a slice to an init container": Case(
        recorded(
            make_pod().container("warm", kind="initContainers", resources={"limits": {"nvidia.com/mig-1g.10gb": 1}}),
            original=None,
        ),
        "",
    ),
    "a decision that was copied from a pod with a slice": Case(
        recorded(make_pod().gpus(1), original=None), "'nvidia.com/mig-1g.10gb', which no container requests"
    ),
    "a decision that was copied to a pod whose slice is 0": Case(
        recorded(make_pod().requests("nvidia.com/mig-1g.10gb", "0"), original=None), "which no container requests"
    ),
    "a decision without the optional keys": Case(
        recorded(make_pod(), {"policies": [], "digest": "0123456789ab", "changed": []}, None), ""
    ),
    "the original of a container that kept its whole GPU": Case(
        recorded(make_pod().gpus(1), WRITTEN | {"resource": "nvidia.com/gpu"}), ""
    ),
    "the original of an init container": Case(
        recorded(
            make_pod().container("warm", kind="initContainers", resources={"limits": {"nvidia.com/mig-1g.10gb": 1}}),
            original={"warm": {"limits": {"nvidia.com/gpu": 1}}},
        ),
        "",
    ),
    "a decision that is not JSON": Case(recorded(right_sized_pod(), decision="exempt"), "'exempt'"),
    "a decision that is a list": Case(recorded(right_sized_pod(), decision=["x"]), "'[\"x\"]'"),
    "a decision without policies": Case(
        recorded(right_sized_pod(), {"digest": "0123456789ab", "changed": []}), "digest"
    ),
    "a decision with a short digest": Case(recorded(right_sized_pod(), WRITTEN | {"digest": "0123"}), "policies"),
    "a decision with a digest in capitals": Case(
        recorded(right_sized_pod(), WRITTEN | {"digest": "0123456789AB"}), "policies"
    ),
    "an original without a decision": Case(
        recorded(right_sized_pod(), decision=None), f"it without {DECISION_ANNOTATION}"
    ),
    "an original that is not JSON": Case(recorded(right_sized_pod(), original="{"), "'{'"),
    "a deeply nested original": Case(recorded(right_sized_pod(), original="[" * 100_000), "'[[["),
    "an original of a missing container": Case(
        recorded(right_sized_pod(), original={"side": BEFORE["main"]}), "the container 'side'"
    ),
    "an original without a whole GPU": Case(
        recorded(right_sized_pod(), original={"main": {"limits": {"cpu": "1"}}}), "no whole GPU"
    ),
    "an original of no GPUs": Case(
        recorded(right_sized_pod(), original={"main": {"limits": {"nvidia.com/gpu": "0"}}}), "no whole GPU"
    ),
    "an original of half a GPU": Case(
        recorded(right_sized_pod(), original={"main": {"limits": {"nvidia.com/gpu": "0.5"}}}), "no whole GPU"
    ),
    "an original of a pod without a GPU request": Case(recorded(make_pod(), INJECTED), "no GPU request left"),
    "an original of a pod whose only GPU is 0": Case(
        recorded(make_pod().requests("nvidia.com/gpu", "0"), INJECTED), "no GPU request left"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_record_on_create(case: Case) -> None:
    found = find_violations(case.pod)
    assert names(found) == (["forgedAnnotations"] if case.error else [])
    assert all(case.error in violation.message for _, violation in found)


def test_two_forged_records_are_two_findings() -> None:
    found = find_violations(recorded(right_sized_pod(), "x", "y"))
    assert [violation.path[-1] for _, violation in found] == [DECISION_ANNOTATION, ORIGINAL_ANNOTATION]


PLAIN = make_pod().gpus(1).build()
OURS = recorded(right_sized_pod())
UPDATES: dict[str, tuple[Json, Json, list[Any]]] = {
    "both stay": (OURS, recorded(right_sized_pod().label("a", "b")), []),
    "one is removed": (OURS, recorded(right_sized_pod(), original=None), ["annotations"]),
    "both are removed": (OURS, right_sized_pod().build(), ["annotations", "annotations"]),
    "one is changed to another valid record": (
        OURS,
        recorded(right_sized_pod(), WRITTEN | {"need": "1Gi declared"}),
        [DECISION_ANNOTATION],
    ),
    "one is added to a running pod": (PLAIN, recorded(make_pod().gpus(1), original=None), [DECISION_ANNOTATION]),
    "an earlier forged one stays": (
        recorded(make_pod(), "x", None),
        recorded(make_pod().label("a", "b"), "x", None),
        [],
    ),
}


@pytest.mark.parametrize(("old", "new", "want"), UPDATES.values(), ids=UPDATES)
def test_a_record_on_update(old: Json, new: Json, want: list[Any]) -> None:
    found = find_violations(new, old=old)
    assert names(found) == ["forgedAnnotations"] * len(want)
    assert [violation.path[-1] for _, violation in found] == want


def test_records_are_read_back() -> None:
    decision, original = parse_decision_record(json.dumps(WRITTEN)), parse_original_resources(json.dumps(BEFORE))
    assert decision is not None
    assert (decision.policies, decision.need) == (("research-baseline",), "8Gi declared")
    assert original is not None
    assert original["main"].limits == {"nvidia.com/gpu": "1"}


KAI = {"schedulerName": "kai-scheduler"}
INJECTING = {
    "GKE's device injector": ("devices.gke.io/container.main", {}, ["deviceAnnotations"]),
    "the example plug-in of NRI": ("devices.nri.io/container.main", {}, ["deviceAnnotations"]),
    "the same under its new name": ("devices.noderesource.dev/pod", {}, ["deviceAnnotations"]),
    "without a container": ("devices.noderesource.dev", {}, ["deviceAnnotations"]),
    "mounts of the host": ("mounts.nri.io/container.main", {}, ["deviceAnnotations"]),
    "CDI devices by NRI": ("cdi-devices.nri.io/container.main", {}, ["deviceAnnotations"]),
    "GKE's networks": ("networking.gke.io/interfaces", {}, []),
    "another domain with that ending": ("devices.gke.io.example.com/container.main", {}, []),
    "a fraction of KAI": ("gpu-fraction", KAI, ["fractionAnnotations"]),
    "memory of Run:ai": ("gpu-memory", {"schedulerName": "runai-scheduler"}, ["fractionAnnotations"]),
    "memory of one container": ("nvidia.com/container.main.gpu-memory.request", KAI, ["fractionAnnotations"]),
    "a limit of memory of one container": ("nvidia.com/container.main.gpu-memory.limit", KAI, ["fractionAnnotations"]),
    "another annotation of a container": ("nvidia.com/container.main.gpus.devices", KAI, []),
    "a fraction that no scheduler reads": ("gpu-fraction", {}, []),
    "a fraction that the default scheduler ignores": ("gpu-memory", {"schedulerName": "default-scheduler"}, []),
}


@pytest.mark.parametrize(("key", "spec", "expected"), INJECTING.values(), ids=INJECTING)
def test_an_annotation_that_gives_devices(key: str, spec: Json, expected: list[str]) -> None:
    pod = make_pod().annotate(key, "- path: /dev/nvidia0").spec(**spec)
    assert names(find_violations(pod.build())) == expected
    privileged = pod.container("x", securityContext={"privileged": True})
    assert names(find_violations(privileged.build())) == [*expected, *(["privileged"] if expected else [])]
