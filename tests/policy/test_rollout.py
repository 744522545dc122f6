"""find_halt: a rollout is halted if its share does worse than the rest by more than the threshold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.model.pod_outcomes import PodOutcome
from webhook.policy.rollout import PENDING_GRACE_SECONDS, HaltThresholds, Rollout, find_halt

NOW = 1_000_000.0
ROLLOUT = Rollout(100, "seed", HaltThresholds(oom=10, evictions=10, pending=10, window_minutes=60))
JUST_NOW, LONG_AGO = NOW - 60, NOW - 3700


def pods(count: int, *policies: str, **fields: Any) -> list[PodOutcome]:
    return [PodOutcome("team", "Deployment/a", policies, **fields) for _ in range(count)]


SHARE = pods(9, "sizing")
REST = pods(10)
CASES: dict[str, tuple[list[PodOutcome], str]] = {
    "no harm": (SHARE + REST, ""),
    "no pods": ([], ""),
    "exactly at the threshold": (SHARE + pods(1, "sizing", oom_killed=JUST_NOW) + REST, ""),
    "above the threshold": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW) + REST, "OutOfMemory"),
    "no other pods": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW), "OutOfMemory"),
    "equal to the rest": (
        SHARE[:5] + pods(5, "sizing", oom_killed=JUST_NOW) + REST[:5] + pods(5, oom_killed=JUST_NOW),
        "",
    ),
    "only the rest is harmed": (SHARE + pods(10, oom_killed=JUST_NOW), ""),
    "too long ago": (SHARE[1:] + pods(2, "sizing", oom_killed=LONG_AGO) + REST, ""),
    "evicted": (SHARE[1:] + pods(2, "sizing", evicted=JUST_NOW) + REST, "Evictions"),
    "deleted pods count": (SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW, deleted=JUST_NOW) + REST, "OutOfMemory"),
    "pending": (SHARE[1:] + pods(2, "sizing", pending=NOW - PENDING_GRACE_SECONDS) + REST, "Pending"),
    "pending for a short time": (SHARE[1:] + pods(2, "sizing", pending=NOW - PENDING_GRACE_SECONDS + 1) + REST, ""),
    "pending and deleted": (
        SHARE[1:] + pods(2, "sizing", pending=NOW - 3000, deleted=NOW - 3000 + PENDING_GRACE_SECONDS) + REST,
        "",
    ),
    "deleted after a short time": (
        SHARE[1:] + pods(2, "sizing", pending=NOW - 600, deleted=NOW - 592) + REST,
        "",
    ),
    "finished long ago": (
        pods(90, "sizing", ended=LONG_AGO) + pods(1, "sizing", oom_killed=JUST_NOW),
        "OutOfMemory",
    ),
    "finished long ago and deleted now": (
        pods(90, "sizing", ended=LONG_AGO, deleted=JUST_NOW) + pods(1, "sizing", oom_killed=JUST_NOW),
        "OutOfMemory",
    ),
    "killed and finished now": (
        SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW, ended=JUST_NOW) + REST,
        "OutOfMemory",
    ),
    "changed by another policy": (pods(5, "other", oom_killed=JUST_NOW) + SHARE, ""),
}


@pytest.mark.parametrize(("outcomes", "reason"), CASES.values(), ids=CASES)
def test_halt_reason(outcomes: list[PodOutcome], reason: str) -> None:
    halt = find_halt("sizing", ROLLOUT, outcomes, since=0, now=NOW)
    assert (halt.reason if halt else "") == reason


def test_the_message_has_the_counts() -> None:
    halt = find_halt("sizing", ROLLOUT, SHARE[1:] + pods(2, "sizing", oom_killed=JUST_NOW) + REST, since=0, now=NOW)
    assert halt is not None
    assert halt.message.startswith("2 of 10 pods in the share were OOMKilled within 60 min, and 0 of 10 other pods")


@pytest.mark.parametrize("harm", ["oom_killed", "evicted", "pending"])
def test_earlier_events_do_not_count(harm: str) -> None:
    before = NOW - PENDING_GRACE_SECONDS
    outcomes = SHARE[1:] + pods(2, "sizing", **{harm: before}) + REST
    assert find_halt("sizing", ROLLOUT, outcomes, since=before, now=NOW) is not None
    assert find_halt("sizing", ROLLOUT, outcomes, since=before + 1, now=NOW) is None


def test_a_rollout_without_thresholds_is_never_halted() -> None:
    assert find_halt("sizing", Rollout(100, "s"), pods(3, "sizing", oom_killed=JUST_NOW), since=0, now=NOW) is None


def test_pods_outside_the_share_are_the_rest() -> None:
    no_workloads = Rollout(0, "s", ROLLOUT.halt_thresholds)
    assert find_halt("sizing", no_workloads, pods(3, "sizing", oom_killed=JUST_NOW), since=0, now=NOW) is None


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 20), st.integers(1, 20))
def test_halted_exactly_above_the_threshold(a: int, b: int, c: int, d: int) -> None:
    harmed, unharmed, others_harmed, others_unharmed = a, b, c, d
    outcomes = (
        pods(harmed, "sizing", oom_killed=JUST_NOW)
        + pods(unharmed, "sizing")
        + pods(others_harmed, oom_killed=JUST_NOW)
    )
    halt = find_halt("sizing", ROLLOUT, outcomes + pods(others_unharmed), since=0, now=NOW)
    ours, theirs = harmed / (harmed + unharmed), others_harmed / (others_harmed + others_unharmed)
    if abs(ours - theirs - 0.1) > 1e-9:
        assert (halt is not None) is (harmed > 0 and ours > theirs + 0.1)
