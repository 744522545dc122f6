"""Keeps what workloads were seen to use fresh, beside everything else: reviews never wait for it, nor depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from webhook.errors import UsageError
from webhook.model.usage import UsageView
from webhook.report.text import pluralize
from webhook.server.admission_state import AdmissionState, Clock
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.loader import MAX_AGE_SECONDS, LoadedUsage, future_record_error, load_usage, old_record_error
from webhook.usage.protocol import UsageRequest
from webhook.web.health import HealthCheck
from webhook.web.http_messages import strip_control_characters

MAX_INITIAL_DELAY = 5.0
"""Replicas that start together ask at any moment up to then."""

FIRST_RETRY_SECONDS = 60.0
"""The wait after a first failure; it doubles up to the usual one."""

MAX_PROMETHEUS_AGE = 24 * 3600.0
"""What Prometheus said longer ago is not used: without evidence nothing is shrunk. Files have a bound of their own."""

UsageLoader = Callable[[UsageRequest], Awaitable[LoadedUsage]]


class JitterSource(Protocol):
    """What is used of `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """A number between two."""


class UsageRefresher:
    """Loads use again and again, and swaps it in whole. What cannot be loaded leaves the last view, for a while."""

    def __init__(
        self,
        asked: UsageRequest,
        every: float,
        world: AdmissionState,
        clock: Clock,
        telemetry: Telemetry,
        random: JitterSource,
        load: UsageLoader = load_usage,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            asked: Where use is read from.
            every: Seconds between two loads.
            world: Who is handed each new view.
            clock: The moment.
            telemetry: Who is told what became of each load.
            random: Spreads out what many replicas would do at once.
            load: What loads; always `webhook.usage.loader.load_usage`, but in tests of the keeping.
        """
        self._source, self._every, self._load = asked, every, load
        self._state, self._clock, self._telemetry, self._random = world, clock, telemetry, random
        self._last_load: LoadedUsage | None = None
        self._error = ""
        self._failures = 0
        telemetry.metrics.usage_age = lambda: self.age
        telemetry.metrics.usage_containers = lambda: len(self._state.usage.observed)

    @property
    def age(self) -> float | None:
        """Seconds since the moment that the view in use is of, 0 by a clock ahead of ours; None: there is none."""
        return max(0.0, self._clock().timestamp() - self._last_load.now) if self._last_load is not None else None

    async def run(self) -> None:
        """Go on until cancelled."""
        await asyncio.sleep(self._random.uniform(0, MAX_INITIAL_DELAY))
        while True:
            await self.refresh()
            await asyncio.sleep(self._next_delay())

    async def refresh(self) -> None:
        """Load once."""
        try:
            loaded = await self._load(self._source)
            self._check_timestamp(loaded)
        except (UsageError, OSError) as error:
            self._record_failure(str(error))
        except Exception as error:
            self._telemetry.record_crash("usage", "", error)
            self._record_failure(f"a fault of ours: {error!r}")
        else:
            self._error, self._failures, self._last_load = "", 0, loaded
            self._state.usage = loaded.view
            self._telemetry.record_usage_loaded(len(loaded.view.observed), loaded.pods, loaded.notes)

    def _record_failure(self, why: str) -> None:
        self._error, self._failures = why, self._failures + 1
        self._telemetry.record_usage_rejected(why)
        self._drop_stale_view()

    def _check_timestamp(self, loaded: LoadedUsage) -> None:
        """A file may be of any time; Prometheus' clock was looked at when it was read."""
        now = self._clock().timestamp()
        fault = future_record_error(loaded.now, now) or old_record_error(loaded.now, now)
        if fault and self._source.prometheus is None:
            raise UsageError(f"{self._source.file}: {fault}")

    def checks(self) -> list[HealthCheck]:
        """Its line of `/readyz?verbose`. Without it the process is as ready as with it."""
        good = self._last_load is not None and not self._error
        says = (
            f"{self._describe_view()}; {strip_control_characters(self._error)}"
            if self._error
            else self._describe_view()
        )
        return [HealthCheck("usage", ok=good, message=says, required=False)]

    def _describe_view(self) -> str:
        if self._last_load is None or self.age is None:
            return "nothing loaded" if self._error else "not loaded yet"
        seen = pluralize(len(self._last_load.view.observed), "container")
        return f"{seen} of {pluralize(self._last_load.pods, 'pod')}, {self.age:.0f} s old"

    def _next_delay(self) -> float:
        usual = self._every
        if self._failures:
            usual = min(self._every, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 20))
        return self._random.uniform(0.9 * usual, 1.1 * usual)

    def _drop_stale_view(self) -> None:
        """Let go of what is too old. A file is meant to last longer."""
        most = MAX_PROMETHEUS_AGE if self._source.prometheus is not None else MAX_AGE_SECONDS
        if self.age is not None and self.age > most:
            self._last_load, self._state.usage = None, UsageView()
