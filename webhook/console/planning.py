"""The plan of MIG layouts: computed in a thread when its page is asked for, one at a time, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from webhook.console.reading import PAUSES_PER_READING, ClusterReading, PlanLayouts
from webhook.errors import RightsliceError
from webhook.report.console.layout import LayoutOutcome
from webhook.web.daemon_threads import run_in_daemon_thread


class LayoutPlanner:
    """Plans the layouts of the newest reading, and keeps the plan until there is one of a newer reading.

    Attributes:
        outcome: The newest plan, or why there is none; None before the first.
        version: How many plans have ended.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.outcome: LayoutOutcome | None = None
        self.version = 0
        self._clock = clock
        self._planned: PlanLayouts | None = None  # not the reading, which is large
        self._task: asyncio.Task[None] | None = None
        self._earliest = clock()

    @property
    def is_planning(self) -> bool:
        """Whether a plan is being computed."""
        return self._task is not None and not self._task.done()

    def request(self, reading: ClusterReading) -> None:
        """Start to plan a reading, unless it is planned, a plan is being computed, or the pause is not over."""
        if reading.plan is self._planned or self.is_planning or self._clock() < self._earliest:
            return
        self._planned = reading.plan
        self._task = asyncio.get_running_loop().create_task(self._run(reading.plan, reading.state.moment))

    async def _run(self, plan: PlanLayouts, moment: str) -> None:
        start = self._clock()
        outcome = LayoutOutcome(moment)
        try:
            self.outcome = outcome._replace(layout=await run_in_daemon_thread(plan))
        except RightsliceError as error:
            self.outcome = outcome._replace(problem=str(error))
        except Exception as error:
            self.outcome = outcome._replace(problem=f"internal error: {error!r}")
        self.version += 1
        end = self._clock()
        self._earliest = end + PAUSES_PER_READING * (end - start)
