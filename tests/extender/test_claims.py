"""The extender's scores for pods whose GPUs come from ResourceSlices."""

from __future__ import annotations

import asyncio

import pytest

from tests.audit.test_pod_placement import nodes, place_pod
from tests.builders import Json, PodMaker, make_node, make_pod
from tests.device_builders import (
    NVIDIA,
    allocated,
    card,
    device_class,
    mig_device,
    partitionable_gpus,
    resource_claim,
    resource_slice,
)
from tests.extender.harness import apply_watch_events, filter_nodes, prioritize, scheduler_state
from tests.placement.clusters import gpu_node
from webhook.extender.state import RESERVATION_SECONDS, SchedulerState
from webhook.extender.verbs import handle_prioritize_claims

TYPE = f"device.attributes['{NVIDIA}'].type"
CLASSES = [
    device_class("gpu", f"{TYPE} == 'gpu'", extended="nvidia.com/gpu"),
    device_class(
        "small", f"{TYPE} == 'mig' && device.attributes['{NVIDIA}'].profile == '1g.10gb'", "example.com/small"
    ),
]
A10_LABELS = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "23028"}
SMALL, GPU = "deviceclass.resource.kubernetes.io/small", "nvidia.com/gpu"
FIRST = [f"gpu-0-mig-1g10gb-1-{start}" for start in range(7)]


def cards(node: str, count: int = 1) -> list[Json]:
    """Return a node with cards that can have any MIG device."""
    return [make_node(node), *partitionable_gpus(node, count)]


def taken(node: str, *devices: str) -> Json:
    """Return a claim that has devices of a node."""
    return resource_claim(f"on-{node}", *(allocated(node, name) for name in devices))


def wants(device_class_name: str, name: str = "mine") -> list[Json]:
    """Return a claim for a device of a class."""
    return [resource_claim(name, device_class_name=device_class_name)]


def chooses(*device_class_names: str) -> list[Json]:
    """Return a claim for the first available of some classes."""
    claim, *_ = wants("none")
    choices = [{"name": name, "deviceClassName": name} for name in device_class_names]
    claim["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": choices}]
    return [claim]


def claiming(claim: str = "mine", pod: str = "p") -> PodMaker:
    """Return a pod with a claim by name."""
    return make_pod(pod).spec(resourceClaims=[{"name": "gpu", "resourceClaimName": claim}])


