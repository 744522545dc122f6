"""Usage windows: known ones, gaps, and OOM kills."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.usage.usage_histories import NOW, QUARTER, record, steady
from webhook.usage.history import UNKNOWN_PEAK, UsageHistory, UsageWindows, concatenate_windows, windows_of_new_pods

HOUR = 3600
BINS_OF_AN_HOUR = 4


def alone(history: UsageHistory, seconds: int) -> UsageWindows:
    """Return the windows of one new pod, processed alone."""
    (found,) = windows_of_new_pods([history], seconds, NOW)
    return found


def test_window_with_few_samples_is_dropped() -> None:
    assert alone(record([5, None, None, None]), HOUR).at.size == 0
    assert alone(record([5, 7, None, None]), HOUR).after.tolist() == [7]


def test_peak_of_an_oom_kill_is_unknown() -> None:
    found = alone(record([5] * 6, ooms=(NOW - 3 * QUARTER,)), HOUR)
    assert found.after.tolist() == [UNKNOWN_PEAK] * 3
    before = alone(record([5] * 6, ooms=(NOW - 6 * QUARTER,)), HOUR)
    assert before.after.tolist() == [5] * 3


def test_short_finished_pod_is_one_window_and_a_running_one_none() -> None:
    short = record([3, 9, 4], start=NOW - 100 * QUARTER)
    assert alone(short, 4 * HOUR).after.tolist() == [9]
    assert alone(record([3, 9, 4]), 4 * HOUR).at.size == 0


def test_windows_of_new_pods_start_at_any_age() -> None:
    assert alone(record([1, 2, 3, 4, 5]), HOUR).after.tolist() == [4, 5]


def test_no_windows_without_bins() -> None:
    assert alone(record([]), HOUR).at.size == concatenate_windows([]).at.size == 0


def test_windows_of_a_day_start_every_two_hours() -> None:
    found = alone(steady(100, hours=72), 24 * HOUR)
    assert np.unique(np.diff(found.at)).tolist() == [2 * HOUR]


@given(st.lists(st.none() | st.integers(0, 50_000), min_size=1, max_size=60), st.integers(1, 6))
def test_peak_is_the_largest_reading_of_the_window(readings: list[int | None], hours: int) -> None:
    length = hours * BINS_OF_AN_HOUR
    found = alone(record(readings), hours * HOUR)
    start = NOW - QUARTER * len(readings)
    for at, after in zip(found.at, found.after, strict=True):
        first = round((at - start) / QUARTER)
        assert after == max(reading for reading in readings[first : first + length] if reading is not None)


PODS = st.lists(st.tuples(st.lists(st.none() | st.integers(0, 9), max_size=12), st.integers(0, 9)), max_size=20)


@given(PODS, st.integers(1, 2), st.integers(2, 5))
def test_batch_gives_the_same_windows(pods: list[tuple[list[int | None], int]], hours: int, at_once: int) -> None:
    histories = [
        record(readings, start=NOW - QUARTER * (len(readings) + back), ooms=(NOW - QUARTER * back,) * (back > 6))
        for readings, back in pods
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("webhook.usage.history.HISTORIES_PER_BATCH", at_once)
        many = windows_of_new_pods(histories, hours * HOUR, NOW)
    for history, found in zip(histories, many, strict=True):
        for column, want in zip(found, alone(history, hours * HOUR), strict=True):
            assert np.array_equal(column, want, equal_nan=True)
