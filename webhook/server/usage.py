"""Keeps what workloads were seen to use fresh, beside everything else: reviews never wait for it, nor depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from webhook.errors import UsageError
from webhook.model.usage import UsageView
from webhook.report.words import count
from webhook.server.world import Clock, World
from webhook.telemetry.telemetry import Telemetry
from webhook.usage.ages import USED_SECONDS, too_new, too_old
from webhook.usage.frames import Asked
from webhook.usage.loading import Loaded, load
from webhook.web.checks import Check
from webhook.web.plaintext import one_line

FIRST_SECONDS = 5.0
"""Replicas that start together ask at any moment up to then."""

AGAIN_SECONDS = 60.0
"""The wait after a first failure; it doubles up to the usual one."""

OLD_SECONDS = 24 * 3600.0
"""What Prometheus said longer ago is not used: without evidence nothing is shrunk. Files have a bound of their own."""

Load = Callable[[Asked], Awaitable[Loaded]]


class Random(Protocol):
    """What is used of `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """A number between two."""


class UsageKeeper:
    """Loads use again and again, and swaps it in whole. What cannot be loaded leaves the last view, for a while."""

    def __init__(
        self,
        asked: Asked,
        every: float,
        world: World,
        clock: Clock,
        telemetry: Telemetry,
        random: Random,
        load: Load = load,
    ) -> None:
        """Prepare; nothing is asked yet.

        Args:
            asked: Where use is read from.
            every: Seconds between two loads.
            world: Who is handed each new view.
            clock: The moment.
            telemetry: Who is told what became of each load.
            random: Spreads out what many replicas would do at once.
            load: What loads; always `webhook.usage.loading.load`, but in tests of the keeping.
        """
        self._asked, self._every, self._load = asked, every, load
        self._world, self._clock, self._telemetry, self._random = world, clock, telemetry, random
        self._loaded: Loaded | None = None
        self._fault = ""
        self._failures = 0
        telemetry.counts.usage_age = lambda: self.age
        telemetry.counts.usage_containers = lambda: len(self._world.usage.observed)

    @property
    def age(self) -> float | None:
        """Seconds since the moment that the view in use is of, 0 by a clock ahead of ours; None: there is none."""
        return max(0.0, self._clock().timestamp() - self._loaded.now) if self._loaded is not None else None

    async def run(self) -> None:
        """Go on until cancelled."""
        await asyncio.sleep(self._random.uniform(0, FIRST_SECONDS))
        while True:
            await self.once()
            await asyncio.sleep(self._wait())

    async def once(self) -> None:
        """Load once."""
        try:
            loaded = await self._load(self._asked)
            self._refuse_other_times(loaded)
        except (UsageError, OSError) as error:
            self._failed(str(error))
        except Exception as error:
            self._telemetry.crashed("usage", "", error)
            self._failed(f"a fault of ours: {error!r}")
        else:
            self._fault, self._failures, self._loaded = "", 0, loaded
            self._world.usage = loaded.view
            self._telemetry.usage_loaded(len(loaded.view.observed), loaded.pods, loaded.notes)

    def _failed(self, why: str) -> None:
        self._fault, self._failures = why, self._failures + 1
        self._telemetry.usage_refused(why)
        self._forget()

    def _refuse_other_times(self, loaded: Loaded) -> None:
        """A file may be of any time; Prometheus' clock was looked at when it was read."""
        now = self._clock().timestamp()
        fault = too_new(loaded.now, now) or too_old(loaded.now, now)
        if fault and self._asked.prometheus is None:
            raise UsageError(f"{self._asked.file}: {fault}")

    def checks(self) -> list[Check]:
        """Its line of `/readyz?verbose`. Without it the process is as ready as with it."""
        good = self._loaded is not None and not self._fault
        says = f"{self._what()}; {one_line(self._fault)}" if self._fault else self._what()
        return [Check("usage", good=good, says=says, must=False)]

    def _what(self) -> str:
        if self._loaded is None or self.age is None:
            return "nothing loaded" if self._fault else "not loaded yet"
        seen = count(len(self._loaded.view.observed), "container")
        return f"{seen} of {count(self._loaded.pods, 'pod')}, {self.age:.0f} s old"

    def _wait(self) -> float:
        usual = self._every
        if self._failures:
            usual = min(self._every, AGAIN_SECONDS * 2.0 ** min(self._failures - 1, 20))
        return self._random.uniform(0.9 * usual, 1.1 * usual)

    def _forget(self) -> None:
        """Let go of what is too old. A file is meant to last longer."""
        most = OLD_SECONDS if self._asked.prometheus is not None else USED_SECONDS
        if self.age is not None and self.age > most:
            self._loaded, self._world.usage = None, UsageView()
