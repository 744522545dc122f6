"""Node order for pods over their fair share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import (
    BRIDGED,
    gpu_node,
    gpu_node_report,
    placement_input,
    requirements_of,
    running_gpu_pod,
)
from tests.placement.test_ranking import NODES, PODS
from webhook.cache.placement_input import PlacementInput
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import NodeRanking

H100, MIG = "NVIDIA-H100-80GB-HBM3", "nvidia.com/mig-1g.10gb"


def names(
    placement: PlacementInput, pod: PodMaker, strategy: ScoringStrategy = ScoringStrategy.TAB, **how: Any
) -> list[str]:
    order = NodeRanking(placement.snapshot, strategy, mix=placement.mix, profiles=placement.profiles).order(
        requirements_of(pod, placement.snapshot), **how
    )
    return [placement.snapshot.fleet.nodes[node].name for node in order.nodes.tolist()]


def half_used(name: str, count: int, cpu: str) -> list[Json]:
    return [gpu_node(name, 8, H100), running_gpu_pod(f"on-{name}", name, count=count, cpu=cpu)]


def test_goes_to_the_node_with_the_fewest_free_units() -> None:
    placement = placement_input(gpu_node("empty", 8, H100), *half_used("used", 4, "56"))
    pod = make_pod().gpus(1).requests("cpu", "4")

    assert names(placement, pod, ScoringStrategy.DEFAULT) == ["empty", "used"]
    assert names(placement, pod, ScoringStrategy.DEFAULT, over_fair_share=True) == ["used", "empty"]


def test_applies_to_mig_instances() -> None:
    placement = placement_input(
        mig_node("empty", small=7), mig_node("used", small=7), running_gpu_pod("x", "used", MIG, 5)
    )

    assert names(placement, make_pod().requests(MIG, "1"), over_fair_share=True) == ["used", "empty"]


def test_does_not_break_a_pair() -> None:
    held = {2: "team/x", 3: "team/y"}
    pair = [
        gpu_node("pair"),
        gpu_node_report("pair", 4, BRIDGED, held),
        running_gpu_pod("x", "pair"),
        running_gpu_pod("y", "pair"),
    ]
    placement = placement_input(gpu_node("empty", 8, H100), *pair)

    assert names(placement, make_pod().gpus(1), over_fair_share=True) == ["empty", "pair"]


def test_gets_links_as_good_as_other_pods() -> None:
    held = {0: "team/x", 2: "team/y"}
    torn = [
        gpu_node("torn"),
        gpu_node_report("torn", 4, BRIDGED, held),
        running_gpu_pod("x", "torn"),
        running_gpu_pod("y", "torn"),
    ]
    placement = placement_input(gpu_node("empty", 8, H100), *torn)

    assert names(placement, make_pod().gpus(2), over_fair_share=True) == ["empty", "torn"]


@settings(max_examples=60)
@given(st.sampled_from(PODS), st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 4)), max_size=6))
def test_may_use_the_same_nodes_as_other_pods(pod: PodMaker, held: list[tuple[str, int]]) -> None:
    placement = placement_input(
        *NODES, *(running_gpu_pod(f"p{i}", name, count=count) for i, (name, count) in enumerate(held))
    )

    assert set(names(placement, pod, over_fair_share=True)) == set(names(placement, pod))


@pytest.mark.parametrize("pod", [make_pod().requests("cpu", "4")])
def test_does_not_affect_pods_without_gpus(pod: PodMaker) -> None:
    placement = placement_input(*NODES)

    assert names(placement, pod, over_fair_share=True) == names(placement, pod)
