"""Fair share: GPU time that decays, checked against weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.policy.fair_share import HOUR_SECONDS, FairShare, PodGpuTime, decay_gpu_time, rank_fair_shares

NOW = 1_000_000_000.0
WEEK = 168
RULE = FairShare(half_life_hours=WEEK)


def gpu_time(hours: float, *, ago: float = 0, milli: int = 1000, group: str = "a") -> PodGpuTime:
    """Return GPUs allocated for some hours, until some hours ago; 0 means they are still allocated."""
    end = NOW - ago * HOUR_SECONDS
    return PodGpuTime(group, milli, end - hours * HOUR_SECONDS, end if ago else 0)


COUNTS: dict[str, tuple[PodGpuTime, int]] = {
    "an hour just now": (gpu_time(1), 998),
    "an hour a half-life ago": (gpu_time(1, ago=WEEK), 499),
    "forever": (gpu_time(1e6), round(1000 * WEEK / math.log(2))),
    "a seventh of a card": (gpu_time(7, milli=143), 987),
    "nothing": (gpu_time(0), 0),
    "a start in the future": (PodGpuTime("a", 1000, NOW + HOUR_SECONDS), 0),
    "an end before its start": (PodGpuTime("a", 1000, NOW - HOUR_SECONDS, NOW - 2 * HOUR_SECONDS), 0),
    "an end from a clock that is ahead": (PodGpuTime("a", 1000, NOW - HOUR_SECONDS, NOW + HOUR_SECONDS), 998),
}


@pytest.mark.parametrize(("use", "want"), COUNTS.values(), ids=COUNTS)
def test_usage_decays_with_age(use: PodGpuTime, want: int) -> None:
    assert decay_gpu_time(use, WEEK, NOW) == want


def test_shares_are_compared_with_weights() -> None:
    rule = FairShare("teams", half_life_hours=WEEK, shares=(("a", 3), ("b", 1), ("idle", 4)))
    found = {one.group: one for one in rank_fair_shares([gpu_time(3, group="a"), gpu_time(3, group="b")], rule, NOW)}
    assert {name: (one.allocated, one.entitled, one.excess_share) for name, one in found.items()} == {
        "a": (500, 375, 125),
        "b": (500, 125, 375),
        "idle": (0, 500, -500),
    }
    assert (found["a"].holds_milli, found["idle"].holds_milli) == (1000, 0)


def test_namespaces_are_sorted_by_overuse_then_name() -> None:
    uses = [gpu_time(1, group=name) for name in ("c", "b")] + [gpu_time(2, group="a")]
    assert [one.group for one in rank_fair_shares(uses, RULE, NOW)] == ["a", "b", "c"]


def test_no_usage() -> None:
    [one] = rank_fair_shares([], FairShare(shares=(("a", 1),)), NOW)
    assert (one.milli_hours, one.allocated, one.entitled) == (0, 0, 1000)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 8000), st.integers(1, 8760))
def test_usage_split_in_two_counts_the_same(first: float, second: float, milli: int, half_life: int) -> None:
    middle, end = NOW - second * HOUR_SECONDS, NOW
    whole = decay_gpu_time(PodGpuTime("a", milli, middle - first * HOUR_SECONDS, end), half_life, NOW)
    parts = decay_gpu_time(PodGpuTime("a", milli, middle - first * HOUR_SECONDS, middle), half_life, NOW)
    parts += decay_gpu_time(PodGpuTime("a", milli, middle, end), half_life, NOW)
    assert abs(whole - parts) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.1, 1e3), st.integers(1, 8000)), min_size=1))
def test_shares_add_up_to_the_total(uses: list[tuple[str, float, int]]) -> None:
    found = rank_fair_shares([gpu_time(hours, milli=milli, group=group) for group, hours, milli in uses], RULE, NOW)
    assert abs(sum(one.entitled for one in found) - 1000) <= len(found)
    if any(one.milli_hours for one in found):
        assert abs(sum(one.allocated for one in found) - 1000) <= len(found)
