"""Injected GPUs: reported, kept or removed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.example_cluster import apply_patch, codes, mig_node, review, view_of, whole_node
from webhook.model.cluster_view import ClusterView
from webhook.model.defaulting import default_pod_data
from webhook.model.pods import parse_pod

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NOTE = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
LIMITS = "mode: enforce\nlimits: {}"
REMOVE = "mode: enforce\nlimits: {limitRangeInjected: remove}"
KEEP = "mode: enforce\nlimits: {limitRangeInjected: keep}"
RIGHT_SIZE = "mode: enforce\nrightSizing: {}"
ZERO = {GPU: "0"}


def view_with_limit_ranges(*items: Json, nodes: tuple[Json, ...] = ()) -> ClusterView:
    """Return a view of a namespace with one LimitRange."""
    spec = {"limits": [{"type": "Container"} | item for item in items]}
    found = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "trap", "namespace": "team"}, "spec": spec}
    return view_of(make_namespace("team"), found, whole_node(), *nodes)


TRAP = view_with_limit_ranges({"max": {GPU: "4"}})
GIVEN = make_pod().gpus(4).annotate("kubernetes.io/limit-ranger", NOTE)


def test_future_injection_is_reported() -> None:
    decision = review(make_pod(), LIMITS, view=TRAP)
    assert codes(decision) == ["warn GPU-L202"]
    assert decision.findings[0].message == (
        "LimitRange 'trap' adds nvidia.com/gpu to container main, which does not request it"
    )


def test_a_policy_for_gpu_pods_applies_to_injected_gpus() -> None:
    about = "match: {resources: [nvidia.com/gpu]}\n" + LIMITS
    assert codes(review(make_pod(), about, view=TRAP)) == ["warn GPU-L202"]


def test_keep_reports_nothing() -> None:
    assert codes(review(make_pod(), KEEP, view=TRAP)) == []
    assert codes(review(GIVEN, KEEP, view=TRAP)) == []


@pytest.mark.parametrize(
    "pod", [pytest.param(make_pod(), id="as it is written"), pytest.param(GIVEN, id="as LimitRanger leaves it")]
)
def test_injected_gpus_are_removed_with_zeros(pod: PodMaker) -> None:
    decision = review(pod, REMOVE, view=TRAP)
    after = apply_patch(pod, decision)
    assert after["spec"]["containers"][0]["resources"] == {"limits": ZERO, "requests": ZERO}
    assert "it is removed" in decision.findings[0].message
    assert not review(after, REMOVE, view=TRAP).patch


def test_requested_gpus_stay() -> None:
    pod = make_pod().gpus(4)
    assert not review(pod, REMOVE, view=TRAP).patch


def test_gpus_of_one_of_two_limit_ranges_are_removed() -> None:
    """LimitRanger's annotation names only the other LimitRange; `managedFields` tell what the user wrote."""
    cpu = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    other = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "z-cpu", "namespace": "team"}, "spec": cpu}
    spec = {"limits": [{"type": "Container", "max": {GPU: "4"}}]}
    trap = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "trap", "namespace": "team"}, "spec": spec}
    view = view_of(make_namespace("team"), trap, other, whole_node())
    pod = default_pod_data(make_pod().build(), view.ranges("team"))
    decision = review(pod, REMOVE, view=view)
    assert apply_patch(pod, decision)["spec"]["containers"][0]["resources"]["limits"] == {GPU: "0", "cpu": "1"}
    assert [finding.code for finding in decision.findings] == ["GPU-L202"]
    assert not review(default_pod_data(make_pod().gpus(4).build(), view.ranges("team")), REMOVE, view=view).patch


MIXING = "mode: enforce\nsecurity: {deny: [mixedGPURequests]}"
TWO_TRAPS = view_with_limit_ranges({"max": {GPU: "4", SMALL: "1"}})
MIXED: dict[str, tuple[PodMaker, ClusterView, str, str]] = {
    "a requested slice and injected whole GPUs": (
        make_pod().gpus(4).requests(SMALL, "1").annotate("kubernetes.io/limit-ranger", NOTE),
        TRAP,
        "LimitRange 'trap' adds nvidia.com/gpu",
        'Write nvidia.com/gpu: "0" in its requests and limits.',
    ),
    "both injected": (
        make_pod()
        .gpus(4)
        .requests(SMALL, "1")
        .annotate("kubernetes.io/limit-ranger", NOTE.replace(GPU, f"{GPU}, {SMALL}")),
        TWO_TRAPS,
        "LimitRange 'trap' adds nvidia.com/gpu, LimitRange 'trap' adds nvidia.com/mig-1g.10gb",
        'Write nvidia.com/gpu: "0" and nvidia.com/mig-1g.10gb: "0" in its requests and limits.',
    ),
    "both requested": (
        make_pod().gpus(4).requests(SMALL, "1"),
        TRAP,
        "",
        "Request one kind of GPU in a container.",
    ),
}


