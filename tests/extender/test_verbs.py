"""What a scheduler is told: which nodes suit a pod, how well, and where evicting others helps."""

from __future__ import annotations

import pytest

from tests.extender.standing import body, filter_, preempt, scores, stand, write
from tests.make import Json, PodMaker, make_pod
from tests.placement.kube import BRIDGED, GPU, ailing, gpu_node, report, running, shared_node
from tests.world import mig_node
from webhook.errors import ReviewError
from webhook.extender.state import RESERVATION_SECONDS, SchedulerState
from webhook.extender.verbs import UNKNOWN_NODE, handle_filter, handle_preempt, handle_prioritize
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.placement.nodes.filtering import NEVER_JOINED, NOT_JOINED

H100 = "NVIDIA-H100-80GB-HBM3"
SINGLES = {(i, j): 0 for i in range(8) for j in range(i)}
MIG = "nvidia.com/mig-1g.10gb"


def two(name: str = "two") -> PodMaker:
    return make_pod(name).gpus(2)


def strict(name: str = "strict") -> PodMaker:
    return two(name).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")


def bridged(name: str, held: dict[int, str] | None = None) -> list[Json]:
    """Four cards and two bridges; the pods that hold cards are there."""
    pods = [running(pod.partition("/")[2], name) for pod in (held or {}).values()]
    return [gpu_node(name), report(name, 4, BRIDGED, held), *pods]


def singles(name: str = "singles") -> list[Json]:
    return [gpu_node(name, 8), report(name, 8, SINGLES)]


def one_pair(name: str) -> list[Json]:
    """One pair is free, and no more."""
    return bridged(name, {2: f"team/{name}-x", 3: f"team/{name}-y"})


def holders(standing: SchedulerState) -> dict[str, str]:
    """Who was promised which node."""
    return {place.pod: node for node in standing.reservations.nodes for place in standing.reservations.on_node(node)}


def test_two_gpus_go_where_a_pair_is_free_and_the_others_are_ranked_behind() -> None:
    standing = stand(*singles(), *bridged("pairs"))

    assert scores(standing, two(), "singles", "pairs") == {"pairs": 10, "singles": 4}
    assert holders(standing) == {"team/two": "pairs"}


def test_of_equals_only_one_is_best_and_the_others_are_alike() -> None:
    standing = stand(gpu_node("a", 8, H100), gpu_node("b", 8, H100), gpu_node("c", 8, H100))

    assert scores(standing, two(), "a", "b", "c") == {"a": 10, "b": 9, "c": 9}


def test_several_shares_of_a_card_are_ranked_and_promised() -> None:
    standing = stand(shared_node("idle"), shared_node("fuller"), running("a", "fuller", f"{GPU}.shared"))
    pod = make_pod("two").asks(f"{GPU}.shared", "2")

    assert scores(standing, pod, "idle", "fuller") == {"fuller": 10, "idle": 4}
    assert holders(standing) == {"team/two": "fuller"}


def test_only_the_nodes_that_were_asked_about_are_ranked() -> None:
    standing = stand(*singles(), *bridged("pairs"))

    assert scores(standing, two(), "singles") == {"singles": 10}


@pytest.mark.parametrize("pod", [make_pod(), make_pod().asks("nvidia.com/gpu", "0")], ids=["none", "none of them"])
def test_a_pod_without_gpus_is_left_to_the_scheduler(pod: PodMaker) -> None:
    standing = stand(*bridged("pairs"))

    assert filter_(standing, pod, "pairs")["NodeNames"] == ["pairs"]
    assert scores(standing, pod, "pairs") == {"pairs": 0}
    assert not holders(standing)


def test_where_no_node_has_the_cpu_none_is_ranked_and_none_is_promised() -> None:
    standing = stand(*bridged("pairs"))

    assert scores(standing, two().asks("cpu", "1000"), "pairs") == {"pairs": 0}
    assert not holders(standing)


