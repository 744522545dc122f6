"""GPU usage in a server: replaced at once, discarded when too old, and never waited for."""

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

ASKED = UsageRequest(PrometheusSource("http://prometheus"))
VIEW = UsageView({("ml", "Job/a", "main"): ObservedUsage(1000, None, 5)})
EVERY = 1800.0


class Calm:
    """Randomness that takes the middle, and remembers between what."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.asked.append((a, b))
        return (a + b) / 2


class Kept:
    """A refresher, its next load, and its results."""

    def __init__(self, asked: UsageRequest = ASKED) -> None:
        self.now, self.log, self.random = NOW, io.StringIO(), Calm()
        self.next: Callable[[], LoadedUsage] = self.good
        self.telemetry = Telemetry(make_logger("info", self.log))
        self.world = AdmissionState(PolicySet(), empty_view(), UsageView(), PolicyLoadStatus(None))
        self.keeper = UsageRefresher(
            asked, EVERY, self.world, lambda: self.now, self.telemetry, self.random, lambda _: self._load()
        )

    async def _load(self) -> LoadedUsage:
        return self.next()

    def good(self) -> LoadedUsage:
        """A view as of now."""
        return LoadedUsage(VIEW, self.now.timestamp(), 3, ("a note",))

    def bad(self) -> LoadedUsage:
        """None to be had."""
        raise UsageError("http://prometheus: did not answer\nat all")

    def once(self) -> None:
        """One load."""
        asyncio.run(self.keeper.refresh())

    @property
    def line(self) -> str:
        """Its health check line."""
        (check,) = self.keeper.checks()
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


def test_before_the_first_load_nothing_is_known_and_nothing_is_wrong() -> None:
    kept = Kept()

    assert kept.line == "[-]usage not loaded yet"
    assert kept.page == ["rightslice_usage_containers 0.0"]


def test_a_new_view_replaces_the_old_one_and_is_logged() -> None:
    kept = Kept()
    kept.once()
    kept.now += timedelta(seconds=90)

    assert kept.world.usage is VIEW
    assert kept.line == "[+]usage 1 container of 3 pods, 90 s old"
    assert kept.page == [
        'rightslice_usage_loads_total{result="success"} 1.0',
        "rightslice_usage_containers 1.0",
        "rightslice_usage_age_seconds 90.0",
    ]
    (told,) = kept.events()
    assert (told["event"], told["containers"], told["pods"], told["notes"]) == ("usage loaded", 1, 3, ["a note"])


def test_a_failed_load_keeps_the_last_view_and_is_logged() -> None:
    kept = Kept()
    kept.once()
    kept.next = kept.bad
    kept.now += timedelta(seconds=MAX_PROMETHEUS_AGE)
    kept.once()

    assert kept.world.usage is VIEW
    assert kept.line == "[-]usage 1 container of 3 pods, 86400 s old; http://prometheus: did not answer at all"
    assert 'rightslice_usage_loads_total{result="error"} 1.0' in kept.page
    assert kept.events()[-1]["event"] == "usage not loaded"


def test_after_a_day_without_news_there_is_no_evidence() -> None:
    kept = Kept()
    kept.once()
    kept.next = kept.bad
    kept.now += timedelta(seconds=MAX_PROMETHEUS_AGE + 1)
    kept.once()

    assert kept.world.usage == UsageView()
    assert kept.line == "[-]usage nothing loaded; http://prometheus: did not answer at all"
    assert not any(line.startswith("rightslice_usage_age") for line in kept.page)

    kept.next = kept.good
    kept.once()

    assert kept.world.usage is VIEW
    assert kept.line.startswith("[+]usage 1 container")


FILE = UsageRequest(file="/use.json.gz")


def test_a_file_lasts_for_a_month_and_no_longer() -> None:
    kept = Kept(FILE)
    recorded = kept.good()
    kept.next = lambda: recorded
    kept.now += timedelta(seconds=MAX_AGE_SECONDS)
    kept.once()

    assert kept.world.usage is VIEW

    kept.now += timedelta(seconds=1)
    kept.once()

    assert kept.world.usage == UsageView()
    assert kept.line.startswith("[-]usage nothing loaded; /use.json.gz: recorded 30 days ago: after 30 days it is not")
    assert kept.events()[-1]["event"] == "usage not loaded"


def test_a_file_that_can_no_longer_be_read_lasts_for_a_month_too() -> None:
    kept = Kept(FILE)
    kept.once()
    kept.next = kept.bad
    kept.now += timedelta(seconds=MAX_AGE_SECONDS)
    kept.once()

    assert kept.world.usage is VIEW

    kept.now += timedelta(seconds=1)
    kept.once()

    assert kept.world.usage == UsageView()


def test_a_file_from_the_future_is_not_used() -> None:
    kept = Kept(FILE)
    recorded = kept.good()
    kept.next = lambda: recorded
    kept.now -= timedelta(days=3)
    kept.once()

    assert kept.world.usage == UsageView()
    assert "nothing loaded; /use.json.gz: must be recorded before now, found 3 days from now" in kept.line
    assert not any(line.startswith("rightslice_usage_age") for line in kept.page)


def test_no_age_is_below_nothing() -> None:
    """Prometheus' clock may be ahead of ours."""
    kept = Kept()
    kept.once()
    kept.now -= timedelta(hours=2)

    assert kept.line == "[+]usage 1 container of 3 pods, 0 s old"
    assert "rightslice_usage_age_seconds 0.0" in kept.page


STRANGE = {
    "a decoder's": msgspec.DecodeError("truncated"),
    "a validator's": msgspec.ValidationError("Expected `int`, got `str`"),
    "an assertion's": AssertionError(),
    "any other": ZeroDivisionError("division by zero"),
}


@pytest.mark.parametrize("error", STRANGE.values(), ids=STRANGE)
def test_an_unexpected_exception_is_a_failed_load_with_a_stack_trace(error: Exception) -> None:
    kept = Kept()
    kept.once()

    def broken() -> LoadedUsage:
        raise error

    kept.next = broken
    kept.now += timedelta(seconds=MAX_PROMETHEUS_AGE + 1)
    kept.once()

    assert kept.world.usage == UsageView()
    assert kept.line == f"[-]usage nothing loaded; internal error: {error!r}"
    assert 'rightslice_usage_loads_total{result="error"} 1.0' in kept.page
    assert "in broken" in str(kept.events()[-2])


def test_no_process_to_be_had_is_a_load_that_failed() -> None:
    kept = Kept()

    def none() -> LoadedUsage:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    kept.next = none
    kept.once()

    assert "Resource temporarily unavailable" in kept.line


@pytest.mark.parametrize("failures", [0, 1, 2, 3, 50])
def test_loads_are_spread_out_and_come_sooner_after_a_failure(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    kept, waits = Kept(), []
    kept.next = kept.bad if failures else kept.good

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > max(1, failures):
            raise asyncio.CancelledError

    monkeypatch.setattr("webhook.server.usage_refresh.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(kept.keeper.run())

    usual = min(EVERY, FIRST_RETRY_SECONDS * 2.0 ** (failures - 1)) if failures else EVERY
    assert kept.random.asked[0] == (0, MAX_INITIAL_DELAY)
    assert kept.random.asked[-1] == pytest.approx((0.9 * usual, 1.1 * usual))
    assert waits[-1] == pytest.approx(usual)


def test_a_moment_is_one_of_the_clock() -> None:
    """Data has Prometheus' time; its age is measured by our clock."""
    kept = Kept()
    kept.once()
    kept.now = datetime.fromtimestamp(NOW.timestamp() + 5, UTC)

    assert kept.keeper.age == 5
