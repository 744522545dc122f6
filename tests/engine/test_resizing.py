"""A resize of a running GPU pod: the limits for new pods apply."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_namespace, make_pod
from tests.example_cluster import codes, review, view_of, whole_node
from webhook.model.pods import parse_pod

PER_POD = "perPod: [{resource: memory, max: 64Gi}]"
PER_CONTAINER = "perContainer: [{resource: memory, max: 64Gi}]"
PER_GPU = "perGPU: [{resource: memory, max: 64Gi}]"
FLOOR = "perContainer: [{resource: cpu, min: 2}]"
CHOICE = "perContainer: [{resource: cpu, allowed: [1, 2, 4]}]"


def pod(memory: str = "1Gi", cpu: str = "2", side: str = "") -> Json:
    """Return a pod with a GPU, and a second container whose memory can be set."""
    maker = make_pod().gpus(1).requests("memory", memory)
    maker.main["resources"]["requests"] = {"memory": memory, "cpu": cpu}
    if side:
        maker.container("side", resources={"limits": {"memory": side}})
    return maker.build()


RESIZES = {
    "past a limit of the pod": (PER_POD, pod("1Gi"), pod("500Gi"), ["enforce GPU-L103"]),
    "past a limit of a container": (PER_CONTAINER, pod("1Gi"), pod("500Gi"), ["enforce GPU-L103"]),
    "past a limit of a GPU": (PER_GPU, pod("1Gi"), pod("500Gi"), ["enforce GPU-L103"]),
    "within the limit": (PER_POD, pod("1Gi"), pod("64Gi"), []),
    "from above a limit of the pod to less": (PER_POD, pod("500Gi"), pod("400Gi"), []),
    "from above a limit of a container to less": (PER_CONTAINER, pod("500Gi"), pod("400Gi"), []),
    "above the limit, and only CPU changes": (PER_POD, pod("500Gi"), pod("500Gi", cpu="4"), []),
    "from above the limit to more": (PER_POD, pod("500Gi"), pod("501Gi"), ["enforce GPU-L103"]),
    "one container above its limit, the other grows past its own": (
        PER_CONTAINER,
        pod("500Gi", side="1Gi"),
        pod("400Gi", side="80Gi"),
        ["enforce GPU-L103"],
    ),
    "one container above its limit, the other grows within its own": (
        PER_CONTAINER,
        pod("500Gi", side="1Gi"),
        pod("500Gi", side="2Gi"),
        [],
    ),
    "one container grows, the pod above its limit shrinks": (
        PER_POD,
        pod("100Gi", side="90Gi"),
        pod("120Gi", side="1Gi"),
        [],
    ),
    "below the minimum": (FLOOR, pod(cpu="2"), pod(cpu="1"), ["enforce GPU-L101"]),
    "from below the minimum to more": (FLOOR, pod(cpu="500m"), pod(cpu="1"), []),
    "from an allowed amount to another": (CHOICE, pod(cpu="2"), pod(cpu="3"), ["enforce GPU-L102"]),
    "not an allowed amount, unchanged": (CHOICE, pod(cpu="3"), pod("2Gi", cpu="3"), []),
}


@pytest.mark.parametrize(("limits", "old", "new", "want"), RESIZES.values(), ids=RESIZES)
def test_a_resize(limits: str, old: Json, new: Json, want: list[str]) -> None:
    spec = f"mode: enforce\nlimits: {{{limits}}}"
    view, before = view_of(make_namespace("team"), whole_node()), parse_pod(old)

    assert codes(review(new, spec, view=view, operation="UPDATE", sub_resource="resize", old_pod=before)) == want
    assert codes(review(new, spec, view=view, operation="UPDATE", old_pod=before)) == [], (
        "only a resize changes amounts"
    )


def test_a_resize_of_a_pod_without_gpus_is_not_checked_against_limits() -> None:
    spec, small, large = f"mode: enforce\nlimits: {{{PER_POD}}}", make_pod(), make_pod().requests("memory", "500Gi")
    decision = review(large, spec, operation="UPDATE", sub_resource="resize", old_pod=parse_pod(small.build()))

    assert codes(decision) == codes(review(large, spec)) == []