def test_a_node_that_is_not_known_is_no_obstacle_unless_links_are_required() -> None:
    standing = stand(*bridged("pairs"))

    assert filter_(standing, two(), "new", "pairs")["NodeNames"] == ["new", "pairs"]
    assert scores(standing, two(), "new", "pairs") == {"new": 0, "pairs": 10}
    assert filter_(standing, strict(), "new", "pairs")["FailedNodes"] == {"new": UNKNOWN_NODE}


def test_what_is_required_and_not_there_is_refused_and_said_whether_evicting_helps() -> None:
    torn = bridged("torn", {0: "team/a", 2: "team/b"})
    standing = stand(*singles(), *bridged("pairs"), *torn)

    assert filter_(standing, strict(), "singles", "pairs", "torn") == {
        "NodeNames": ["pairs"],
        "FailedNodes": {"torn": NOT_JOINED},
        "FailedAndUnresolvableNodes": {"singles": NEVER_JOINED},
        "Error": "",
    }


def test_where_one_node_is_left_the_scheduler_asks_no_more_and_it_is_promised() -> None:
    standing = stand(*singles(), *bridged("pairs"))

    filter_(standing, strict(), "singles", "pairs")

    assert holders(standing) == {"team/strict": "pairs"}


def test_two_pods_that_are_ranked_at_once_do_not_count_on_the_same_pair() -> None:
    standing = stand(*one_pair("a"), *one_pair("b"))

    first = scores(standing, two("first"), "a", "b")
    second = scores(standing, two("second"), "a", "b")

    assert first == {"a": 10, "b": 9}
    assert second == {"a": 0, "b": 10}
    assert filter_(standing, strict("third"), "a", "b")["FailedNodes"] == {"a": NOT_JOINED, "b": NOT_JOINED}


@pytest.mark.parametrize("cut", [{}, {4: [("3g.40gb", 0, "")]}], ids=["no card is cut", "a card is cut"])
def test_whole_gpus_that_are_promised_or_just_taken_are_gone_beside_mig_cards_too(
    cut: dict[int, list[tuple[str, int, str]]],
) -> None:
    """Six cards, two pairs among them: two pods fit, and no third."""
    standing = stand(mig_node("n"), report("n", 6, BRIDGED, {5: "team/x"}, cut), running("x", "n"))

    answers = [filter_(standing, strict(name), "n")["NodeNames"] for name in ("first", "second", "third")]
    write(standing, running("second", "n", count=2))

    assert answers == [["n"], ["n"], []]
    assert filter_(standing, strict("fourth"), "n")["FailedNodes"] == {"n": NOT_JOINED}


def test_a_promise_ends_with_its_time() -> None:
    standing = stand(*one_pair("a"))
    scores(standing, two("first"), "a")

    assert filter_(standing, strict(), "a", now=RESERVATION_SECONDS - 0.1)["NodeNames"] == []
    assert filter_(standing, strict(), "a", now=RESERVATION_SECONDS)["NodeNames"] == ["a"]


def test_a_promise_ends_when_the_pod_is_seen_and_it_holds_what_it_got() -> None:
    standing = stand(*one_pair("a"), *one_pair("b"))
    scores(standing, two("first"), "a", "b")

    write(standing, running("first", "b", count=2))

    assert filter_(standing, strict(), "a", "b")["NodeNames"] == ["a"]
    assert holders(standing) == {"team/strict": "a"}


def test_a_pod_is_not_in_its_own_way_when_it_is_asked_about_again() -> None:
    standing = stand(*one_pair("a"))

    assert [scores(standing, two(), "a") for _ in range(2)] == [{"a": 10}, {"a": 10}]
    assert filter_(standing, strict("two"), "a")["NodeNames"] == ["a"]


