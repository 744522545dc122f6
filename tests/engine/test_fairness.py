"""Fair share: GPU time that decays, held against weights."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.engine.fairness import HOUR, decayed, standings
from webhook.model.fairness import Use
from webhook.policy.fairness import FairShare

NOW = 1_000_000_000.0
WEEK = 168
RULE = FairShare(half_life_hours=WEEK)


def held(hours: float, *, ago: float = 0, milli: int = 1000, group: str = "a") -> Use:
    """GPUs held for some hours that ended some hours ago; ago 0: still held."""
    end = NOW - ago * HOUR
    return Use(group, milli, end - hours * HOUR, end if ago else 0)


COUNTS: dict[str, tuple[Use, int]] = {
    "an hour just now": (held(1), 998),
    "an hour a half-life ago": (held(1, ago=WEEK), 499),
    "for ever": (held(1e6), round(1000 * WEEK / math.log(2))),
    "a seventh of a card": (held(7, milli=143), 987),
    "nothing": (held(0), 0),
    "what has yet to begin": (Use("a", 1000, NOW + HOUR), 0),
    "an end before its start": (Use("a", 1000, NOW - HOUR, NOW - 2 * HOUR), 0),
    "an end by a clock that is ahead": (Use("a", 1000, NOW - HOUR, NOW + HOUR), 998),
}


@pytest.mark.parametrize(("use", "want"), COUNTS.values(), ids=COUNTS)
def test_what_a_use_counts_today(use: Use, want: int) -> None:
    assert decayed(use, WEEK, NOW) == want


def test_shares_are_held_against_weights() -> None:
    rule = FairShare("teams", half_life_hours=WEEK, shares=(("a", 3), ("b", 1), ("idle", 4)))
    found = {one.group: one for one in standings([held(3, group="a"), held(3, group="b")], rule, NOW)}
    assert {name: (one.used, one.entitled, one.over) for name, one in found.items()} == {
        "a": (500, 375, 125),
        "b": (500, 125, 375),
        "idle": (0, 500, -500),
    }
    assert (found["a"].holds_milli, found["idle"].holds_milli) == (1000, 0)


def test_whoever_is_over_the_most_stands_first_and_equals_by_name() -> None:
    uses = [held(1, group=name) for name in ("c", "b")] + [held(2, group="a")]
    assert [one.group for one in standings(uses, RULE, NOW)] == ["a", "b", "c"]


def test_nobody_used_anything() -> None:
    [one] = standings([], FairShare(shares=(("a", 1),)), NOW)
    assert (one.milli_hours, one.used, one.entitled) == (0, 0, 1000)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.integers(1, 8000), st.integers(1, 8760))
def test_a_use_cut_in_two_counts_the_same(first: float, second: float, milli: int, half_life: int) -> None:
    middle, end = NOW - second * HOUR, NOW
    whole = decayed(Use("a", milli, middle - first * HOUR, end), half_life, NOW)
    parts = decayed(Use("a", milli, middle - first * HOUR, middle), half_life, NOW)
    parts += decayed(Use("a", milli, middle, end), half_life, NOW)
    assert abs(whole - parts) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0.1, 1e3), st.integers(1, 8000)), min_size=1))
def test_all_parts_make_a_whole(uses: list[tuple[str, float, int]]) -> None:
    found = standings([held(hours, milli=milli, group=group) for group, hours, milli in uses], RULE, NOW)
    assert abs(sum(one.entitled for one in found) - 1000) <= len(found)
    if any(one.milli_hours for one in found):
        assert abs(sum(one.used for one in found) - 1000) <= len(found)
