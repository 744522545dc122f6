"""Warnings that repeat while something is down: one per cause and hour."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tests.cpu_timer import CpuTimer
from webhook.telemetry.logs import make_logger
from webhook.telemetry.repeated_warnings import MAX_CAUSES, PERIOD_SECONDS, QUIET_SECONDS, RepeatedWarnings

DOWN, REFUSED = "spans not exported", "connection refused"


class Harness:
    """Warnings with a clock, and the lines that they log."""

    def __init__(self) -> None:
        self.now, self._log = 0.0, io.StringIO()
        self.warnings = RepeatedWarnings(make_logger("info", self._log), lambda: self.now)

    @property
    def lines(self) -> list[tuple[Any, Any]]:
        """The error of each line, and how often it came."""
        return [(line["error"], line["times"]) for line in map(json.loads, self._log.getvalue().splitlines())]


def test_one_line_an_hour_counts_what_was_not_logged() -> None:
    harness = Harness()
    for harness.now in range(0, int(PERIOD_SECONDS) + 1, 10):
        harness.warnings.warn(DOWN, REFUSED, "Start it.")

    assert harness.lines == [(REFUSED, 1), (REFUSED, 361)]


def test_what_was_quiet_meanwhile_is_logged_at_once() -> None:
    harness = Harness()
    for harness.now in (0, 10, 10 + int(QUIET_SECONDS), 20 + int(QUIET_SECONDS)):
        harness.warnings.warn(DOWN, REFUSED)

    assert harness.lines == [(REFUSED, 1), (REFUSED, 1)]


def test_a_long_error_takes_no_long_time() -> None:
    with CpuTimer() as timer:
        Harness().warnings.warn(DOWN, "1" * 50_000)

    assert timer.seconds < 1


CAUSES = {
    "another error": ((REFUSED, "certificate expired"), 2),
    "another status": (("status 401", "status 503"), 2),
    "seconds until the next attempt": (("retrying in 1.07s.", "retrying in 3.66s."), 1),
    "an address in memory": (("<connection at 0x7f01>", "<connection at 0x7faa>"), 1),
}


@pytest.mark.parametrize(("errors", "lines"), CAUSES.values(), ids=CAUSES)
def test_a_line_per_cause(errors: tuple[str, str], lines: int) -> None:
    harness = Harness()
    for error in errors:
        harness.warnings.warn(DOWN, error)

    assert len(harness.lines) == lines


def test_what_worked_meanwhile_is_logged_at_once() -> None:
    harness = Harness()
    for event in (DOWN, "usage not loaded"):
        harness.warnings.warn(event, REFUSED)
    harness.warnings.forget(DOWN)
    for event in (DOWN, "usage not loaded"):
        harness.warnings.warn(event, REFUSED)

    assert harness.lines == [(REFUSED, 1)] * 3


def test_errors_without_end_do_not_fill_memory() -> None:
    harness = Harness()
    for i in range(10 * MAX_CAUSES):
        harness.warnings.warn(DOWN, f"error {i}")

    assert len(harness.warnings._counts) == MAX_CAUSES
