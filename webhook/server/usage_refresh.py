"""Reloads GPU usage in the background; admission neither waits for it nor depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from webhook.errors import UsageError
from webhook.kube.reflector import RandomSource
from webhook.model.usage import UsageView
from webhook.report.text import pluralize
from webhook.server.admission_state import AdmissionState, Clock
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.loader import (
    MAX_AGE_SECONDS,
    LoadedUsage,
    UsageRequest,
    future_record_error,
    load_usage,
    old_record_error,
)
from webhook.web.health import HealthCheck

MAX_INITIAL_DELAY = 5.0
"""The first load is delayed by a random time, so that replicas do not query at the same moment."""

FIRST_RETRY_SECONDS = 60.0
"""The delay after the first failure; it doubles up to the usual interval."""

MAX_PROMETHEUS_AGE = 24 * 3600.0
"""Older data from Prometheus is discarded: without evidence nothing is right-sized. Files have their own limit."""

PROMETHEUS_ADVICE = (
    "Check that Prometheus runs and that the NetworkPolicy of the webhook allows it. The last usage is used for a day; "
    "after that no pod is right-sized by usage."
)
FILE_ADVICE = "Replace the file. The last usage is used for 30 days; after that no pod is right-sized by usage."

UsageLoader = Callable[[UsageRequest], Awaitable[LoadedUsage]]


class UsageRefresher:
    """Loads usage at intervals. If it cannot be loaded, the last data stays in use for a limited time."""

    def __init__(
        self,
        source: UsageRequest,
        interval: float,
        state: AdmissionState,
        clock: Clock,
        telemetry: Telemetry,
        random: RandomSource,
        load: UsageLoader = load_usage,
    ) -> None:
        """Prepare to load every `interval` seconds; `random` spreads the queries of many replicas."""
        self._source, self._interval, self._load = source, interval, load
        self._state, self._clock, self._telemetry, self._random = state, clock, telemetry, random
        self._last_load: LoadedUsage | None = None
        self._error = ""
        self._failures = 0
        telemetry.metrics.usage_age = lambda: self.age
        telemetry.metrics.usage_containers = lambda: len(self._state.usage.observed)

    @property
    def age(self) -> float | None:
        """Age of the data in seconds, 0 if its clock is ahead of ours; None without data."""
        return max(0.0, self._clock().timestamp() - self._last_load.now) if self._last_load is not None else None

    async def run(self) -> None:
        """Load at intervals until cancelled."""
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
            self._telemetry.record_internal_error("usage", error)
            self._record_failure(f"internal error: {error!r}")
        else:
            self._error, self._failures, self._last_load = "", 0, loaded
            self._state.usage = loaded.view
            self._telemetry.record_usage_loaded(len(loaded.view.observed), loaded.pods, loaded.notes)

    def _record_failure(self, error: str) -> None:
        self._error, self._failures = error, self._failures + 1
        self._telemetry.record_usage_rejected(error, PROMETHEUS_ADVICE if self._source.prometheus else FILE_ADVICE)
        max_age = MAX_PROMETHEUS_AGE if self._source.prometheus is not None else MAX_AGE_SECONDS
        if self.age is not None and self.age > max_age:
            self._last_load, self._state.usage = None, UsageView()

    def _check_timestamp(self, loaded: LoadedUsage) -> None:
        """Reject a file from the future or too old; for Prometheus the loader checks the clock."""
        now = self._clock().timestamp()
        error = future_record_error(loaded.now, now) or old_record_error(loaded.now, now)
        if error and self._source.prometheus is None:
            raise UsageError(f"{self._source.file}: {error}")

    def checks(self) -> list[HealthCheck]:
        """Return the line of `/readyz?verbose`; usage is not required for readiness."""
        ok = self._last_load is not None and not self._error
        message = f"{self._describe_view()}; {self._error}" if self._error else self._describe_view()
        return [HealthCheck("usage", ok=ok, message=message, required=False)]

    def _describe_view(self) -> str:
        if self._last_load is None or self.age is None:
            return "nothing loaded" if self._error else "not loaded yet"
        containers = pluralize(len(self._last_load.view.observed), "container")
        return f"{containers} of {pluralize(self._last_load.pods, 'pod')}, {self.age:.0f} s old"

    def _next_delay(self) -> float:
        usual = self._interval
        if self._failures:
            usual = min(self._interval, FIRST_RETRY_SECONDS * 2.0 ** min(self._failures - 1, 20))
        return self._random.uniform(0.9 * usual, 1.1 * usual)
