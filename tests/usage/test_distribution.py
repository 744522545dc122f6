"""The distribution of a peak and the price of a limit: properties of every pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hourly_limits import PastWindows, similarity_weights
from webhook.usage.evidence_pools import (
    PRICES,
    OverrunCounter,
    build_size_grid,
    cheapest_limits,
    fleet_tail,
    hourly_probability,
    peak_distribution,
    recency_weights,
)
from webhook.usage.history import UNKNOWN_PEAK, Floats, UsageWindows

CARD = 49_152.0
GRID = build_size_grid(23 * 1024.0, CARD)

PEAKS = st.lists(st.floats(0, CARD) | st.just(UNKNOWN_PEAK), max_size=40).map(np.array)


def below(peaks: Floats, weight: float = 1.0, fleet: Floats | None = None) -> Floats:
    """Return the distribution of peaks of equal weight, with the tail of a fleet or their own."""
    tail = fleet_tail(np.sort(peaks if fleet is None else fleet), GRID)
    return peak_distribution(peaks, np.full(peaks.size, weight), tail, GRID)


def test_grid_has_the_steps_of_the_published_rule() -> None:
    """Quarters of a GiB from 16 to 48 for a mean usage of 23 GiB."""
    assert (GRID.sizes / 1024).tolist() == np.arange(16, 48.25, 0.25).tolist()


@pytest.mark.parametrize("typical", [1.0, 500.0, 40_000.0, 81_920.0])
def test_grid_ends_with_the_card_and_is_limited(typical: float) -> None:
    grid = build_size_grid(typical, 81_920)
    assert grid.sizes[-1] == 81_920
    assert grid.sizes[0] > 0
    assert 2 <= grid.sizes.size <= 1024


@given(PEAKS, st.floats(0, 1))
def test_distribution_is_monotonic_and_reaches_one_at_the_card(peaks: Floats, weight: float) -> None:
    found = below(peaks, weight)
    assert (found >= 0).all()
    assert (found <= 1).all()
    assert (np.diff(found) >= -1e-9).all()
    assert found[-1] == 1


@given(PEAKS, PEAKS)
def test_higher_usage_never_lowers_the_risk(peaks: Floats, fleet: Floats) -> None:
    assert (below(peaks + 2048, fleet=fleet) <= below(peaks, fleet=fleet) + 1e-9).all()


@given(PEAKS)
def test_without_windows_the_fleet_tail_is_used(fleet: Floats) -> None:
    alone = below(np.empty(0), fleet=fleet)
    assert np.allclose(alone, below(fleet, weight=0.0, fleet=fleet))


def test_more_equal_windows_increase_confidence() -> None:
    """The risk of a larger peak than any observed falls with the number of windows."""
    fleet = np.linspace(20_000, 48_000, 500)
    over = [1 - below(np.full(count, 20_000.0), fleet=fleet)[60] for count in (1, 10, 100)]
    assert over == sorted(over, reverse=True)
    assert over[-1] < 0.01 < over[0]


def test_peak_is_smoothed_by_a_unit() -> None:
    """With a Gaussian of 1 GiB, 87 % of peaks at 30 GiB stay below 31 (half a step is added)."""
    found = below(np.full(100_000, 30 * 1024.0), fleet=np.full(10**6, 30 * 1024.0))
    assert found[np.searchsorted(GRID.sizes, 31 * 1024)] == pytest.approx(0.869, abs=0.002)


def test_similar_and_recent_windows_weigh_most() -> None:
    windows = UsageWindows(np.array([0.0, 3600.0]), np.ones(2), np.ones(2))
    pool = PastWindows(windows, before=np.array([20.0, 30.0]), recent=np.array([20.0, np.nan]))
    assert recency_weights(windows, 3600, 3600).tolist() == [0.5, 1]
    near = similarity_weights(pool, 20, 20, unit=1)
    assert near[0] == 1
    assert near[1] == 0, "an unknown past has no weight"


@given(st.floats(0, 1), st.floats(0.25, 72))
def test_hourly_risk_is_at_most_the_risk_of_the_run(chance: float, hours: float) -> None:
    (found,) = hourly_probability(np.array([chance]), hours)
    assert 0 <= found <= 1
    assert (found >= chance) if hours >= 1 else (found <= chance)


@given(PEAKS, PEAKS)
def test_higher_price_never_lowers_a_limit(peaks: Floats, fleet: Floats) -> None:
    assert (np.diff(cheapest_limits(below(peaks, fleet=fleet), GRID)) >= 0).all()


@given(PEAKS, PEAKS)
def test_the_cheapest_limit_is_that_of_all_sizes(peaks: Floats, fleet: Floats) -> None:
    chance = below(peaks, fleet=fleet)
    costs = np.outer(PRICES, 1 - chance) - GRID.typical / GRID.sizes
    assert (cheapest_limits(chance, GRID) == GRID.sizes[costs.argmin(axis=1)]).all()


@given(st.lists(st.floats(16_384, CARD), max_size=300), st.floats(0.001, 0.5))
def test_price_is_the_smallest_that_meets_the_target(peaks: list[float], target: float) -> None:
    counted = OverrunCounter()
    rising = np.linspace(16_384, CARD, PRICES.size)
    for peak in peaks:
        counted.add(rising, np.array([peak]))
    price = counted.least_price(target)
    met = (1 + counted.overrun_hours) / (1 + len(peaks)) <= target
    assert price == (PRICES[met].min() if met.any() else PRICES[-1])


@given(st.lists(st.floats(16_384, CARD), max_size=300))
def test_stricter_target_is_never_cheaper(peaks: list[float]) -> None:
    counted = OverrunCounter()
    counted.add(np.linspace(16_384, CARD, PRICES.size), np.array([*peaks, CARD]), 50.0)
    prices = [counted.least_price(target) for target in (0.001, 0.01, 0.1)]
    assert prices == sorted(prices, reverse=True)
