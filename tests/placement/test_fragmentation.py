"""Values and scores of each scoring strategy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.placement.capacities import (
    EIGHT,
    NO_GPU,
    ONE,
    PAIR,
    SHARE,
    SMALL,
    capacity_rows,
    cluster_capacity,
    empty_node,
    free_capacity,
    pod_demands,
)
from webhook.placement.capacity import FreeCapacityArrays, PodDemand
from webhook.placement.fragmentation.strategies import DefaultScorer, FgdScorer, MostAllocatedScorer, typical_demands
from webhook.placement.fragmentation.tab import (
    CONSOLIDATION_BONUS,
    MAX_CLAIM,
    MAX_CORES,
    MILLI_LEVELS,
    SCARCITY_PRICE,
    TabScorer,
    count_offers,
    cpu_claim_factor,
    expected_fill_table,
    idle_gpu_values,
    scarcity_prices,
)
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix, mix_from_demands
from webhook.placement.nodes.score_table import ScoreTable

SHARES = WorkloadMix({SHARE: 3, SMALL: 1, PodDemand(2000, 1, 300): 2})


def filled(shares: Mapping[PodDemand, float], cores: int, free: int, rounds: int) -> float:
    """The expected fill of one GPU by its definition: one pod after the other, each taken if it fits."""

    @cache
    def expect(cores: int, free: int, left: int) -> float:
        if not left:
            return 0.0
        worth = 0.0
        for demand, share in shares.items():
            requested = demand.cpu_milli // 1000
            if demand.gpus == 1 and requested <= cores and demand.gpu_milli <= free:
                worth += share * (demand.gpu_milli + expect(cores - requested, free - demand.gpu_milli, left - 1))
            else:
                worth += share * expect(cores, free, left - 1)
        return worth

    return expect(cores, free, rounds)


def test_fill_table_is_the_expected_fill() -> None:
    shares = SHARES.gpu_demand_shares()
    table = expected_fill_table(shares, "A100", 6)

    for cores in (0, 1, 2, 3, 5, MAX_CORES):
        for level in (0, 9, 10, 30, 50, 80, 99, 100):
            assert table[cores, level] == pytest.approx(filled(shares, cores, 10 * level, 6)), (cores, level)


@given(st.dictionaries(pod_demands.filter(lambda demand: demand.gpus > 0), st.integers(1, 9), min_size=1, max_size=5))
def test_value_is_at_most_the_size_and_grows_with_cores(counts: dict[PodDemand, float]) -> None:
    table = expected_fill_table(WorkloadMix(counts).gpu_demand_shares(), "A100", 20)

    assert (table <= 10 * np.arange(MILLI_LEVELS) + 1e-9).all()
    assert (table >= 0).all()
    assert (table[-1] == table[-2]).all()


def test_pod_with_several_shares_counts_as_several_pods() -> None:
    assert WorkloadMix({PodDemand(3000, 3, 250): 1, ONE: 1}).gpu_demand_shares() == {
        PodDemand(1000, 1, 250): 0.75,
        ONE: 0.25,
    }
    assert scarcity_prices(
        WorkloadMix({PodDemand(3000, 3, 250): 1}), cluster_capacity(empty_node(gpus=1))
    ).tolist() == [1.0]


def test_rarer_shares_mean_more_offers() -> None:
    assert count_offers({SHARE: 1.0}) == 27
    assert count_offers({SHARE: 0.44, ONE: 0.56}) == 61
    assert count_offers({ONE: 1.0}) == 200
    assert count_offers({SHARE: 0.05, ONE: 0.95}) == 200


def test_values_of_full_and_idle_nodes() -> None:
    tab = TabScorer(cluster_capacity(), SHARES)

    assert tab.node_values(capacity_rows([0] * 8))[0] == 0
    assert 0 < tab.node_values(capacity_rows([1000] * 8))[0] <= 8000


def test_gpus_without_cores_are_worth_nothing() -> None:
    assert TabScorer(cluster_capacity(), SHARES).node_values(capacity_rows([1000] * 8, cores=0))[0] == 0


def test_unusable_free_part_is_worth_nothing() -> None:
    assert TabScorer(cluster_capacity(), WorkloadMix({SHARE: 1})).node_values(capacity_rows([490] + [0] * 7))[0] == 0


def test_share_is_placed_where_it_fills_a_partial_gpu() -> None:
    tab = TabScorer(cluster_capacity(), SHARES)
    before = tab.node_values(capacity_rows([500, 1000]))[0]
    hole, idle = (
        tab.node_values(capacity_rows([0, 1000], cores=63))[0],
        tab.node_values(capacity_rows([500, 500], cores=63))[0],
    )

    assert before > hole > idle


def test_demand_for_sets_raises_the_value_of_whole_sets() -> None:
    def kept(pairs: float) -> float:
        worth = idle_gpu_values({ONE: 1 - pairs, PAIR: pairs}, 2)
        return float((worth[2] - 2 * worth[1]) @ (900.0, 1.0))

    assert kept(0.0) == 0
    assert 0 < kept(0.05) < kept(0.5) <= 200


def test_idle_sets_are_filled_with_the_probability_of_demand() -> None:
    worth = idle_gpu_values({PAIR: 0.5, EIGHT: 0.5}, 8)
    chance = 1 - np.exp(-2)

    assert worth[1].tolist() == [1, 0]
    assert worth[3] == pytest.approx(chance * (worth[1] + (0, 2000)) + (1 - chance) * np.array([3, 0]))
    assert worth[8, 0] < worth[7, 0] + 1


def test_price_is_demand_over_capacity() -> None:
    mixed = cluster_capacity(empty_node("a", 6, 64, "A100"), empty_node("b", 2, 64, "T4"))
    tied, free = PodDemand(0, 1, 1000, ("T4",)), PodDemand(0, 1, 1000)

    assert scarcity_prices(WorkloadMix({free: 1}), mixed).tolist() == [1, 1]
    assert scarcity_prices(WorkloadMix({tied: 1, free: 1}), mixed).tolist() == [0.5, 0.5 + 4 / 2]


def test_small_node_that_few_pods_fit_is_cheap() -> None:
    mixed = cluster_capacity(empty_node("big", 8, 64), empty_node("small", 8, 8))

    small, big = scarcity_prices(WorkloadMix({EIGHT: 1, ONE: 1}), mixed)

    assert small < big


def test_flexible_pod_avoids_the_scarce_model() -> None:
    mixed = cluster_capacity(empty_node("a", 6, 64, "A100"), empty_node("b", 2, 64, "T4"))
    tab = TabScorer(mixed, WorkloadMix({PodDemand(1000, 1, 1000, ("T4",)): 1, PodDemand(1000, 1, 1000): 1}))
    same = np.zeros(2)

    common, scarce = tab.placement_scores(same, same, np.array([0, 1]), PodDemand(1000, 1, 1000))

    assert common - scarce == pytest.approx(2 * SCARCITY_PRICE, abs=0.1)


def test_pod_without_gpus_pays_no_price() -> None:
    same = np.zeros(1)

    assert TabScorer(cluster_capacity(), SHARES).placement_scores(same, same, np.array([0]), NO_GPU)[0] == 0


def test_with_turnover_nearly_empty_nodes_are_avoided() -> None:
    """Three or seven idle GPUs of eight: if no pod requests sets, each GPU has the same value."""
    pair = cluster_capacity(empty_node("fuller"), empty_node("emptier"))
    free = free_capacity(pair, [[0, 0, 0, 0, 0, 1000, 1000, 1000], [0, *[1000] * 7]], [24, 56])
    rule = TabScorer(pair, WorkloadMix({ONE: 1, SHARE: 1}))

    stays = ScoreTable(free, rule).scores(ONE)
    leaves = ScoreTable(free, rule, turnover=1.0).scores(ONE)

    assert stays[0] == pytest.approx(stays[1], abs=1)
    assert leaves[0] - leaves[1] == pytest.approx(CONSOLIDATION_BONUS / 2, abs=1)


def test_with_turnover_a_scarce_model_costs_half() -> None:
    pair = cluster_capacity(empty_node("scarce", model="T4"), empty_node("plenty", model="A100"))
    rule = TabScorer(pair, WorkloadMix({ONE: 1, PodDemand(4000, 1, 1000, ("T4",)): 3}))

    stays = ScoreTable(FreeCapacityArrays(pair), rule).scores(ONE)
    leaves = ScoreTable(FreeCapacityArrays(pair), rule, turnover=1.0).scores(ONE)

    assert stays[1] - stays[0] == pytest.approx(1200, abs=1)
    assert leaves[1] - leaves[0] == pytest.approx(600, abs=1)


@pytest.mark.parametrize("turnover", [0.0, 1.0])
def test_pod_without_gpus_is_placed_by_value_alone(turnover: float) -> None:
    pair = cluster_capacity(empty_node("used"), empty_node("empty"))
    free = free_capacity(pair, [[0] * 8, [1000] * 8], [16, 16])

    used, empty = ScoreTable(free, TabScorer(pair, SHARES), turnover).scores(NO_GPU)

    assert used > empty


def test_cpu_claim_falls_as_pods_request_more_cores() -> None:
    one = cluster_capacity(empty_node(gpus=8, cores=64))

    assert cpu_claim_factor(WorkloadMix({PodDemand(8000, 1, 1000): 1}), one) == pytest.approx(0.8)
    assert cpu_claim_factor(WorkloadMix({PodDemand(16_000, 1, 1000): 1}), one) == pytest.approx(0.8 / 16)
    assert cpu_claim_factor(WorkloadMix({PodDemand(1000, 1, 1000): 1}), one) == MAX_CLAIM
    assert cpu_claim_factor(WorkloadMix({PodDemand(0, 1, 1000): 1}), one) == MAX_CLAIM


def any_model(demand: PodDemand) -> PodDemand:
    """The need on GPUs of any model."""
    return PodDemand(demand.cpu_milli, demand.gpus, demand.gpu_milli)


def lost(mix: WorkloadMix, gpus: list[int], cores: int) -> float:
    """FGD's fragments by their definition."""
    total = 0.0
    for demand, share in typical_demands(mix).items():
        room = sum(g // demand.gpu_milli for g in gpus) if demand.gpus else 0
        runs = cores * 1000 >= demand.cpu_milli and room >= demand.gpus
        usable = sum(g for g in gpus if g >= demand.gpu_milli) if runs and demand.gpus else 0
        total += share * (sum(gpus) - usable)
    return total


@given(
    st.dictionaries(pod_demands.map(any_model), st.integers(1, 9), min_size=1),
    st.lists(st.integers(0, 100).map(lambda m: 10 * m), min_size=8, max_size=8),
    st.integers(0, 64),
)  # fmt: skip
def test_fragments_are_capacity_that_typical_pods_cannot_use(
    counts: dict[PodDemand, float], gpus: list[int], cores: int
) -> None:
    mix = WorkloadMix(counts)

    assert -FgdScorer(cluster_capacity(), mix).node_values(capacity_rows(gpus, cores))[0] == pytest.approx(
        lost(mix, gpus, cores)
    )


def test_typical_pods_are_the_most_frequent_95_percent() -> None:
    assert typical_demands(WorkloadMix({ONE: 90, SHARE: 6, SMALL: 4})) == {ONE: 90 / 96, SHARE: 6 / 96}


def test_fgd_scores_in_whole_hundredths_as_published() -> None:
    fgd = FgdScorer(cluster_capacity(), WorkloadMix({SHARE: 1}))
    was, becomes = np.array([0.0, 0.0, 0.0]), np.array([0.0, -1000.0, 1000.0])

    assert fgd.placement_scores(was, becomes, np.arange(3), SHARE).tolist() == [50, 26, 73]


def test_most_allocated_is_hundredths_of_gpus_in_use() -> None:
    assert (
        MostAllocatedScorer(cluster_capacity(), FLAT_MIX).node_values(
            capacity_rows([0, 0, 333, 1000, 1000, 1000, 1000, 1000])
        )[0]
        == 33
    )


def test_default_strategy_spreads_by_cpu_and_memory() -> None:
    pair = cluster_capacity(empty_node("used", 2), empty_node("empty", 2))
    free = free_capacity(pair, [[1000, 1000], [1000, 1000]], [32, 64])

    used, empty = ScoreTable(free, DefaultScorer(pair, FLAT_MIX)).scores(NO_GPU)

    assert empty > used


def test_mix_ignores_memory() -> None:
    assert mix_from_demands([PodDemand(1, 1, 500, (), 100), PodDemand(1, 1, 500, (), 200)]).counts == {
        PodDemand(1, 1, 500): 2
    }
