"""The GPU time of existing pods."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.builders import Json, make_pod
from tests.device_builders import allocated, device_class, partitionable_gpus, resource_claim
from tests.example_cluster import view_of, whole_node
from webhook.audit.gpu_time import gpu_time_of_pods
from webhook.policy.fair_share import PodGpuTime

START, END = "2026-06-01T00:00:00Z", "2026-06-01T02:00:00Z"
AT, TILL = (datetime(2026, 6, 1, hour, tzinfo=UTC).timestamp() for hour in (0, 2))
ENDED = [{"state": {"terminated": {"finishedAt": END, "exitCode": 0}}}]
FLEET = view_of(whole_node()).fleet


def on_node(gpus: int = 2, node: str = "whole", **status: Any) -> Json:
    pod = make_pod().gpus(gpus).label("queue", "training").build() if gpus else make_pod().build()
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": START, **status}
    return pod


CASES: dict[str, tuple[Json, list[PodGpuTime]]] = {
    "it runs": (on_node(), [PodGpuTime("team", 2000, AT)]),
    "it has ended": (on_node(phase="Succeeded", containerStatuses=ENDED), [PodGpuTime("team", 2000, AT, TILL)]),
    "it failed without an end time": (on_node(phase="Failed"), [PodGpuTime("team", 2000, AT, AT)]),
    "it requests no GPUs": (on_node(0), []),
    "its node does not exist": (on_node(node="gone"), []),
    "it never started": (on_node(startTime=None), []),
    "nulls": (on_node(containerStatuses=None), [PodGpuTime("team", 2000, AT)]),
    "invalid metadata": ({"kind": "Pod", "metadata": [], "spec": {}}, []),
    "an invalid start time": (on_node(startTime="soon"), []),
}


def condition(kind: str, status: str, since: str = END) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": since}


UNKNOWN = [{"state": {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137, "finishedAt": None}}}]
LATER = "2026-06-01T03:00:00Z"
BEFORE = "2026-06-01T01:00:00Z"
EVICTED = [condition("DisruptionTarget", "True"), condition("Ready", "False", LATER)]
WITHOUT_AN_END: dict[str, tuple[list[Json], Json, float | None]] = {
    "it was evicted": (EVICTED, {}, TILL),
    "it was evicted, and had not been ready for a while": (
        [condition("DisruptionTarget", "True"), condition("Ready", "False", BEFORE)],
        {},
        TILL,
    ),
    "its sandbox was removed": ([condition("PodReadyToStartContainers", "False")], {}, TILL),
    "it is no longer ready": ([condition("Ready", "False"), condition("ContainersReady", "False", LATER)], {}, TILL),
    "it was deleted": ([], {"deletionTimestamp": END}, TILL),
    "it was deleted after it became unready": ([condition("Ready", "False")], {"deletionTimestamp": LATER}, TILL),
    "it was deleted, and never ready": ([condition("Ready", "False", START)], {"deletionTimestamp": END}, TILL),
    "never ready since it was created": (
        [condition("Initialized", "True", BEFORE), condition("Ready", "False", BEFORE)],
        {},
        None,
    ),
    "a condition without a time": ([{"type": "DisruptionTarget", "status": "True"}], {}, None),
    "no sign of the end": ([], {}, None),
}


@pytest.mark.parametrize(("conditions", "metadata", "end"), WITHOUT_AN_END.values(), ids=WITHOUT_AN_END)
def test_pod_whose_containers_have_no_end_time(conditions: list[Json], metadata: Json, end: float | None) -> None:
    pod = on_node(phase="Failed", containerStatuses=UNKNOWN, conditions=conditions)
    pod["metadata"] |= metadata
    notes: list[str] = []

    [use] = gpu_time_of_pods([pod], FLEET, "namespace", notes.append)

    assert (use.start, use.end) == (AT, AT if end is None else end)
    assert [line.partition(":")[2] for line in notes] == [" it ended and has no end time"] * (end is None)


def test_if_only_one_container_has_an_end_time_the_other_may_have_run_longer() -> None:
    one = {"state": {"terminated": {"finishedAt": BEFORE, "exitCode": 0}}}
    evicted = on_node(phase="Failed", containerStatuses=[one, *UNKNOWN], conditions=EVICTED)
    bare = on_node(phase="Failed", containerStatuses=[one, *UNKNOWN])

    assert [use.end - AT for use in gpu_time_of_pods([evicted, bare], FLEET, "namespace", print)] == [7200, 3600]


@pytest.mark.parametrize(("pod", "want"), CASES.values(), ids=CASES)
def test_gpu_time(pod: Json, want: list[PodGpuTime]) -> None:
    assert list(gpu_time_of_pods([pod], FLEET, "namespace", print)) == want


def test_only_an_unreadable_pod_is_skipped() -> None:
    unreadable = on_node(startTime="soon")
    unreadable["metadata"]["name"] = "unreadable"
    notes: list[str] = []
    assert (
        len(
            list(
                gpu_time_of_pods(
                    [unreadable, on_node(), on_node(0), on_node(startTime=None)], FLEET, "namespace", notes.append
                )
            )
        )
        == 1
    )
    [line] = notes
    assert line.startswith("pod team/unreadable is not counted: ")
    assert line.endswith("`$.status.startTime`")


def test_groups_by_a_label_that_only_some_pods_have() -> None:
    bare = on_node()
    bare["metadata"]["labels"] = {}
    assert [use.group for use in gpu_time_of_pods([on_node(), bare], FLEET, "queue", print)] == ["training", ""]


SLICE = allocated("gpus", "gpu-0-mig-1g10gb-1-0")
TEMPLATE = resource_claim("t", device_class_name="gpu") | {"kind": "ResourceClaimTemplate"}
TEMPLATE["spec"] = {"spec": TEMPLATE["spec"]}
CLAIMS = [
    device_class("gpu", "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
    *partitionable_gpus("gpus"),
    resource_claim("c", SLICE, namespace="team"),
    TEMPLATE | {"metadata": {"name": "t", "namespace": "team"}},
]


def with_claim(name: str, *, template: str = "", phase: str = "Running", **metadata: Any) -> Json:
    """Return a pod on a node with one claim: "c", or one of a template."""
    pod = on_node(0, phase=phase, containerStatuses=[{"state": {"terminated": {"finishedAt": END}}}])
    named = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": "c"}
    pod["spec"] |= {"resourceClaims": [{"name": "g", **named}]}
    pod["metadata"] |= {"name": name, **metadata}
    return pod


CLAIMED: dict[str, tuple[list[Json], list[int]]] = {
    "the device of a claim": ([with_claim("p")], [143]),
    "two pods share a claim: the first has it": ([with_claim("p"), with_claim("q")], [143]),
    "a claim that is to be made from a template": ([with_claim("p", template="t")], [1000]),
    "a pod that ended had what its template gives": ([with_claim("p", template="t", phase="Succeeded")], [1000]),
    "others have the claim of a pod that ended": ([with_claim("p", phase="Succeeded"), with_claim("q")], [143]),
    "the template of a pod that ended is gone": ([with_claim("p", template="gone", phase="Succeeded")], []),
}


@pytest.mark.parametrize(("pods", "milli"), CLAIMED.values(), ids=CLAIMED)
def test_claims_count_once(pods: list[Json], milli: list[int]) -> None:
    claims = view_of(*CLAIMS).all_claims
    assert [use.gpu_milli for use in gpu_time_of_pods(pods, FLEET, "namespace", print, claims)] == milli
