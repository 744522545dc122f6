"""When a rollout is halted: its share does worse than the rest by more than was allowed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.model.pod_outcomes import PodOutcome
from webhook.policy.rollout import PENDING_GRACE_SECONDS, HaltThresholds, Rollout, find_halt

NOW = 1_000_000.0
EVERYBODY = Rollout(100, "seed", HaltThresholds(oom=10, evictions=10, pending=10, window_minutes=60))
JUST_NOW, LONG_AGO = NOW - 60, NOW - 3700


def pods(count: int, *policies: str, **fields: Any) -> list[PodOutcome]:
    return [PodOutcome("team", "Deployment/a", policies, **fields) for _ in range(count)]


SHARE = pods(9, "sizing")
REST = pods(10)
CASES: dict[str, tuple[list[PodOutcome], str]] = {
    "all are well": (SHARE + REST, ""),
    "nobody is there": ([], ""),
    "exactly as much worse as is allowed": (SHARE + pods(1, "sizing", oom_killed=JUST_NOW) + REST, ""),
    "more than is allowed": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW) + REST, "OutOfMemory"),
    "nobody to compare with": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW), "OutOfMemory"),
    "as bad as the rest": (
        SHARE[:5] + pods(5, "sizing", oom_killed=JUST_NOW) + REST[:5] + pods(5, oom_killed=JUST_NOW),
        "",
    ),
    "only the rest does badly": (SHARE + pods(10, oom_killed=JUST_NOW), ""),
    "too long ago": (SHARE[1:] + pods(2, "sizing", oom_killed=LONG_AGO) + REST, ""),
    "evicted": (SHARE[1:] + pods(2, "sizing", evicted=JUST_NOW) + REST, "Evictions"),
    "gone, and it counts": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW, deleted=JUST_NOW) + REST, "OutOfMemory"),
    "waits for a node": (SHARE[1:] + pods(2, "sizing", pending=NOW - PENDING_GRACE_SECONDS) + REST, "Pending"),
    "does not wait for long": (SHARE[1:] + pods(2, "sizing", pending=NOW - PENDING_GRACE_SECONDS + 1) + REST, ""),
    "waited for a node, and is gone": (
        SHARE[1:] + pods(2, "sizing", pending=NOW - 3000, deleted=NOW - 3000 + PENDING_GRACE_SECONDS) + REST,
        "",
    ),
    "went before it had waited for long": (
        SHARE[1:] + pods(2, "sizing", pending=NOW - 600, deleted=NOW - 592) + REST,
        "",
    ),
    "well, and ended long ago": (
        pods(90, "sizing", ended=LONG_AGO) + pods(1, "sizing", oom_killed=JUST_NOW),
        "OutOfMemory",
    ),
    "well, ended long ago, and gone a moment ago": (
        pods(90, "sizing", ended=LONG_AGO, deleted=JUST_NOW) + pods(1, "sizing", oom_killed=JUST_NOW),
        "OutOfMemory",
    ),
    "ended for its memory a moment ago": (
        SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW, ended=JUST_NOW) + REST,
        "OutOfMemory",
    ),
    "changed by another policy": (pods(5, "other", oom_killed=JUST_NOW) + SHARE, ""),
}


@pytest.mark.parametrize(("outcomes", "reason"), CASES.values(), ids=CASES)
def test_halted(outcomes: list[PodOutcome], reason: str) -> None:
    halt = find_halt("sizing", EVERYBODY, outcomes, since=0, now=NOW)
    assert (halt.reason if halt else "") == reason


def test_it_says_how_many_of_how_many() -> None:
    halt = find_halt("sizing", EVERYBODY, SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW) + REST, since=0, now=NOW)
    assert halt is not None
    assert halt.message.startswith("2 of 10 pods in the share were OOMKilled within 60 min, and 0 of 10 other pods")


@pytest.mark.parametrize("harm", ["oom_killed", "evicted", "pending"])
def test_what_happened_before_it_began_is_not_counted(harm: str) -> None:
    before = NOW - PENDING_GRACE_SECONDS
    outcomes = SHARE[1:] + pods(2, "sizing", **{harm: before}) + REST
    assert find_halt("sizing", EVERYBODY, outcomes, since=before, now=NOW) is not None
    assert find_halt("sizing", EVERYBODY, outcomes, since=before + 1, now=NOW) is None


def test_a_rollout_that_nobody_asked_to_be_watched_goes_on() -> None:
    assert find_halt("sizing", Rollout(100, "s"), pods(3, "sizing", oom_killed=JUST_NOW), since=0, now=NOW) is None


def test_pods_of_workloads_outside_the_share_are_the_rest() -> None:
    nobody = Rollout(0, "s", EVERYBODY.halt_thresholds)
    assert find_halt("sizing", nobody, pods(3, "sizing", oom_killed=JUST_NOW), since=0, now=NOW) is None


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 20), st.integers(1, 20))
def test_it_is_halted_exactly_where_the_share_is_worse_by_more_than_allowed(a: int, b: int, c: int, d: int) -> None:
    harmed, well, others_harmed, others_well = a, b, c, d
    outcomes = (
        pods(harmed, "sizing", oom_killed=JUST_NOW) + pods(well, "sizing") + pods(others_harmed, oom_killed=JUST_NOW)
    )
    halt = find_halt("sizing", EVERYBODY, outcomes + pods(others_well), since=0, now=NOW)
    ours, theirs = harmed / (harmed + well), others_harmed / (others_harmed + others_well)
    if abs(ours - theirs - 0.1) > 1e-9:
        assert (halt is not None) is (harmed > 0 and ours > theirs + 0.1)