@pytest.mark.parametrize(("pod", "view", "put_in", "fix"), MIXED.values(), ids=MIXED)
def test_mixed_gpus_by_injection_name_the_limit_range_and_the_fix(
    pod: PodMaker, view: ClusterView, put_in: str, fix: str
) -> None:
    (denied,) = review(pod, MIXING, view=view).denials
    message = "a container must request one kind of GPU, found 'nvidia.com/gpu and nvidia.com/mig-1g.10gb'"
    assert (denied.message, denied.fix) == (f"{message}; {put_in}" if put_in else message, fix)


def test_the_fix_of_mixed_gpus_works() -> None:
    assert not review(make_pod().gpus(0).requests(SMALL, "1"), MIXING, view=TRAP).denials


def one_given() -> PodMaker:
    """Return a pod with one requested and one injected GPU."""
    pod = make_pod().gpus(1).container("side", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}})
    return pod.annotate("kubernetes.io/limit-ranger", NOTE.replace("main", "side"))


GIVES_ONE = view_with_limit_ranges({"max": {GPU: "1"}}, nodes=(mig_node(),))
COUNTED: dict[str, tuple[PodMaker, tuple[str, ...], tuple[int, int, int]]] = {
    "with a requested one": (one_given(), (REMOVE,), (2000, 1000, 1000)),
    "kept": (one_given(), (KEEP,), (2000, 2000, 2000)),
    "reported": (one_given(), (LIMITS,), (2000, 2000, 2000)),
    "the requested one is right-sized": (one_given().needs("8Gi"), (REMOVE, RIGHT_SIZE), (2000, 143, 143)),
    "nothing is requested": (
        make_pod().gpus(1).annotate("kubernetes.io/limit-ranger", NOTE),
        (REMOVE,),
        (1000, 0, 0),
    ),
    "not injected yet": (make_pod().gpus(1).container("side"), (REMOVE,), (1000, 1000, 1000)),
    "with a node name": (one_given().spec(nodeName="whole"), (REMOVE,), (2000, 1000, 1000)),
    "two of them with a requesting init container": (
        make_pod()
        .gpus(1)
        .container("side", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}})
        .annotate("kubernetes.io/limit-ranger", NOTE + "; " + NOTE.split(": ")[1].replace("main", "side"))
        .container("i", kind="initContainers", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}}),
        (REMOVE,),
        (2000, 1000, 1000),
    ),
    "with a requesting sidecar": (
        make_pod()
        .gpus(1)
        .annotate("kubernetes.io/limit-ranger", NOTE)
        .container(
            "s", kind="initContainers", restartPolicy="Always", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}}
        ),
        (REMOVE,),
        (2000, 1000, 1000),
    ),
}


@pytest.mark.parametrize(("pod", "policies", "want"), COUNTED.values(), ids=COUNTED)
def test_removed_gpus_do_not_count(pod: PodMaker, policies: tuple[str, ...], want: tuple[int, int, int]) -> None:
    roomy = "mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 9000}]}"
    decision = review(pod, *policies, roomy, view=GIVES_ONE)
    assert (
        decision.gpu_milli_before,
        decision.gpu_milli_after,
        sum(milli for _, milli in decision.quota_charge),
    ) == want


def test_a_shared_quota_counts_gpus_after_removal_and_all_gpus_of_a_stored_pod() -> None:
    pod = one_given().build()
    full = "mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 1000}]}"
    assert codes(review(pod, REMOVE, full, view=GIVES_ONE)) == ["warn GPU-L202"]
    pod["metadata"]["uid"] = "0a1b"
    final = review(pod, REMOVE, full, view=GIVES_ONE)
    assert codes(final) == ["warn GPU-L202", "enforce GPU-Q303"]
    assert (final.patch, final.gpu_milli_after) == ((), 2000), "no webhook removes anything now"
    assert final.findings[0].fix == 'Write nvidia.com/gpu: "0" in the limits of the container.'


