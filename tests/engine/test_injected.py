"""GPUs that a LimitRange gives to containers that never asked: told, kept or taken out, for good."""

from __future__ import annotations

from typing import Any

import pytest

from tests.make import Json, PodMaker, make_namespace, make_pod
from tests.world import ask, codes, mig_node, shaped, view_of, whole_node
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import parse_pod

GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
NOTE = "LimitRanger plugin set: nvidia.com/gpu request for container main; nvidia.com/gpu limit for container main"
LIMITS = "mode: enforce\nlimits: {}"
REMOVE = "mode: enforce\nlimits: {limitRangeInjected: remove}"
KEEP = "mode: enforce\nlimits: {limitRangeInjected: keep}"
RIGHT_SIZE = "mode: enforce\nrightSizing: {}"
ZERO = {GPU: "0"}


def limited(*items: Json, nodes: tuple[Json, ...] = ()) -> ClusterView:
    """A namespace with one LimitRange."""
    spec = {"limits": [{"type": "Container"} | item for item in items]}
    found = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "trap", "namespace": "team"}, "spec": spec}
    return view_of(make_namespace("team"), found, whole_node(), *nodes)


TRAP = limited({"max": {GPU: "4"}})
GIVEN = make_pod().gpus(4).annotate("kubernetes.io/limit-ranger", NOTE)


def test_a_pod_without_gpus_in_the_trap_is_told_before_it_gets_them() -> None:
    decision = ask(make_pod(), LIMITS, view=TRAP)
    assert codes(decision) == ["warn GPU-L202"]
    assert decision.findings[0].message == (
        "LimitRange trap adds nvidia.com/gpu to container main, which does not request it"
    )


def test_a_policy_that_is_about_gpus_speaks_about_what_will_be_given() -> None:
    about = "match: {resources: [nvidia.com/gpu]}\n" + LIMITS
    assert codes(ask(make_pod(), about, view=TRAP)) == ["warn GPU-L202"]


def test_nothing_is_said_of_what_is_to_be_kept() -> None:
    assert codes(ask(make_pod(), KEEP, view=TRAP)) == []
    assert codes(ask(GIVEN, KEEP, view=TRAP)) == []


@pytest.mark.parametrize(
    "pod", [pytest.param(make_pod(), id="as it is written"), pytest.param(GIVEN, id="as LimitRanger leaves it")]
)
def test_what_nobody_asked_for_is_taken_out_with_a_pair_of_zeros(pod: PodMaker) -> None:
    decision = ask(pod, REMOVE, view=TRAP)
    after = shaped(pod, decision)
    assert after["spec"]["containers"][0]["resources"] == {"limits": ZERO, "requests": ZERO}
    assert "it is removed" in decision.findings[0].message
    assert not ask(after, REMOVE, view=TRAP).patch


def test_what_a_user_asked_for_stays() -> None:
    pod = make_pod().gpus(4)
    assert not ask(pod, REMOVE, view=TRAP).patch


MIXING = "mode: enforce\nsecurity: {deny: [mixedGPURequests]}"
TWO_TRAPS = limited({"max": {GPU: "4", SMALL: "1"}})
MIXED: dict[str, tuple[PodMaker, ClusterView, str, str]] = {
    "a slice that the user asks for, and whole GPUs that a LimitRange gives": (
        make_pod().gpus(4).asks(SMALL, "1").annotate("kubernetes.io/limit-ranger", NOTE),
        TRAP,
        "LimitRange trap adds nvidia.com/gpu",
        'Write nvidia.com/gpu: "0" in its requests and limits.',
    ),
    "both given": (
        make_pod()
        .gpus(4)
        .asks(SMALL, "1")
        .annotate("kubernetes.io/limit-ranger", NOTE.replace("gpu req", f"gpu, {SMALL} req")),
        TWO_TRAPS,
        "LimitRange trap adds nvidia.com/gpu, LimitRange trap adds nvidia.com/mig-1g.10gb",
        'Write nvidia.com/gpu: "0" and nvidia.com/mig-1g.10gb: "0" in its requests and limits.',
    ),
    "both asked for, in a namespace with the trap": (
        make_pod().gpus(4).asks(SMALL, "1"),
        TRAP,
        "",
        "Request one kind of GPU in a container.",
    ),
}


