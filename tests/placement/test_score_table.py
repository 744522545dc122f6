"""The score table: cached scores always equal newly computed ones."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placement.capacities import (
    EIGHT,
    NO_GPU,
    ONE,
    PAIR,
    SHARE,
    SMALL,
    cluster_capacities,
    cluster_capacity,
    empty_node,
    free_capacity,
    pod_demands,
)
from webhook.placement.capacity import ClusterCapacity, FreeCapacityArrays, PodDemand
from webhook.placement.fragmentation.strategies import SCORERS, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import WorkloadMix
from webhook.placement.nodes.score_table import INFEASIBLE_SCORE, MAX_SCORE_ROWS, GpuPlacement, ScoreTable, best_nodes
from webhook.placement.nodes.simulator import Simulator

MIX = WorkloadMix({SHARE: 3, SMALL: 1, ONE: 3, PAIR: 1, EIGHT: 1, NO_GPU: 1})


@settings(max_examples=60)
@given(
    cluster_capacities,
    st.lists(pod_demands, max_size=30),
    st.sampled_from(list(ScoringStrategy)),
    st.randoms(use_true_random=False),
)
def test_cached_scores_equal_new_scores(
    of: ClusterCapacity, pods: list[PodDemand], strategy: ScoringStrategy, random: Random
) -> None:
    rule = SCORERS[strategy](of, MIX)
    score_table = ScoreTable(FreeCapacityArrays(of), rule)
    held: list[tuple[GpuPlacement, PodDemand]] = []
    for demand in pods:
        if held and random.random() < 0.3:
            score_table.release(*held.pop(random.randrange(len(held))))
        best = best_nodes(score_table.scores(demand))
        if len(best):
            place = _take(score_table, int(best[0]), demand)
            held.append((place, demand))
        assert (score_table.scores(demand) == ScoreTable(score_table.free, rule).scores(demand)).all()

    for place, demand in held:
        score_table.release(place, demand)
    assert (score_table.free.gpus == of.gpus).all()
    assert (score_table.free.cpu == of.cpu).all()
    assert (score_table.free.memory == of.memory).all()


def _take(score_table: ScoreTable, node: int, demand: PodDemand) -> GpuPlacement:
    place = GpuPlacement(node, score_table.choose_gpus(node, demand))
    score_table.allocate(place, demand)
    return place


def test_scores_stay_correct_after_the_log_is_cut() -> None:
    score_table = ScoreTable(
        FreeCapacityArrays(cluster_capacity()), SCORERS[ScoringStrategy.TAB](cluster_capacity(), MIX)
    )
    for _ in range(3000):
        score_table.release(_take(score_table, 0, SHARE), SHARE)

    assert (
        score_table.scores(SHARE)
        == ScoreTable(score_table.free, SCORERS[ScoringStrategy.TAB](cluster_capacity(), MIX)).scores(SHARE)
    ).all()


INFEASIBLE = [
    ("without the CPU", PodDemand(65_000, 1, 1000)),
    ("without the memory", PodDemand(0, 1, 1000, (), 600 << 30)),
    ("without so many GPUs", PodDemand(0, 9, 1000)),
    ("of another model", PodDemand(0, 1, 1000, ("T4",))),
]


@pytest.mark.parametrize(("sentence", "demand"), INFEASIBLE, ids=[case[0] for case in INFEASIBLE])
def test_infeasible_nodes(sentence: str, demand: PodDemand) -> None:
    score_table = ScoreTable(
        FreeCapacityArrays(cluster_capacity()), SCORERS[ScoringStrategy.TAB](cluster_capacity(), MIX)
    )

    assert score_table.scores(demand).tolist() == [INFEASIBLE_SCORE]
    assert not len(best_nodes(score_table.scores(demand)))


def test_equally_scored_shares_go_to_the_fullest_gpu_or_to_the_lowest() -> None:
    one = cluster_capacity(empty_node(gpus=3))
    free = [[1000, 700, 600]]
    mix = WorkloadMix({PodDemand(0, 1, 10): 1})

    assert ScoreTable(free_capacity(one, free), SCORERS[ScoringStrategy.MOST_ALLOCATED](one, mix)).choose_gpus(
        0, SHARE
    ) == (2,)
    assert ScoreTable(free_capacity(one, free), SCORERS[ScoringStrategy.FGD](one, mix)).choose_gpus(0, SHARE) == (0,)


def test_table_places_a_share_on_the_gpu_it_fills() -> None:
    one = cluster_capacity(empty_node(gpus=3))

    assert ScoreTable(free_capacity(one, [[1000, 700, 500]]), SCORERS[ScoringStrategy.TAB](one, MIX)).choose_gpus(
        0, SHARE
    ) == (2,)


@pytest.mark.parametrize("strategy", list(ScoringStrategy))
def test_cluster_without_nodes(strategy: ScoringStrategy) -> None:
    """A cluster may be scaled down to zero nodes and up again."""
    assert (
        Simulator(ClusterCapacity(()), strategy, np.random.default_rng(1)).schedule_pod(PodDemand(1000, 1, 1000))
        is None
    )


def test_equal_nodes_are_chosen_at_random_or_in_the_given_order() -> None:
    of = cluster_capacity(*(empty_node(f"n{i}", 1) for i in range(6)))

    def first(seed: int, order: list[int] | None = None) -> int:
        rank = None if order is None else np.array(order)
        simulator = Simulator(of, ScoringStrategy.MOST_ALLOCATED, np.random.default_rng(seed), MIX, order=rank)
        place = simulator.schedule_pod(ONE)
        assert place is not None
        return place.node

    assert len({first(seed) for seed in range(40)}) > 3
    assert {first(seed, [5, 4, 0, 3, 2, 1]) for seed in range(10)} == {2}


def test_unschedulable_pods_change_nothing() -> None:
    simulator = Simulator(cluster_capacity(empty_node(gpus=1)), ScoringStrategy.TAB, np.random.default_rng(1), MIX)

    assert simulator.schedule_pod(ONE) is not None
    assert simulator.schedule_pod(ONE) is None
    assert simulator.score_table.free.gpus.tolist() == [[0]]


def test_simulator_without_a_mix_learns_it() -> None:
    tied = PodDemand(1000, 1, 1000, ("T4",))
    of = cluster_capacity(empty_node("a", 8, 64, "A100"), empty_node("b", 8, 64, "T4"))
    simulator = Simulator(of, ScoringStrategy.TAB, np.random.default_rng(1))
    for _ in range(40):
        simulator.record_arrival(tied)

    place = simulator.schedule_pod(ONE)

    assert place is not None
    assert of.nodes[place.node].model == "A100"


def test_rows_are_dropped_beyond_the_limit() -> None:
    score_table = ScoreTable(
        FreeCapacityArrays(cluster_capacity()), SCORERS[ScoringStrategy.TAB](cluster_capacity(), MIX)
    )
    before = score_table.scores(SHARE)
    for cpu in range(MAX_SCORE_ROWS + 1):
        score_table.scores(PodDemand(cpu, 1, 500))

    assert (score_table.scores(SHARE) == before).all()