def test_gpus_of_a_pod_that_is_gone_are_free_before_its_agent_says_so() -> None:
    standing = stand(*bridged("n", {0: "team/x", 2: "team/y"}))
    assert filter_(standing, strict(), "n")["NodeNames"] == []

    write(standing, running("x", "n"), gone=True)

    assert filter_(standing, strict(), "n")["NodeNames"] == ["n"]


def test_gpus_of_a_pod_that_has_come_are_taken_before_its_agent_says_so() -> None:
    standing = stand(*bridged("n"))

    write(standing, running("x", "n", count=2))
    assert filter_(standing, strict(), "n")["NodeNames"] == ["n"]
    write(standing, running("y", "n"), running("z", "n"))

    assert filter_(standing, strict(), "n")["FailedNodes"] == {"n": NOT_JOINED}


@pytest.mark.parametrize("seen", [True, False])
def test_a_pod_that_is_not_reported_yet_holds_what_each_container_got(seen: bool) -> None:
    crossed = report("n", 4, {(0, 2): 12, (1, 3): 12})
    ones = make_pod("ones").gpus(1).container("beside", resources={"limits": {"nvidia.com/gpu": "1"}})
    standing = stand(gpu_node("n"), crossed, *([ones.spec(nodeName="n").build()] if seen else []))
    if not seen:
        scores(standing, ones, "n")

    assert filter_(standing, strict(), "n")["FailedNodes"] == {"n": NOT_JOINED}


def test_gpus_that_the_node_gives_out_no_more_are_not_counted_on() -> None:
    torn = ailing(report("torn", 4, BRIDGED, {2: "team/a"}), 0, conditions=["XID 94: contained memory error"])
    joined = {(i, j): 18 for j in range(8) for i in range(j)}
    alone = ailing(report("alone", 8, joined, nvswitch=True), 0, nvlinkDegraded=True)
    standing = stand(gpu_node("torn", 3), torn, gpu_node("alone", 7, H100), alone)
    write(standing, running("a", "torn") | {"metadata": {"name": "a", "namespace": "team", "uid": "u-a"}})

    assert filter_(standing, strict(), "torn", "alone")["NodeNames"] == ["alone"]
    assert preempt(standing, strict(), {"torn": ["u-a"]}) == ["torn"]
    assert preempt(standing, strict(), {"torn": []}) == []


def test_pods_go_to_ill_gpus_last() -> None:
    held = {gpu: f"team/{gpu}" for gpu in (1, 2, 3)}
    sick = [ailing(report("sick", 4, BRIDGED, held), 0), *(running(str(gpu), "sick") for gpu in held)]
    standing = stand(gpu_node("sick"), *sick, gpu_node("well"), report("well", 4, BRIDGED))

    assert scores(standing, make_pod().gpus(1), "sick", "well")["well"] == 10


def test_a_report_that_comes_counts() -> None:
    standing = stand(*bridged("n"))

    write(standing, report("n", 4, {}))

    assert filter_(standing, strict(), "n")["FailedAndUnresolvableNodes"] == {"n": NEVER_JOINED}


def test_one_gpu_does_not_break_the_last_pair() -> None:
    standing = stand(*one_pair("pair"), *bridged("odd", {1: "team/o1", 3: "team/o3"}))

    assert scores(standing, make_pod().gpus(1), "pair", "odd")["odd"] == 10


def test_mig_pods_keep_room_for_3g() -> None:
    def card(name: str, start: int) -> list[Json]:
        cut = {0: [("3g.40gb", 4, "")], 1: [("1g.10gb", start, ""), ("1g.10gb", 5, "team/a"), ("1g.10gb", 6, "")]}
        return [mig_node(name, small=3, large=1), report(name, 2, {}, cut=cut)]

    standing = stand(*card("torn", 4), *card("low", 0), running("a", "torn", MIG))

    assert scores(standing, make_pod().asks(MIG, "1"), "torn", "low")["torn"] == 10


