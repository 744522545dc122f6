"""The extender's answers: feasible nodes, scores, and whether eviction helps."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import mig_node
from tests.extender.harness import apply_watch_events, extender_body, filter_nodes, preempt, prioritize, scheduler_state
from tests.placement.clusters import (
    BRIDGED,
    GPU,
    gpu_node,
    gpu_node_report,
    running_gpu_pod,
    shared_node,
    with_gpu_conditions,
)
from webhook.errors import ReviewError
from webhook.extender.state import RESERVATION_SECONDS, SchedulerState
from webhook.extender.verbs import UNKNOWN_NODE, handle_filter, handle_preempt, handle_prioritize
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.placement.nodes.filtering import NEVER_CONNECTED, NOT_CONNECTED

H100 = "NVIDIA-H100-80GB-HBM3"
SINGLES = {(i, j): 0 for i in range(8) for j in range(i)}
MIG = "nvidia.com/mig-1g.10gb"


def two(name: str = "two") -> PodMaker:
    return make_pod(name).gpus(2)


def strict(name: str = "strict") -> PodMaker:
    return two(name).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")


def bridged(name: str, held: dict[int, str] | None = None) -> list[Json]:
    """Four cards and two bridges; the pods that hold cards are there."""
    pods = [running_gpu_pod(pod.partition("/")[2], name) for pod in (held or {}).values()]
    return [gpu_node(name), gpu_node_report(name, 4, BRIDGED, held), *pods]


def singles(name: str = "singles") -> list[Json]:
    return [gpu_node(name, 8), gpu_node_report(name, 8, SINGLES)]


def one_pair(name: str) -> list[Json]:
    """One pair is free, and no more."""
    return bridged(name, {2: f"team/{name}-x", 3: f"team/{name}-y"})


def holders(state: SchedulerState) -> dict[str, str]:
    """Who was promised which node."""
    return {place.pod: node for node in state.reservations.nodes for place in state.reservations.on_node(node)}


def test_two_gpus_prefer_a_free_pair() -> None:
    state = scheduler_state(*singles(), *bridged("pairs"))

    assert prioritize(state, two(), "singles", "pairs") == {"pairs": 10, "singles": 4}
    assert holders(state) == {"team/two": "pairs"}


def test_only_one_of_equal_nodes_is_best() -> None:
    state = scheduler_state(gpu_node("a", 8, H100), gpu_node("b", 8, H100), gpu_node("c", 8, H100))

    assert prioritize(state, two(), "a", "b", "c") == {"a": 10, "b": 9, "c": 9}


def test_several_shares_are_ranked_and_reserved() -> None:
    state = scheduler_state(shared_node("idle"), shared_node("fuller"), running_gpu_pod("a", "fuller", f"{GPU}.shared"))
    pod = make_pod("two").requests(f"{GPU}.shared", "2")

    assert prioritize(state, pod, "idle", "fuller") == {"fuller": 10, "idle": 4}
    assert holders(state) == {"team/two": "fuller"}


SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}


def mig_single_node(name: str) -> Json:
    """Return a node on which nvidia.com/gpu is a slice."""
    return make_node(name, SINGLE, **{GPU: 56})


def test_several_gpus_never_get_slices_while_whole_cards_exist() -> None:
    state = scheduler_state(gpu_node("cards", 4), mig_single_node("slices"), running_gpu_pod("a", "cards", count=4))
    answer = filter_nodes(state, two(), "cards", "slices")

    assert answer["NodeNames"] == ["cards"]
    assert answer["FailedAndUnresolvableNodes"] == {
        "slices": "nvidia.com/gpu is a 1g.10gb slice here, and several have no peer-to-peer access"
    }


def test_several_gpus_get_slices_where_no_whole_cards_accept_them() -> None:
    state = scheduler_state(gpu_node("card", 1), mig_single_node("slices"))

    assert filter_nodes(state, two(), "slices")["NodeNames"] == ["slices"]


def test_one_gpu_prefers_a_whole_card() -> None:
    state = scheduler_state(gpu_node("cards", 4), mig_single_node("slices"))

    assert prioritize(state, make_pod().gpus(1), "slices", "cards") == {"cards": 10, "slices": 4}


def test_a_container_gets_no_two_mps_shares() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.replicas": "4"}
    mps = make_node("mps", labels | {"nvidia.com/gpu.sharing-strategy": "mps"}, **{f"{GPU}.shared": 16})
    share = {"limits": {f"{GPU}.shared": "1"}}
    one_each = make_pod().requests(f"{GPU}.shared", "1").container("second", resources=share)
    state = scheduler_state(mps)

    assert filter_nodes(state, make_pod().requests(f"{GPU}.shared", "2"), "mps")["FailedAndUnresolvableNodes"] == {
        "mps": "it offers an MPS share, and the kubelet rejects several in one container"
    }
    assert filter_nodes(state, one_each, "mps")["NodeNames"] == ["mps"]


def test_only_requested_nodes_are_ranked() -> None:
    state = scheduler_state(*singles(), *bridged("pairs"))

    assert prioritize(state, two(), "singles") == {"singles": 10}


@pytest.mark.parametrize(
    "pod", [make_pod(), make_pod().requests("nvidia.com/gpu", "0")], ids=["no request", "a request for zero"]
)
def test_pod_without_gpus_passes(pod: PodMaker) -> None:
    state = scheduler_state(*bridged("pairs"))

    assert filter_nodes(state, pod, "pairs")["NodeNames"] == ["pairs"]
    assert prioritize(state, pod, "pairs") == {"pairs": 0}
    assert not holders(state)


def test_without_enough_cpu_nothing_is_ranked_or_reserved() -> None:
    state = scheduler_state(*bridged("pairs"))

    assert prioritize(state, two().requests("cpu", "1000"), "pairs") == {"pairs": 0}
    assert not holders(state)


def test_unknown_node_passes_unless_links_are_required() -> None:
    state = scheduler_state(*bridged("pairs"))

    assert filter_nodes(state, two(), "new", "pairs")["NodeNames"] == ["new", "pairs"]
    assert prioritize(state, two(), "new", "pairs") == {"new": 0, "pairs": 10}
    assert filter_nodes(state, strict(), "new", "pairs")["FailedNodes"] == {"new": UNKNOWN_NODE}


def test_required_links_are_filtered_with_a_hint_about_eviction() -> None:
    torn = bridged("torn", {0: "team/a", 2: "team/b"})
    state = scheduler_state(*singles(), *bridged("pairs"), *torn)

    assert filter_nodes(state, strict(), "singles", "pairs", "torn") == {
        "NodeNames": ["pairs"],
        "FailedNodes": {"torn": NOT_CONNECTED},
        "FailedAndUnresolvableNodes": {"singles": NEVER_CONNECTED},
        "Error": "",
    }


def test_last_remaining_node_is_reserved_by_filter() -> None:
    state = scheduler_state(*singles(), *bridged("pairs"))

    filter_nodes(state, strict(), "singles", "pairs")

    assert holders(state) == {"team/strict": "pairs"}


def test_two_pods_at_once_do_not_get_the_same_pair() -> None:
    state = scheduler_state(*one_pair("a"), *one_pair("b"))

    first = prioritize(state, two("first"), "a", "b")
    second = prioritize(state, two("second"), "a", "b")

    assert first == {"a": 10, "b": 9}
    assert second == {"a": 0, "b": 10}
    assert filter_nodes(state, strict("third"), "a", "b")["FailedNodes"] == {"a": NOT_CONNECTED, "b": NOT_CONNECTED}


@pytest.mark.parametrize("mig_instances", [{}, {4: [("3g.40gb", 0, "")]}], ids=["not partitioned", "partitioned"])
def test_reserved_and_new_gpus_are_taken_beside_mig_cards(
    mig_instances: dict[int, list[tuple[str, int, str]]],
) -> None:
    """Six cards, two pairs among them: two pods fit, and no third."""
    state = scheduler_state(
        mig_node("n"), gpu_node_report("n", 6, BRIDGED, {5: "team/x"}, mig_instances), running_gpu_pod("x", "n")
    )

    answers = [filter_nodes(state, strict(name), "n")["NodeNames"] for name in ("first", "second", "third")]
    apply_watch_events(state, running_gpu_pod("second", "n", count=2))

    assert answers == [["n"], ["n"], []]
    assert filter_nodes(state, strict("fourth"), "n")["FailedNodes"] == {"n": NOT_CONNECTED}


def test_reservation_expires() -> None:
    state = scheduler_state(*one_pair("a"))
    prioritize(state, two("first"), "a")

    assert filter_nodes(state, strict(), "a", now=RESERVATION_SECONDS - 0.1)["NodeNames"] == []
    assert filter_nodes(state, strict(), "a", now=RESERVATION_SECONDS)["NodeNames"] == ["a"]


def test_reservation_ends_when_the_pod_is_seen() -> None:
    state = scheduler_state(*one_pair("a"), *one_pair("b"))
    prioritize(state, two("first"), "a", "b")

    apply_watch_events(state, running_gpu_pod("first", "b", count=2))

    assert filter_nodes(state, strict(), "a", "b")["NodeNames"] == ["a"]
    assert holders(state) == {"team/strict": "a"}


def test_own_reservation_does_not_block_a_retry() -> None:
    state = scheduler_state(*one_pair("a"))

    assert [prioritize(state, two(), "a") for _ in range(2)] == [{"a": 10}, {"a": 10}]
    assert filter_nodes(state, strict("two"), "a")["NodeNames"] == ["a"]


def test_gpus_of_a_deleted_pod_are_free_before_the_report() -> None:
    state = scheduler_state(*bridged("n", {0: "team/x", 2: "team/y"}))
    assert filter_nodes(state, strict(), "n")["NodeNames"] == []

    apply_watch_events(state, running_gpu_pod("x", "n"), deleted=True)

    assert filter_nodes(state, strict(), "n")["NodeNames"] == ["n"]


def test_gpus_of_a_new_pod_are_taken_before_the_report() -> None:
    state = scheduler_state(*bridged("n"))

    apply_watch_events(state, running_gpu_pod("x", "n", count=2))
    assert filter_nodes(state, strict(), "n")["NodeNames"] == ["n"]
    apply_watch_events(state, running_gpu_pod("y", "n"), running_gpu_pod("z", "n"))

    assert filter_nodes(state, strict(), "n")["FailedNodes"] == {"n": NOT_CONNECTED}


@pytest.mark.parametrize("reported", [True, False])
def test_unreported_pod_holds_the_devices_of_each_container(reported: bool) -> None:
    crossed = gpu_node_report("n", 4, {(0, 2): 12, (1, 3): 12})
    ones = make_pod("ones").gpus(1).container("beside", resources={"limits": {"nvidia.com/gpu": "1"}})
    state = scheduler_state(gpu_node("n"), crossed, *([ones.spec(nodeName="n").build()] if reported else []))
    if not reported:
        prioritize(state, ones, "n")

    assert filter_nodes(state, strict(), "n")["FailedNodes"] == {"n": NOT_CONNECTED}


def test_withdrawn_gpus_are_not_used() -> None:
    torn = with_gpu_conditions(
        gpu_node_report("torn", 4, BRIDGED, {2: "team/a"}), 0, conditions=["XID 94: contained memory error"]
    )
    connected = {(i, j): 18 for j in range(8) for i in range(j)}
    alone = with_gpu_conditions(gpu_node_report("alone", 8, connected, nvswitch=True), 0, nvlinkDegraded=True)
    state = scheduler_state(gpu_node("torn", 3), torn, gpu_node("alone", 7, H100), alone)
    apply_watch_events(
        state, running_gpu_pod("a", "torn") | {"metadata": {"name": "a", "namespace": "team", "uid": "u-a"}}
    )

    assert filter_nodes(state, strict(), "torn", "alone")["NodeNames"] == ["alone"]
    assert preempt(state, strict(), {"torn": ["u-a"]}) == ["torn"]
    assert preempt(state, strict(), {"torn": []}) == []


def test_unhealthy_gpus_are_used_last() -> None:
    held = {gpu: f"team/{gpu}" for gpu in (1, 2, 3)}
    sick = [
        with_gpu_conditions(gpu_node_report("unhealthy", 4, BRIDGED, held), 0),
        *(running_gpu_pod(str(gpu), "unhealthy") for gpu in held),
    ]
    state = scheduler_state(gpu_node("unhealthy"), *sick, gpu_node("healthy"), gpu_node_report("healthy", 4, BRIDGED))

    assert prioritize(state, make_pod().gpus(1), "unhealthy", "healthy")["healthy"] == 10


def test_new_report_counts() -> None:
    state = scheduler_state(*bridged("n"))

    apply_watch_events(state, gpu_node_report("n", 4, {}))

    assert filter_nodes(state, strict(), "n")["FailedAndUnresolvableNodes"] == {"n": NEVER_CONNECTED}


def test_single_gpu_does_not_break_the_last_pair_for_the_scheduler() -> None:
    state = scheduler_state(*one_pair("pair"), *bridged("odd", {1: "team/o1", 3: "team/o3"}))

    assert prioritize(state, make_pod().gpus(1), "pair", "odd")["odd"] == 10


def test_mig_pods_keep_space_for_3g_for_the_scheduler() -> None:
    def card(name: str, start: int) -> list[Json]:
        mig_instances = {
            0: [("3g.40gb", 4, "")],
            1: [("1g.10gb", start, ""), ("1g.10gb", 5, "team/a"), ("1g.10gb", 6, "")],
        }
        return [mig_node(name, small=3, large=1), gpu_node_report(name, 2, {}, mig_instances=mig_instances)]

    state = scheduler_state(*card("torn", 4), *card("low", 0), running_gpu_pod("a", "torn", MIG))

    assert prioritize(state, make_pod().requests(MIG, "1"), "torn", "low")["torn"] == 10


def test_eviction_helps_only_if_it_connects_gpus() -> None:
    held = {0: "team/a", 2: "team/b"}
    state = scheduler_state(*bridged("n", held), *singles())
    for name in "ab":
        apply_watch_events(
            state, running_gpu_pod(name, "n") | {"metadata": {"name": name, "namespace": "team", "uid": f"u-{name}"}}
        )

    assert preempt(state, strict(), {"n": ["u-a"], "singles": ["u-z"], "new": ["u-y"]}) == ["n"]
    assert preempt(state, strict(), {"n": ["u-z"]}) == []
    assert preempt(state, two(), {"n": ["u-z"]}) == ["n"]


BODIES = {
    "no JSON": b"{",
    "no pod": b'{"NodeNames": ["a"]}',
    "whole nodes": extender_body(two(), None),
    "another kind of thing": b"[]",
    "nested deeply": b'{"Pod": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("verb", [handle_filter, handle_prioritize, handle_preempt])
def test_invalid_bodies_are_rejected(verb: object, sent: bytes) -> None:
    assert callable(verb)
    with pytest.raises(ReviewError, match=r"must (be|not be|have)"):
        verb(scheduler_state(*bridged("n")), sent, 0.0)


TOO_LARGE = {
    "1,001 amounts of overhead": {"overhead": dict.fromkeys(map(str, range(1001)), "1")},
    "501 keys of a node selector": {"nodeSelector": dict.fromkeys(map(str, range(501)), "a")},
    "501 tolerations": {"tolerations": [{"key": str(each)} for each in range(501)]},
}


@pytest.mark.parametrize("padding", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_pod_that_is_too_large_for_the_webhook_passes_without_a_reservation(padding: Json) -> None:
    def large(name: str) -> Json:
        built = strict(name).build()
        return {**built, "spec": {**built["spec"], **padding}}

    state = scheduler_state(*one_pair("pairs"), gpu_node("none", 2))
    assert filter_nodes(state, strict(), "pairs", "none")["NodeNames"] == ["pairs"]

    assert filter_nodes(state, large("l"), "pairs", "none")["NodeNames"] == ["pairs", "none"]
    assert prioritize(state, large("l"), "pairs", "none") == {"pairs": 0, "none": 0}
    assert preempt(state, large("l"), {"none": []}) == ["none"]
    assert holders(state) == {"team/strict": "pairs"}


def test_each_pod_is_learned_once() -> None:
    state = scheduler_state(*bridged("n"))
    for _ in range(3):
        filter_nodes(state, two(), "n")
    filter_nodes(state, two("other"), "n")

    counts = state.learning.estimated_mix().counts

    assert {need.gpus: round(count) for need, count in counts.items()} == {2: 2}


def test_invalid_report_affects_no_answer_and_is_reported() -> None:
    mig_instances = {0: [("1g.10gb", -4, "")]}
    state = scheduler_state(mig_node("valid"), mig_node("invalid"), gpu_node_report("valid", 6, {}))
    small = make_pod("small").requests(MIG, "1")
    assert prioritize(state, small, "valid", "invalid") == {"valid": 9, "invalid": 10}

    apply_watch_events(state, gpu_node_report("invalid", 6, {}, mig_instances=mig_instances))

    assert set(prioritize(state, small, "valid", "invalid").values()) == {10, 9}
    assert state.inventory.unusable_reports == {"invalid": "GPU 0: the start of '1g.10gb' must be 0 to 15, found -4"}

    apply_watch_events(state, gpu_node_report("invalid", 6, {}, mig_instances=mig_instances), deleted=True)
    assert not state.inventory.unusable_reports


def test_eviction_helps_without_an_agent_if_enough_are_free() -> None:
    held = [running_gpu_pod(f"x{i}", "dgx") for i in range(7)]
    for pod in held:
        pod["metadata"]["uid"] = pod["metadata"]["name"]
    state = scheduler_state(gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB"), *held)

    assert filter_nodes(state, strict(), "dgx")["FailedNodes"] == {"dgx": NOT_CONNECTED}
    assert preempt(state, strict(), {"dgx": ["x0"]}) == []
    assert preempt(state, strict(), {"dgx": ["x0", "x1"]}) == ["dgx"]

    apply_watch_events(state, *held[:2], deleted=True)
    assert filter_nodes(state, strict(), "dgx")["NodeNames"] == ["dgx"]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "cpu"])
def test_negative_request_is_rejected_without_a_reservation(resource: str) -> None:
    state = scheduler_state(*bridged("pairs"))
    pod = make_pod("debt").gpus(1).container("more").requests(resource, "-8")

    for verb in (handle_filter, handle_prioritize):
        with pytest.raises(ReviewError, match=f"'{resource}' must not be negative"):
            verb(state, extender_body(pod, ["pairs"]), 0.0)
    assert not holders(state)


def test_pod_with_two_gpu_resources_needs_both() -> None:
    state = scheduler_state(
        mig_node("mixed", small=7), gpu_node("whole"), mig_node("full"), running_gpu_pod("x", "full", count=6)
    )
    both = make_pod("both").gpus(1).requests(MIG, "2")

    assert prioritize(state, both, "mixed", "whole", "full") == {"mixed": 10, "whole": 0, "full": 0}
