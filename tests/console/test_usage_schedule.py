"""Usage is read again after an hour; after a failure in two minutes, and then at longer and longer intervals."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from tests.console.conftest import NOW
from webhook.cli.console_inputs import UsageSchedule

MINUTES = {
    "all succeed": ([], [0, 60, 120, 180]),
    "the first fails": ([0], [0, 2, 62, 122]),
    "all fail": (range(1000), [0, 2, 6, 14, 30, 62, 122, 182]),
    "two fail after one that succeeds": ([60, 62], [0, 60, 62, 66, 126]),
    "failures that are not in a row": ([0, 62], [0, 2, 62, 64, 124]),
}


@pytest.mark.parametrize(("failures", "expected"), MINUTES.values(), ids=MINUTES)
def test_minutes_at_which_usage_is_read(failures: Iterable[int], expected: list[int]) -> None:
    """The cluster is read every minute."""
    schedule, read = UsageSchedule(), []
    for minute in range(expected[-1] + 1):
        now = NOW + timedelta(minutes=minute)
        if schedule.is_due(now):
            read.append(minute)
            schedule.record_reading(now, failed=minute in failures)

    assert read == expected