def test_evicting_helps_only_where_it_joins_what_is_free() -> None:
    held = {0: "team/a", 2: "team/b"}
    standing = stand(*bridged("n", held), *singles())
    for name in "ab":
        write(standing, running(name, "n") | {"metadata": {"name": name, "namespace": "team", "uid": f"u-{name}"}})

    assert preempt(standing, strict(), {"n": ["u-a"], "singles": ["u-z"], "new": ["u-y"]}) == ["n"]
    assert preempt(standing, strict(), {"n": ["u-z"]}) == []
    assert preempt(standing, two(), {"n": ["u-z"]}) == ["n"]


BODIES = {
    "no JSON": b"{",
    "no pod": b'{"NodeNames": ["a"]}',
    "whole nodes": body(two(), None),
    "another kind of thing": b"[]",
    "nested deeply": b'{"Pod": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("verb", [handle_filter, handle_prioritize, handle_preempt])
def test_what_no_scheduler_sends_is_refused(verb: object, sent: bytes) -> None:
    assert callable(verb)
    with pytest.raises(ReviewError, match=r"must (be|not be|have)"):
        verb(stand(*bridged("n")), sent, 0.0)


def test_what_is_learnt_counts_each_pod_once() -> None:
    standing = stand(*bridged("n"))
    for _ in range(3):
        filter_(standing, two(), "n")
    filter_(standing, two("other"), "n")

    counts = standing.learning.estimated_mix().counts

    assert {need.gpus: round(count) for need, count in counts.items()} == {2: 2}


def test_a_report_that_cannot_be_spoils_no_answer_and_is_told() -> None:
    cut = {0: [("1g.10gb", -4, "")]}
    standing = stand(mig_node("well"), mig_node("ill"), report("well", 6, {}))
    small = make_pod("small").asks(MIG, "1")
    assert scores(standing, small, "well", "ill") == {"well": 9, "ill": 10}

    write(standing, report("ill", 6, {}, cut=cut))

    assert set(scores(standing, small, "well", "ill").values()) == {10, 9}
    assert standing.inventory.unusable_reports == {"ill": "GPU 0: the start of '1g.10gb' must be 0 to 15, found -4"}

    write(standing, report("ill", 6, {}, cut=cut), gone=True)
    assert not standing.inventory.unusable_reports


def test_evicting_helps_without_an_agent_where_enough_are_free_then() -> None:
    held = [running(f"x{i}", "dgx") for i in range(7)]
    for pod in held:
        pod["metadata"]["uid"] = pod["metadata"]["name"]
    standing = stand(gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB"), *held)

    assert filter_(standing, strict(), "dgx")["FailedNodes"] == {"dgx": NOT_JOINED}
    assert preempt(standing, strict(), {"dgx": ["x0"]}) == []
    assert preempt(standing, strict(), {"dgx": ["x0", "x1"]}) == ["dgx"]

    write(standing, *held[:2], gone=True)
    assert filter_(standing, strict(), "dgx")["NodeNames"] == ["dgx"]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "cpu"])
def test_a_pod_that_asks_for_less_than_nothing_is_refused_and_promised_nothing(resource: str) -> None:
    standing = stand(*bridged("pairs"))
    pod = make_pod("debt").gpus(1).container("more").asks(resource, "-8")

    for verb in (handle_filter, handle_prioritize):
        with pytest.raises(ReviewError, match=f"'{resource}' must not be negative"):
            verb(standing, body(pod, ["pairs"]), 0.0)
    assert not holders(standing)


def test_a_pod_with_two_gpu_resources_is_ranked_where_both_are_free() -> None:
    standing = stand(mig_node("mixed", small=7), gpu_node("whole"), mig_node("full"), running("x", "full", count=6))
    both = make_pod("both").gpus(1).asks(MIG, "2")

    assert scores(standing, both, "mixed", "whole", "full") == {"mixed": 10, "whole": 0, "full": 0}