REFUSING = {
    "at least one": {"default": {GPU: "1"}, "min": {GPU: "1"}},
    "a ratio": {"default": {GPU: "1"}, "maxLimitRequestRatio": {GPU: "1"}},
}


@pytest.mark.parametrize("item", REFUSING.values(), ids=REFUSING)
def test_zeros_that_would_be_rejected_are_not_written(item: Json) -> None:
    decision = review(make_pod(), REMOVE, view=view_with_limit_ranges(item))
    assert not decision.patch
    assert "it cannot be removed" in decision.findings[0].message
    assert "(LimitRange 'trap') at spec.containers[0].resources" in decision.findings[0].message


def test_the_rest_of_the_pod_is_right_sized() -> None:
    pod = make_pod().gpus(1).needs("8Gi").container("side")
    decision = review(pod, REMOVE, RIGHT_SIZE, view=view_with_limit_ranges({"max": {GPU: "4"}}, nodes=(mig_node(),)))
    main, side = (container["resources"] for container in apply_patch(pod, decision)["spec"]["containers"])
    assert main["limits"] == {GPU: "0", SMALL: "1"}
    assert side == {"limits": ZERO, "requests": ZERO}


SAID: dict[str, tuple[PodMaker, Json, list[str]]] = {
    "CPU over its maximum": (make_pod().requests("cpu", "8"), {"max": {"cpu": "4"}}, ["enforce GPU-L201"]),
    "CPU within its bounds": (make_pod().requests("cpu", "2"), {"max": {"cpu": "4"}}, []),
    "CPU without a request gets the maximum": (make_pod(), {"max": {"cpu": "4"}}, []),
    "memory under its minimum": (
        make_pod().requests("memory", "1Mi"),
        {"min": {"memory": "64Mi"}},
        ["enforce GPU-L201"],
    ),
    "a GPU minimum alone makes pods invalid": (
        make_pod(),
        {"min": {GPU: "1"}},
        ["warn GPU-L202", "enforce GPU-L203"],
    ),
}


@pytest.mark.parametrize(("pod", "item", "want"), SAID.values(), ids=SAID)
def test_pods_without_gpus_get_limit_range_findings(pod: PodMaker, item: Json, want: list[str]) -> None:
    assert codes(review(pod, LIMITS, view=view_with_limit_ranges(item))) == want


def test_an_update_is_not_checked_against_limit_ranges() -> None:
    assert (
        codes(
            review(
                make_pod().requests("cpu", "8"),
                LIMITS,
                view=view_with_limit_ranges({"max": {"cpu": "4"}}),
                operation="UPDATE",
            )
        )
        == []
    )


def test_a_rewrite_that_a_limit_range_rejects_is_not_made() -> None:
    pod = make_pod().gpus(1).needs("8Gi")
    decision = review(
        pod, RIGHT_SIZE, view=view_with_limit_ranges({"min": {GPU: "1"}, "max": {GPU: "2"}}, nodes=(mig_node(),))
    )
    assert not decision.patch
    assert "minimum nvidia.com/gpu usage per Container is 1, but request is 0 (LimitRange 'trap')" in str(
        decision.outcome
    )
    assert "spec.containers[0].resources.requests" in str(decision.outcome)


def test_a_deadline_that_moves_a_pod_into_a_full_quota_is_reported() -> None:
    hard: dict[str, Any] = {"hard": {"pods": "0"}}
    full = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": "team"},
        "spec": hard | {"scopes": ["Terminating"]},
        "status": hard | {"used": {"pods": "0"}},
    }
    view = view_of(make_namespace("team"), full)
    old = parse_pod(make_pod().build())
    ends = make_pod().spec(activeDeadlineSeconds=60)
    assert codes(review(ends, LIMITS, view=view, operation="UPDATE", old_pod=old)) == ["enforce GPU-Q301"]
    assert codes(review(make_pod(), LIMITS, view=view, operation="UPDATE", old_pod=old)) == []
    assert codes(review(ends, LIMITS, view=view, operation="UPDATE", old_pod=parse_pod(ends.build()))) == []


def test_a_quota_exceeded_by_a_pod_without_gpus_is_reported() -> None:
    hard: dict[str, Any] = {"hard": {"pods": "0"}}
    full = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": "team"},
        "spec": hard,
        "status": hard | {"used": {"pods": "0"}},
    }
    assert codes(review(make_pod(), LIMITS, view=view_of(make_namespace("team"), full))) == ["enforce GPU-Q301"]
