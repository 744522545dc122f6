"""GPU usage in a server: replaced at once, discarded when too old, loaded without blocking requests."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tests.server.site import NOW
from webhook.cache.informers import empty_view
from webhook.errors import UsageError
from webhook.model.usage import ObservedUsage, UsageView
from webhook.policy.policy_set import PolicySet
from webhook.server.admission_state import AdmissionState, PolicyLoadStatus
from webhook.server.usage_refresh import FIRST_RETRY_SECONDS, MAX_INITIAL_DELAY, MAX_PROMETHEUS_AGE, UsageRefresher
from webhook.telemetry.logs import make_logger
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.loader import MAX_AGE_SECONDS, LoadedUsage, UsageRequest
from webhook.usage.prometheus_source import PrometheusSource

USAGE_REQUEST = UsageRequest(PrometheusSource("http://prometheus"))
VIEW = UsageView({("ml", "Job/a", "main"): ObservedUsage(1000, None, 5)})
EVERY = 1800.0


class RecordingRandom:
    """A random source that returns the middle, and records the bounds."""

    def __init__(self) -> None:
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return (a + b) / 2


class RefresherHarness:
    """A refresher, its next load, and its results."""

    def __init__(self, request: UsageRequest = USAGE_REQUEST) -> None:
        self.now, self.log, self.random = NOW, io.StringIO(), RecordingRandom()
        self.next: Callable[[], LoadedUsage] = self.good
        self.telemetry = Telemetry(make_logger("info", self.log))
        self.state = AdmissionState(PolicySet(), empty_view(), UsageView(), PolicyLoadStatus(None))
        self.refresher = UsageRefresher(
            request, EVERY, self.state, lambda: self.now, self.telemetry, self.random, lambda _: self._load()
        )

    async def _load(self) -> LoadedUsage:
        return self.next()

    def good(self) -> LoadedUsage:
        """Return a view with the current time."""
        return LoadedUsage(VIEW, self.now.timestamp(), 3, ("a note",))

    def bad(self) -> LoadedUsage:
        """Fail to load."""
        raise UsageError("http://prometheus: did not answer\nat all")

    def once(self) -> None:
        """Load once."""
        asyncio.run(self.refresher.refresh())

    @property
    def line(self) -> str:
        """Its health check line."""
        (check,) = self.refresher.checks()
        assert not check.required
        return check.line

    @property
    def page(self) -> list[str]:
        """Its metrics."""
        return [
            line for line in self.telemetry.metrics_text().decode().splitlines() if line.startswith("rightslice_usage")
        ]

    def events(self) -> list[dict[str, object]]:
        """The log events."""
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


def test_the_state_before_the_first_load() -> None:
    harness = RefresherHarness()

    assert harness.line == "[-]usage not loaded yet"
    assert harness.page == [
        'rightslice_usage_loads_total{result="success"} 0.0',
        'rightslice_usage_loads_total{result="error"} 0.0',
        "rightslice_usage_containers 0.0",
    ]


def test_a_new_view_replaces_the_old_one_and_is_logged() -> None:
    harness = RefresherHarness()
    harness.once()
    harness.now += timedelta(seconds=90)

    assert harness.state.usage is VIEW
    assert harness.line == "[+]usage 1 container of 3 pods, 90 s old"
    assert harness.page == [
        'rightslice_usage_loads_total{result="success"} 1.0',
        'rightslice_usage_loads_total{result="error"} 0.0',
        "rightslice_usage_containers 1.0",
        "rightslice_usage_age_seconds 90.0",
    ]
    (event,) = harness.events()
    assert (event["event"], event["containers"], event["pods"], event["notes"]) == ("usage loaded", 1, 3, ["a note"])


def test_a_failed_load_keeps_the_last_view_and_is_logged() -> None:
    harness = RefresherHarness()
    harness.once()
    harness.next = harness.bad
    harness.now += timedelta(seconds=MAX_PROMETHEUS_AGE)
    harness.once()

    assert harness.state.usage is VIEW
    assert harness.line == "[-]usage 1 container of 3 pods, 86400 s old; http://prometheus: did not answer at all"
    assert 'rightslice_usage_loads_total{result="error"} 1.0' in harness.page
    assert harness.events()[-1]["event"] == "usage not loaded"


def test_a_prometheus_that_is_down_is_one_warning_until_it_answers_again() -> None:
    harness = RefresherHarness()
    for load in (harness.bad, harness.bad, harness.bad, harness.good, harness.bad):
        harness.next = load
        harness.once()

    warnings = [event for event in harness.events() if event["event"] == "usage not loaded"]
    assert len(warnings) == 2
    assert "Check that Prometheus runs" in str(warnings[0]["advice"])
    assert 'rightslice_usage_loads_total{result="error"} 4.0' in harness.page


def test_usage_older_than_a_day_is_discarded() -> None:
    harness = RefresherHarness()
    harness.once()
    harness.next = harness.bad
    harness.now += timedelta(seconds=MAX_PROMETHEUS_AGE + 1)
    harness.once()

    assert harness.state.usage == UsageView()
    assert harness.line == "[-]usage nothing loaded; http://prometheus: did not answer at all"
    assert not any(line.startswith("rightslice_usage_age") for line in harness.page)

    harness.next = harness.good
    harness.once()

    assert harness.state.usage is VIEW
    assert harness.line.startswith("[+]usage 1 container")


FILE = UsageRequest(file="/use.json.gz")


def test_a_file_is_used_for_a_month() -> None:
    harness = RefresherHarness(FILE)
    recorded = harness.good()
    harness.next = lambda: recorded
    harness.now += timedelta(seconds=MAX_AGE_SECONDS)
    harness.once()

    assert harness.state.usage is VIEW

    harness.now += timedelta(seconds=1)
    harness.once()

    assert harness.state.usage == UsageView()
    assert harness.line.startswith(
        "[-]usage nothing loaded; /use.json.gz: recorded 30 days ago: after 30 days it is not"
    )
    assert harness.events()[-1]["event"] == "usage not loaded"


def test_a_file_that_became_unreadable_is_used_for_a_month() -> None:
    harness = RefresherHarness(FILE)
    harness.once()
    harness.next = harness.bad
    harness.now += timedelta(seconds=MAX_AGE_SECONDS)
    harness.once()

    assert harness.state.usage is VIEW

    harness.now += timedelta(seconds=1)
    harness.once()

    assert harness.state.usage == UsageView()


def test_a_file_from_the_future_is_not_used() -> None:
    harness = RefresherHarness(FILE)
    recorded = harness.good()
    harness.next = lambda: recorded
    harness.now -= timedelta(days=3)
    harness.once()

    assert harness.state.usage == UsageView()
    assert "nothing loaded; /use.json.gz: must be recorded before now, found 3 days from now" in harness.line
    assert not any(line.startswith("rightslice_usage_age") for line in harness.page)


def test_the_age_is_never_negative() -> None:
    """Prometheus' clock may be ahead of the local one."""
    harness = RefresherHarness()
    harness.once()
    harness.now -= timedelta(hours=2)

    assert harness.line == "[+]usage 1 container of 3 pods, 0 s old"
    assert "rightslice_usage_age_seconds 0.0" in harness.page


