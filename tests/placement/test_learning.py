"""The mix, learnt from arrivals."""

from __future__ import annotations

from itertools import pairwise

from tests.placement.making import NO_GPU, ONE, SHARE
from webhook.placement.fragmentation.mixes import FLAT, HALF_LIFE, MOST_NEEDS, Learner
from webhook.placement.needs import Need


def test_before_any_gpu_is_asked_for_the_mix_is_flat() -> None:
    learner = Learner()
    learner.arrived(NO_GPU)

    assert learner.mix() == FLAT


def test_an_arrival_counts_half_after_a_half_life() -> None:
    learner = Learner()
    learner.arrived(ONE)
    for _ in range(HALF_LIFE - 1):
        learner.arrived(NO_GPU)
    learner.arrived(SHARE)

    counts = learner.mix().counts

    assert round(counts[SHARE] / counts[ONE], 6) == 2


def test_what_is_remembered_is_bounded_and_the_most_asked_for_stay() -> None:
    learner = Learner()
    for size in range(3 * MOST_NEEDS):
        learner.arrived(ONE)
        learner.arrived(Need(size, 1, 500))

    assert len(learner.mix().counts) <= 2 * MOST_NEEDS
    assert learner.mix().gpu_shares()[ONE] > 0.4


def test_weights_stay_finite_for_ever() -> None:
    learner = Learner()
    for _ in range(60 * HALF_LIFE):
        learner.arrived(ONE)

    assert 0 < learner.mix().counts[ONE] < 1e15


def test_the_rule_is_built_anew_seldom_and_more_seldom_but_once_a_half_life() -> None:
    learner = Learner()
    due = [i for i in range(1, 4 * HALF_LIFE) if learner.arrived(ONE)]

    assert due[:4] == [20, 30, 45, 67]
    assert max(later - one for one, later in pairwise(due)) <= HALF_LIFE