@pytest.mark.parametrize(("pod", "view", "put_in", "fix"), MIXED.values(), ids=MIXED)
def test_a_mixture_that_a_limit_range_makes_names_it_and_the_way_out(
    pod: PodMaker, view: ClusterView, put_in: str, fix: str
) -> None:
    (denied,) = ask(pod, MIXING, view=view).denials
    message = "a container must request one kind of GPU, found 'nvidia.com/gpu and nvidia.com/mig-1g.10gb'"
    assert (denied.message, denied.fix) == (f"{message}; {put_in}" if put_in else message, fix)


def test_the_way_out_of_a_mixture_leads_out() -> None:
    assert not ask(make_pod().gpus(0).asks(SMALL, "1"), MIXING, view=TRAP).denials


def one_given() -> PodMaker:
    """One GPU that the user asks for, and one that LimitRanger put in."""
    pod = make_pod().gpus(1).container("side", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}})
    return pod.annotate("kubernetes.io/limit-ranger", NOTE.replace("main", "side"))


GIVES_ONE = limited({"max": {GPU: "1"}}, nodes=(mig_node(),))
COUNTED: dict[str, tuple[PodMaker, tuple[str, ...], tuple[int, int, int]]] = {
    "beside one that is asked for": (one_given(), (REMOVE,), (2000, 1000, 1000)),
    "kept": (one_given(), (KEEP,), (2000, 2000, 2000)),
    "told": (one_given(), (LIMITS,), (2000, 2000, 2000)),
    "the one that is asked for is right-sized": (one_given().needs("8Gi"), (REMOVE, RIGHT_SIZE), (2000, 143, 143)),
    "nothing is asked for": (
        make_pod().gpus(1).annotate("kubernetes.io/limit-ranger", NOTE),
        (REMOVE,),
        (1000, 0, 0),
    ),
    "not put in yet": (make_pod().gpus(1).container("side"), (REMOVE,), (1000, 1000, 1000)),
    "on a node that it names": (one_given().spec(nodeName="whole"), (REMOVE,), (2000, 1000, 1000)),
    "two of them beside an init container that asks": (
        make_pod()
        .gpus(1)
        .container("side", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}})
        .annotate("kubernetes.io/limit-ranger", NOTE + "; " + NOTE.split(": ")[1].replace("main", "side"))
        .container("i", kind="initContainers", resources={"limits": {GPU: "1"}, "requests": {GPU: "1"}}),
        (REMOVE,),
        (2000, 1000, 1000),
    ),
    "beside a sidecar that asks": (
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
def test_what_is_taken_out_counts_no_more(pod: PodMaker, policies: tuple[str, ...], want: tuple[int, int, int]) -> None:
    roomy = "mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 9000}]}"
    decision = ask(pod, *policies, roomy, view=GIVES_ONE)
    assert (decision.gpu_milli_before, decision.gpu_milli_after, sum(milli for _, milli in decision.weight)) == want


def test_a_shared_quota_counts_what_is_left_and_of_a_final_pod_what_it_has() -> None:
    pod = one_given().build()
    full = "mode: enforce\nquotas: {shared: [{name: lab, gpuMilli: 1000}]}"
    assert codes(ask(pod, REMOVE, full, view=GIVES_ONE)) == ["warn GPU-L202"]
    pod["metadata"]["uid"] = "0a1b"
    final = ask(pod, REMOVE, full, view=GIVES_ONE)
    assert codes(final) == ["warn GPU-L202", "enforce GPU-Q303"]
    assert (final.patch, final.gpu_milli_after) == ((), 2000), "no webhook takes anything out now"
    assert final.findings[0].fix == 'Write nvidia.com/gpu: "0" in its limits.'


REFUSING = {
    "at least one": {"default": {GPU: "1"}, "min": {GPU: "1"}},
    "a ratio": {"default": {GPU: "1"}, "maxLimitRequestRatio": {GPU: "1"}},
}


@pytest.mark.parametrize("item", REFUSING.values(), ids=REFUSING)
def test_zeros_that_would_be_refused_are_not_written(item: Json) -> None:
    decision = ask(make_pod(), REMOVE, view=limited(item))
    assert not decision.patch
    assert "it cannot be removed" in decision.findings[0].message
    assert "(LimitRange trap) at spec.containers[0].resources" in decision.findings[0].message


def test_the_rest_of_the_pod_is_right_sized_beside_it() -> None:
    pod = make_pod().gpus(1).needs("8Gi").container("side")
    decision = ask(pod, REMOVE, RIGHT_SIZE, view=limited({"max": {GPU: "4"}}, nodes=(mig_node(),)))
    main, side = (container["resources"] for container in shaped(pod, decision)["spec"]["containers"])
    assert main["limits"] == {GPU: "0", SMALL: "1"}
    assert side == {"limits": ZERO, "requests": ZERO}


SAID: dict[str, tuple[PodMaker, Json, list[str]]] = {
    "CPU over its maximum": (make_pod().asks("cpu", "8"), {"max": {"cpu": "4"}}, ["enforce GPU-L201"]),
    "CPU inside": (make_pod().asks("cpu", "2"), {"max": {"cpu": "4"}}, []),
    "CPU that nobody named takes the maximum": (make_pod(), {"max": {"cpu": "4"}}, []),
    "memory under its minimum": (make_pod().asks("memory", "1Mi"), {"min": {"memory": "64Mi"}}, ["enforce GPU-L201"]),
    "a GPU minimum alone makes pods invalid": (
        make_pod(),
        {"min": {GPU: "1"}},
        ["warn GPU-L202", "enforce GPU-L203"],
    ),
}


@pytest.mark.parametrize(("pod", "item", "want"), SAID.values(), ids=SAID)
def test_pods_without_gpus_are_told_what_limit_ranger_will_say(pod: PodMaker, item: Json, want: list[str]) -> None:
    assert codes(ask(pod, LIMITS, view=limited(item))) == want


def test_a_change_of_a_pod_asks_no_limit_range() -> None:
    assert (
        codes(ask(make_pod().asks("cpu", "8"), LIMITS, view=limited({"max": {"cpu": "4"}}), operation="UPDATE")) == []
    )


def test_a_rewrite_that_a_limit_range_refuses_is_not_made_and_says_which_and_where() -> None:
    pod = make_pod().gpus(1).needs("8Gi")
    decision = ask(pod, RIGHT_SIZE, view=limited({"min": {GPU: "1"}, "max": {GPU: "2"}}, nodes=(mig_node(),)))
    assert not decision.patch
    assert "minimum nvidia.com/gpu usage per Container is 1, but request is 0 (LimitRange trap)" in str(
        decision.outcome
    )
    assert "spec.containers[0].resources.requests" in str(decision.outcome)


def test_a_deadline_that_moves_a_pod_under_a_full_quota_is_told() -> None:
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
    assert codes(ask(ends, LIMITS, view=view, operation="UPDATE", old_pod=old)) == ["enforce GPU-Q301"]
    assert codes(ask(make_pod(), LIMITS, view=view, operation="UPDATE", old_pod=old)) == []
    assert codes(ask(ends, LIMITS, view=view, operation="UPDATE", old_pod=parse_pod(ends.build()))) == []


def test_a_quota_that_a_pod_without_gpus_exceeds_is_told() -> None:
    hard: dict[str, Any] = {"hard": {"pods": "0"}}
    full = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "full", "namespace": "team"},
        "spec": hard,
        "status": hard | {"used": {"pods": "0"}},
    }
    assert codes(ask(make_pod(), LIMITS, view=view_of(make_namespace("team"), full))) == ["enforce GPU-Q301"]
