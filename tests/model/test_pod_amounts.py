"""pod_amounts: cache keys are equal exactly for pods with equal amounts."""

from __future__ import annotations

from tests.builders import PodMaker, make_pod
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.model.limit_ranges import NO_LIMIT_RANGES
from webhook.model.pod_amounts import ContainerAmounts, ResourceChanges, container_amounts
from webhook.model.pods import parse_pod


def key_of(maker: PodMaker) -> ContainerAmounts:
    return container_amounts(parse_pod(maker.build()).spec)


def test_names_images_and_variables_do_not_change_the_key() -> None:
    assert key_of(make_pod("a").gpus(1)) == key_of(make_pod("b").gpus(1).env("X", "y").label("team", "vision"))


def test_amounts_sides_and_kinds_of_containers_change_the_key() -> None:
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
    assert len({key_of(maker) for maker in different}) == len(different)


def test_changed_amounts_replace_the_old_ones() -> None:
    spec = parse_pod(make_pod().gpus(1).build()).spec
    one_more: ResourceChanges = {("spec", "containers", 0): {"nvidia.com/gpu": "2"}}

    assert container_amounts(spec, one_more, one_more) == key_of(make_pod().gpus("2"))


def test_pods_of_many_containers_are_evaluated() -> None:
    maker = make_pod()
    for index in range(16):
        maker.container(f"c{index}", image="i", resources={"limits": {"cpu": "1"}})

    assert is_surely_admitted(parse_pod(maker.build()), key_of(maker), NO_LIMIT_RANGES)