def by_template(claim: str) -> PodMaker:
    """Return a pod for which a claim was made from a template."""
    pod = make_pod("p").spec(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "t"}])
    pod.data["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}
    return pod


NO_DEVICE = device_class("missing-device", "false")
CUT = [*cards("cut"), taken("cut", FIRST[0]), *cards("whole")]
"""A card with an allocated slice, and one without any allocation."""

RANKED: dict[str, tuple[PodMaker, list[Json], str]] = {
    "a slice goes to the card that is cut already": (claiming(), [*CUT, *wants("small")], "cut"),
    "a claim of a template, by the name that the pod's status has": (
        by_template("m"),
        [*CUT, *wants("small", "m")],
        "cut",
    ),
    "a claim that was made from its template a moment ago": (
        by_template("new"),
        [
            *CUT,
            {**wants("small", "t")[0], "kind": "ResourceClaimTemplate", "spec": {"spec": wants("small")[0]["spec"]}},
        ],
        "cut",
    ),
    "a slice by the implicit name of its class": (make_pod("p").requests(SMALL, "1"), CUT, "cut"),
    "a slice by the extended resource of its class": (make_pod("p").requests("example.com/small", "1"), CUT, "cut"),
    "a card by the name that device plugins use": (
        make_pod("p").gpus(1),
        [*cards("two", 2), taken("two", "gpu-0"), *cards("one")],
        "two",
    ),
    "a claim that the node cannot serve after all": (
        claiming(),
        [*cards("full"), taken("full", *FIRST), *cards("empty"), *wants("small")],
        "empty",
    ),
    "a node that has no devices": (claiming(), [make_node("none"), *cards("some"), *wants("small")], "some"),
    "the first choice, even if it leaves less": (claiming(), [*CUT, *chooses("gpu", "small")], "whole"),
    "the last choice, if it is the only one": (
        claiming(),
        [*cards("full"), taken("full", "gpu-0"), *CUT, *chooses("missing-device", "small"), NO_DEVICE],
        "cut",
    ),
    "slices of several nodes": (
        claiming(),
        [*CUT, *wants("small"), resource_slice("net", "net.example", "net", allNodes=True, devices=[card("c")])],
        "cut",
    ),
}


@pytest.mark.parametrize(("pod", "objects", "best"), RANKED.values(), ids=RANKED)
def test_the_node_whose_cards_remain_worth_most_is_best(pod: PodMaker, objects: list[Json], best: str) -> None:
    names = [item["metadata"]["name"] for item in objects if item["kind"] == "Node"]
    state = scheduler_state(*CLASSES, *objects)
    assert filter_nodes(state, pod, *names)["NodeNames"] == names  # the scheduler filters
    scores = prioritize(state, pod, *names)
    assert scores[best] == 10
    assert all(score < 10 for name, score in scores.items() if name != best)


NOT_RANKED: dict[str, tuple[PodMaker, list[Json]]] = {
    "no slices": (claiming(), [make_node("a"), make_node("b"), *wants("small")]),
    "a claim that does not exist": (claiming("other"), CUT),
    "a claim that has its device": (claiming("on-cut"), CUT),
    "a class that does not exist": (claiming(), [*CUT, *wants("missing")]),
    "a claim of a template that does not exist": (by_template("later"), CUT),
    "a pod without GPUs": (make_pod("p"), CUT),
}


@pytest.mark.parametrize(("pod", "objects"), NOT_RANKED.values(), ids=NOT_RANKED)
def test_pods_that_need_no_device_that_is_known_are_not_ranked(pod: PodMaker, objects: list[Json]) -> None:
    names = [item["metadata"]["name"] for item in objects if item["kind"] == "Node"]
    state = scheduler_state(*CLASSES, *objects)
    assert set(prioritize(state, pod, *names).values()) == {0}
    assert prioritize(state, pod, *names, verb=handle_prioritize_claims) == {}


HALF_USED = make_pod("other").gpus(4).spec(nodeName="eight").build()
MIXED: dict[str, tuple[list[Json], str]] = {
    "the card of a class is the only one of its node, and the plugin has eight": (
        [*cards("one"), gpu_node("eight", 8), HALF_USED], "one",
    ),
    "the plugin's node has the only card left of its own, and the class has larger ones": (
        [*cards("two", 2), make_node("a10", A10_LABELS, **{GPU: 1})], "a10",
    ),
    "the class gives parts of cards": (
        [make_node("cut"), resource_slice("cut", NVIDIA, "cut", nodeName="cut", devices=[
            mig_device("m", "1g.10gb", "GPU-0"),
        ]), device_class("zz", f"{TYPE} == 'mig'", extended=GPU), gpu_node("plugin", 1)],
        "plugin",
    ),
    "no device of the class is free": (
        [*cards("full"), taken("full", "gpu-0"), gpu_node("plugin", 8)], "plugin",
    ),
    "no unit of the plugin is free": (
        [*cards("free"), gpu_node("eight", 1), make_pod("o").gpus(1).spec(nodeName="eight").build()], "free",
    ),
    "nodes with the same slices, of which one has a plugin too": (
        [make_node("both", {}, **{GPU: 1}), *partitionable_gpus("both"), taken("both", "gpu-0"),
         *cards("published")],
        "published",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "best"), MIXED.values(), ids=MIXED)
def test_a_name_that_plugins_and_classes_serve_is_ranked_on_the_nodes_of_both(objects: list[Json], best: str) -> None:
    pod, names = make_pod("p").gpus(1), [item["metadata"]["name"] for item in objects if item["kind"] == "Node"]
    scores = prioritize(scheduler_state(*CLASSES, *objects), pod, *names)
    assert [name for name, score in scores.items() if score == 10] == [best]
    assert nodes(place_pod(pod.build(), *CLASSES, *objects))[0] == best


def test_the_devices_of_a_name_that_plugins_serve_elsewhere_are_reserved() -> None:
    state = scheduler_state(*CLASSES, *cards("one"), gpu_node("eight", 8), HALF_USED)
    best = [
        max((score, name) for name, score in prioritize(state, make_pod(pod).gpus(1), "one", "eight").items())[1]
        for pod in ("first", "second", "third")
    ]
    assert best == ["one", "eight", "eight"]


def test_a_resource_of_a_plugin_whose_worth_is_unknown_is_not_compared_with_devices() -> None:
    state = scheduler_state(*CLASSES, *CUT, make_node("plugin", {}, **{"example.com/small": 4}))
    scores = prioritize(state, make_pod("p").requests("example.com/small", "1"), "cut", "plugin")
    assert set(scores.values()) == {0}


def test_the_path_for_claims_answers_for_pods_that_no_managed_resource_names() -> None:
    state = scheduler_state(*CLASSES, *CUT, *wants("small"))
    names = ("cut", "whole")
    assert prioritize(state, claiming(), *names, verb=handle_prioritize_claims)["cut"] == 10
    assert prioritize(state, make_pod("p").requests(SMALL, "1"), *names, verb=handle_prioritize_claims)["cut"] == 10
    assert prioritize(state, make_pod("p").gpus(1), *names, verb=handle_prioritize_claims) == {}
    managed = claiming().requests("rightslice.dev/gpu-milli", "143")
    assert prioritize(state, managed, *names, verb=handle_prioritize_claims) == {}
    assert prioritize(state, managed, *names)["cut"] == 10


def almost_full() -> SchedulerState:
    """Return a cluster with a card that has room for one more slice, and a node without devices, the best of equals."""
    claims = [one for name in ("first", "second", "third") for one in wants("small", name)]
    return scheduler_state(*CLASSES, *cards("full"), taken("full", *FIRST[:6]), make_node("away"), *claims)


def best_of(state: SchedulerState, claim: str, now: float = 0.0) -> str:
    """Return the best node for a pod with a claim."""
    scores = prioritize(state, claiming(claim, claim), "full", "away", now=now)
    return next(name for name, score in scores.items() if score == 10)


def test_devices_are_reserved_until_the_claim_has_them() -> None:
    state = almost_full()
    assert best_of(state, "first") == "full"
    assert best_of(state, "first") == "full"  # tried again: its reservation is its own
    assert best_of(state, "second") == "away"
    apply_watch_events(state, resource_claim("first", allocated("other", FIRST[3]), device_class_name="small"))
    assert best_of(state, "third") == "full"


def test_reserved_devices_are_free_again_after_a_while() -> None:
    state = almost_full()
    assert best_of(state, "first") == "full"
    assert best_of(state, "second", now=RESERVATION_SECONDS) == "full"


def test_devices_of_the_only_node_that_is_left_are_reserved() -> None:
    state = almost_full()
    filter_nodes(state, claiming("first", "first"), "full")
    assert best_of(state, "second") == "away"


def test_new_slices_are_ranked() -> None:
    state = scheduler_state(*CLASSES, make_node("new"), *cards("old"), *wants("small"))
    assert best_among(state, "old", "new") == "old"
    apply_watch_events(state, *partitionable_gpus("new"), taken("new", FIRST[0]))
    asyncio.run(state.rebuild_index())
    assert best_among(state, "old", "new") == "new"


def best_among(state: SchedulerState, *names: str) -> str:
    """Return the best node for the pod of the claim."""
    scores = prioritize(state, claiming(), *names)
    return next(name for name, score in scores.items() if score == 10)
