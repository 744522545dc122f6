"""The mix, learnt from arrivals."""

from __future__ import annotations

from itertools import pairwise

from tests.placement.making import NO_GPU, ONE, SHARE
from webhook.placement.capacity import PodDemand
from webhook.placement.fragmentation.workload_mix import (
    FLAT_MIX,
    HALF_LIFE,
    MAX_DEMANDS,
    MixEstimator,
    TurnoverEstimator,
)


def test_before_any_gpu_is_asked_for_the_mix_is_flat() -> None:
    learner = MixEstimator()
    learner.record_arrival(NO_GPU)

    assert learner.estimated_mix() == FLAT_MIX


def test_an_arrival_counts_half_after_a_half_life() -> None:
    learner = MixEstimator()
    learner.record_arrival(ONE)
    for _ in range(HALF_LIFE - 1):
        learner.record_arrival(NO_GPU)
    learner.record_arrival(SHARE)

    counts = learner.estimated_mix().counts

    assert round(counts[SHARE] / counts[ONE], 6) == 2


def test_what_is_remembered_is_bounded_and_the_most_asked_for_stay() -> None:
    learner = MixEstimator()
    for size in range(3 * MAX_DEMANDS):
        learner.record_arrival(ONE)
        learner.record_arrival(PodDemand(size, 1, 500))

    assert len(learner.estimated_mix().counts) <= 2 * MAX_DEMANDS
    assert learner.estimated_mix().gpu_demand_shares()[ONE] > 0.4


def test_weights_stay_finite_for_ever() -> None:
    learner = MixEstimator()
    for _ in range(60 * HALF_LIFE):
        learner.record_arrival(ONE)

    assert 0 < learner.estimated_mix().counts[ONE] < 1e15


def test_the_rule_is_built_anew_seldom_and_more_seldom_but_once_a_half_life() -> None:
    learner = MixEstimator()
    due = [i for i in range(1, 4 * HALF_LIFE) if learner.record_arrival(ONE)]

    assert due[:4] == [20, 30, 45, 67]
    assert max(later - one for one, later in pairwise(due)) <= HALF_LIFE


def test_where_whoever_has_come_stays_there_is_no_turnover() -> None:
    turnover = TurnoverEstimator()
    before = turnover.ratio
    turnover.record_arrival()

    assert (before, turnover.ratio) == (0, 0)


def test_where_as_many_leave_as_come_turnover_is_one_and_never_more() -> None:
    turnover = TurnoverEstimator()
    turnover.record_arrival()
    turnover.record_departure()
    even = turnover.ratio
    turnover.record_departure()

    assert (even, turnover.ratio) == (1, 1)


def test_who_left_counts_half_after_a_half_life_of_arrivals() -> None:
    turnover = TurnoverEstimator()
    turnover.record_arrival()
    turnover.record_departure()
    for _ in range(HALF_LIFE):
        turnover.record_arrival()

    seen = sum(2 ** (-age / HALF_LIFE) for age in range(HALF_LIFE + 1))

    assert round(turnover.ratio, 9) == round(0.5 / seen, 9)
