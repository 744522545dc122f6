"""The benchmarks' method: order of arrivals, metric, and churn without losses."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.arrivals import RATIO, arrivals, fill
from benchmarks.churn import Cluster, run, stream
from benchmarks.openb import made
from webhook.placement.capacity import PodDemand
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.fragmentation.workload_mix import mix_from_demands
from webhook.placement.nodes.simulator import Simulator

MADE = made()
NEEDS = MADE.lists["made"]


def test_every_pod_arrives_once_then_some_again_up_to_the_ratio() -> None:
    order = arrivals(NEEDS, MADE.capacity.total_milli, np.random.default_rng(1))
    requested = sum(demand.total_milli for demand in order)

    assert sorted(order[: len(NEEDS)], key=repr) == sorted(NEEDS, key=repr)
    assert set(order) <= set(NEEDS)
    assert RATIO * MADE.capacity.total_milli - 8000 < requested <= RATIO * MADE.capacity.total_milli + 8000


def test_pods_are_removed_from_a_list_that_requests_too_much() -> None:
    order = arrivals(NEEDS * 3, MADE.capacity.total_milli, np.random.default_rng(1))

    assert sum(demand.total_milli for demand in order) <= RATIO * MADE.capacity.total_milli


def test_allocation_is_the_mean_of_arrivals_that_round_to_a_percent() -> None:
    simulator = Simulator(
        MADE.capacity, ScoringStrategy.MOST_ALLOCATED, np.random.default_rng(1), mix_from_demands(NEEDS)
    )
    one = PodDemand(0, 1, 1000)
    capacity = MADE.capacity.total_milli // 1000

    found = fill(simulator, [one] * capacity)

    assert found[100] == pytest.approx(100, abs=0.5)
    assert found[50] == pytest.approx(50, abs=0.5)


@pytest.mark.parametrize("strategy", [ScoringStrategy.TAB, ScoringStrategy.MOST_ALLOCATED])
def test_churn_releases_everything(strategy: ScoringStrategy) -> None:
    rng = np.random.default_rng(1)
    simulator = Simulator(MADE.capacity, strategy, rng, mix_from_demands(NEEDS))
    cluster = Cluster(simulator)
    arriving = stream(NEEDS, MADE.capacity.total_milli, 95, rng)[:400]
    for pod in arriving:
        cluster.arrive(pod)

    cluster.finish()

    assert cluster.waiting == 0
    assert (simulator.score_table.free.gpus == MADE.capacity.gpus).all()
    assert (simulator.score_table.free.cpu == MADE.capacity.cpu).all()


def test_equal_seeds_give_equal_churn() -> None:
    assert run(MADE, "made", 80, ScoringStrategy.FGD, 3) == run(MADE, "made", 80, ScoringStrategy.FGD, 3)
