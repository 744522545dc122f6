"""Evaluate: checks that depend on the final size of a pod, and on the origin of a request."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import A100, codes, mig_node, review, view_of, whole_node
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.pools import total_milli

GPU, SMALL, SHARED = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
ONE_NAMESPACE = "mode: enforce\nsecurity: {deny: [sharedProcessNamespace]}"
TURNS = make_node("turns", A100 | {"nvidia.com/gpu.replicas": "4"}, **{GPU: 32})


def together() -> PodMaker:
    """Return a pod whose containers share a process namespace."""
    return make_pod().spec(shareProcessNamespace=True)


SHARES = {
    "no GPU": (together(), whole_node(), False),
    "a whole card": (together().gpus(1), whole_node(), False),
    "a share by its name": (together().requests(SHARED, "1"), whole_node(), True),
    "a share by the nodes' configuration": (together().gpus(1), TURNS, True),
    "a share without a common namespace": (make_pod().requests(SHARED, "1"), whole_node(), False),
}


@pytest.mark.parametrize(("pod", "node", "found"), SHARES.values(), ids=SHARES)
def test_a_common_process_namespace_on_a_shared_card(pod: PodMaker, node: Json, found: bool) -> None:
    denials = review(pod, ONE_NAMESPACE, nodes=(node,)).denials
    assert [finding.code for finding in denials] == (["GPU-S205"] if found else [])


RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "defaults", "namespace": "team"},
    "spec": {"limits": [{"type": "Container", "default": {GPU: "1"}, "defaultRequest": {GPU: "1"}}]},
}
NOTE = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
AT_LEAST_TWO = "mode: enforce\nlimits: {perPod: [{resource: nvidia.com/gpu, min: 2}]}"
NOTED = make_pod().gpus(1).annotate("kubernetes.io/limit-ranger", NOTE)


def view_with_limit_range(*nodes: Json) -> ClusterView:
    """Return a view of a namespace whose LimitRange adds a GPU to containers that set none."""
    return view_of(make_namespace("team"), RANGE, *nodes)


def test_injected_requests_are_reported_and_not_checked() -> None:
    assert codes(review(NOTED, AT_LEAST_TWO, view=view_with_limit_range())) == ["warn GPU-L202"]


def test_user_requests_next_to_injected_ones_are_checked() -> None:
    pod = make_pod().gpus(1).annotate("kubernetes.io/limit-ranger", NOTE)
    pod.container("side", resources={"limits": {GPU: "1"}})
    at_least_three = AT_LEAST_TWO.replace("min: 2", "min: 3")
    assert codes(review(pod, at_least_three, view=view_with_limit_range())) == ["enforce GPU-L101", "warn GPU-L202"]
    assert "found 1)" in review(pod, at_least_three, view=view_with_limit_range()).denials[0].message


FORGED = {
    "no LimitRange has such a default": (NOTED, view_of(make_namespace("team"))),
    "the annotation names another container": (
        make_pod().gpus(1).annotate("kubernetes.io/limit-ranger", NOTE.replace("main", "side")),
        view_with_limit_range(),
    ),
    "there is no annotation": (make_pod().gpus(1), view_with_limit_range()),
}


@pytest.mark.parametrize(("pod", "view"), FORGED.values(), ids=FORGED)
def test_an_amount_counts_as_requested_by_the_user(pod: PodMaker, view: ClusterView) -> None:
    assert codes(review(pod, AT_LEAST_TWO, view=view)) == ["enforce GPU-L101"]


def test_quota_and_limit_ranges_can_be_left_to_the_api_server() -> None:
    ignoring = "mode: enforce\nlimits: {limitRanges: ignore, resourceQuotas: ignore}"
    strict = RANGE | {"spec": {"limits": [{"type": "Container", "max": {GPU: "1"}}]}}
    view = view_of(make_namespace("team"), strict, whole_node())
    assert codes(review(make_pod().gpus(2), "mode: enforce\nlimits: {}", view=view)) == ["enforce GPU-L201"]
    assert codes(review(make_pod().gpus(2), ignoring, view=view)) == []


MILLI = {
    "whole cards": ({GPU: 2}, 2000),
    "a slice that is offered": ({SMALL: 1}, 143),
    "a slice that no node offers, by its slices of seven": ({"nvidia.com/mig-3g.20gb": 2}, 858),
    "a slice larger than seven counts as a card": ({"nvidia.com/mig-9g.90gb": 1}, 1000),
    "a share that no node offers counts as a card": ({SHARED: 1}, 1000),
    "together": ({GPU: 1, SMALL: 2}, 1286),
    "nothing": ({}, 0),
}


@pytest.mark.parametrize(("totals", "want"), MILLI.values(), ids=MILLI)
def test_gpu_milli_of_resources(totals: dict[str, int], want: int) -> None:
    assert total_milli(totals, view_of(mig_node()).fleet) == want


def test_a_gpu_that_a_limit_range_injected_is_not_right_sized() -> None:
    pod = NOTED.build()
    pod["metadata"]["annotations"]["rightslice.dev/gpu-memory"] = "8Gi"
    for view, why in (
        (view_with_limit_range(mig_node()), KeepReason.INJECTED),
        (view_of(make_namespace("team"), mig_node()), None),
    ):
        decision = review(pod, "mode: enforce\nrightSizing: {}", view=view)
        assert decision.applied is (why is None)
        assert why is None or decision.outcome == KeepRequest(why)


TWO = {
    "of the same kind": {GPU: "1"},
    "of another kind": {SMALL: "1"},
}


@pytest.mark.parametrize("given", TWO.values(), ids=TWO)
def test_a_second_gpu_that_a_limit_range_injected_is_the_reason_that_is_given(given: Json) -> None:
    """The reason must not be that several GPUs are kept: the user requested one."""
    (name,) = given
    note = NOTE.replace("main", "side").replace(GPU, name)
    pod = make_pod().gpus(1).needs("8Gi").annotate("kubernetes.io/limit-ranger", note)
    pod.container("side", resources={"limits": given, "requests": given})
    spec = {"limits": [{"type": "Container", "default": given, "defaultRequest": given}]}
    view = view_of(make_namespace("team"), RANGE | {"spec": spec}, mig_node())

    assert review(pod, "mode: enforce\nrightSizing: {}", view=view).outcome == KeepRequest(KeepReason.INJECTED)
