"""Amounts as a key: equal where pods ask for the same, and for nothing else."""

from __future__ import annotations

from tests.make import PodMaker, make_pod
from webhook.engine.containers import MOST_REMEMBERED, Amounts, Changes, amounts_of, is_short
from webhook.engine.limitrange import passes
from webhook.model.pods import pod_of
from webhook.model.ranges import NO_RANGES


def asked(maker: PodMaker) -> Amounts:
    return amounts_of(pod_of(maker.build()).spec)


def test_names_images_and_variables_make_no_difference() -> None:
    assert asked(make_pod("a").gpus(1)) == asked(make_pod("b").gpus(1).env("X", "y").label("team", "vision"))


def test_amounts_their_side_and_what_kind_of_container_asks_do() -> None:
    limit = {"limits": {"cpu": "1"}}
    different = [
        make_pod(),
        make_pod().gpus(1),
        make_pod().gpus(2),
        make_pod().container("more", image="i", resources=limit),
        make_pod().container("more", image="i", resources={"requests": {"cpu": "1"}}),
        make_pod().container("more", image="i", kind="initContainers", resources=limit),
        make_pod().container("more", image="i", kind="initContainers", resources=limit, restartPolicy="Always"),
    ]
    assert len({asked(maker) for maker in different}) == len(different)


def test_changed_amounts_stand_in_the_place_of_what_was_there() -> None:
    spec = pod_of(make_pod().gpus(1).build()).spec
    one_more: Changes = {("spec", "containers", 0): {"nvidia.com/gpu": "2"}}

    assert amounts_of(spec, one_more, one_more) == asked(make_pod().gpus("2"))


def test_pods_of_many_containers_are_judged_and_not_remembered() -> None:
    maker = make_pod()
    for index in range(MOST_REMEMBERED):
        maker.container(f"c{index}", image="i", resources={"limits": {"cpu": "1"}})

    assert not is_short(asked(maker))
    assert passes(pod_of(maker.build()), asked(maker), NO_RANGES)
