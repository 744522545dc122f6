"""The workload mix and turnover, learned from arrivals."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.churn import TurnoverEstimator
from tests.placement.capacities import NO_GPU, ONE, SHARE
from webhook.placement.capacity import PodDemand
from webhook.placement.fragmentation.workload_mix import (
    FLAT_MIX,
    HALF_LIFE,
    MAX_DEMANDS,
    MixEstimator,
)


def test_mix_is_flat_before_the_first_gpu_request() -> None:
    learner = MixEstimator()
    learner.record_arrival(NO_GPU)

    assert learner.estimated_mix() == FLAT_MIX


def test_arrival_counts_half_after_a_half_life() -> None:
    learner = MixEstimator()
    learner.record_arrival(ONE)
    for _ in range(HALF_LIFE - 1):
        learner.record_arrival(NO_GPU)
    learner.record_arrival(SHARE)

    counts = learner.estimated_mix().counts

    assert round(counts[SHARE] / counts[ONE], 6) == 2


def test_least_frequent_demands_are_dropped() -> None:
    learner = MixEstimator()
    for size in range(3 * MAX_DEMANDS):
        learner.record_arrival(ONE)
        learner.record_arrival(PodDemand(size, 1, 500))

    assert len(learner.estimated_mix().counts) <= 2 * MAX_DEMANDS
    assert learner.estimated_mix().gpu_demand_shares()[ONE] > 0.4


def test_weights_stay_finite() -> None:
    learner = MixEstimator()
    for _ in range(60 * HALF_LIFE):
        learner.record_arrival(ONE)

    assert 0 < learner.estimated_mix().counts[ONE] < 1e15


def test_scorer_is_rebuilt_ever_more_rarely() -> None:
    learner = MixEstimator()
    due = [i for i in range(1, 4 * HALF_LIFE) if learner.record_arrival(ONE)]

    assert due[:4] == [20, 30, 45, 67]
    assert max(later - one for one, later in pairwise(due)) <= HALF_LIFE


def test_no_turnover_if_no_pod_leaves() -> None:
    turnover = TurnoverEstimator()
    before = turnover.ratio
    turnover.record_arrival()

    assert (before, turnover.ratio) == (0, 0)


def test_turnover_is_at_most_one() -> None:
    turnover = TurnoverEstimator()
    turnover.record_arrival()
    turnover.record_departure()
    even = turnover.ratio
    turnover.record_departure()

    assert (even, turnover.ratio) == (1, 1)


def test_departure_counts_half_after_a_half_life_of_arrivals() -> None:
    turnover = TurnoverEstimator()
    turnover.record_arrival()
    turnover.record_departure()
    for _ in range(HALF_LIFE):
        turnover.record_arrival()

    seen = sum(2 ** (-age / HALF_LIFE) for age in range(HALF_LIFE + 1))

    assert round(turnover.ratio, 9) == round(0.5 / seen, 9)