STRANGE = {
    "a decoding error": msgspec.DecodeError("truncated"),
    "a validation error": msgspec.ValidationError("Expected `int`, got `str`"),
    "an assertion error": AssertionError(),
    "another error": ZeroDivisionError("division by zero"),
}


@pytest.mark.parametrize("error", STRANGE.values(), ids=STRANGE)
def test_an_unexpected_exception_is_a_failed_load_with_a_stack_trace(error: Exception) -> None:
    harness = RefresherHarness()
    harness.once()

    def broken() -> LoadedUsage:
        raise error

    harness.next = broken
    harness.now += timedelta(seconds=MAX_PROMETHEUS_AGE + 1)
    harness.once()

    assert harness.state.usage == UsageView()
    assert harness.line == f"[-]usage nothing loaded; internal error: {error!r}"
    assert 'rightslice_usage_loads_total{result="error"} 1.0' in harness.page
    assert "in broken" in str(harness.events()[-2])


def test_a_process_that_cannot_be_started_is_a_failed_load() -> None:
    harness = RefresherHarness()

    def none() -> LoadedUsage:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    harness.next = none
    harness.once()

    assert "Resource temporarily unavailable" in harness.line


@pytest.mark.parametrize("failures", [0, 1, 2, 3, 50])
def test_loads_are_spread_out_and_come_sooner_after_a_failure(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    harness, waits = RefresherHarness(), []
    harness.next = harness.bad if failures else harness.good

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > max(1, failures):
            raise asyncio.CancelledError

    monkeypatch.setattr("webhook.server.usage_refresh.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(harness.refresher.run())

    usual = min(EVERY, FIRST_RETRY_SECONDS * 2.0 ** (failures - 1)) if failures else EVERY
    assert harness.random.bounds[0] == (0, MAX_INITIAL_DELAY)
    assert harness.random.bounds[-1] == pytest.approx((0.9 * usual, 1.1 * usual))
    assert waits[-1] == pytest.approx(usual)


def test_the_age_is_measured_by_the_local_clock() -> None:
    """The data has Prometheus' time; its age is measured by the local clock."""
    harness = RefresherHarness()
    harness.once()
    harness.now = datetime.fromtimestamp(NOW.timestamp() + 5, UTC)

    assert harness.refresher.age == 5
