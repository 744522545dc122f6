"""Runs trials in a thread, one at a time: a new one stops the one that runs.

The thread waits while a page is rendered, so that pages are as fast as without a trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Event
from time import time_ns

from webhook.errors import TrialError
from webhook.report.console.trials import TrialOutcome, TrialPhase, TrialReport
from webhook.web.daemon_threads import run_in_daemon_thread

KEPT_TRIALS = 8
"""Trials whose pages can be opened; each has at most 256 KiB of texts, and a result of a few MiB."""

TrialSteps = Callable[[], Iterator[TrialOutcome]]
"""Starts a trial, which yields what is known after each step and ends with the result. It may raise TrialError."""


class BackgroundTrial:
    """A trial that runs, waits for the end of the one that it replaced, or has ended.

    Attributes:
        key: Differs between trials, and between processes.
        task: Ends with the trial.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.key = f"{time_ns():x}"
        self.task: asyncio.Task[None] | None = None
        self._texts = texts
        self._stopped = Event()
        self._phase, self._error = TrialPhase.RUNNING, ""
        self._outcome: TrialOutcome | None = None  # the thread sets it, and nothing else

    @property
    def report(self) -> TrialReport:
        """The values that its page shows."""
        return TrialReport(self.key, self._texts, self._phase, self._outcome, self._error)

    @property
    def version(self) -> str:
        """Differs when its page does."""
        progress = self._outcome.progress if self._outcome is not None else None
        return f"{self._phase}-{progress.evaluated if progress is not None else self._outcome is not None}"

    def stop(self) -> None:
        """End it after the step that is being evaluated, unless it has ended."""
        if self._phase is TrialPhase.RUNNING:
            self._stopped.set()
            self._phase = TrialPhase.REPLACED

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until it has ended, or a time has passed."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)

    async def run(self, steps: TrialSteps, idle: Event, previous: BackgroundTrial | None) -> None:
        """Evaluate it in a thread after the end of the previous one.

        Args:
            idle: Cleared while the thread must wait.
        """
        if previous is not None:
            await previous.wait()
        try:
            if await run_in_daemon_thread(partial(self._evaluate, steps, idle)):
                self._phase = TrialPhase.ENDED
        except TrialError as error:
            self._phase, self._error = TrialPhase.ENDED, str(error)
        except Exception as error:
            self._phase, self._error = TrialPhase.ENDED, f"internal error: {error!r}"

    def _evaluate(self, steps: TrialSteps, idle: Event) -> bool:
        """Evaluate steps until the last one; return False if it was stopped before."""
        if self._stopped.is_set():
            return False
        for outcome in steps():
            self._outcome = outcome
            idle.wait()
            if self._stopped.is_set():
                return False
        return True


class TrialRunner:
    """Starts trials, and keeps the newest ones."""

    def __init__(self) -> None:
        self._trials: dict[str, BackgroundTrial] = {}
        self._newest: BackgroundTrial | None = None
        self._idle = Event()
        self._idle.set()

    def start(self, texts: Mapping[str, str], steps: TrialSteps) -> BackgroundTrial:
        """Start a trial, and stop the one that runs."""
        previous, trial = self._newest, BackgroundTrial(texts)
        if previous is not None:
            previous.stop()
        trial.task = asyncio.get_running_loop().create_task(trial.run(steps, self._idle, previous))
        self._trials[trial.key] = self._newest = trial
        while len(self._trials) > KEPT_TRIALS:
            del self._trials[next(iter(self._trials))]
        return trial

    def find(self, key: str) -> BackgroundTrial | None:
        """Return a trial, unless it is not kept."""
        return self._trials.get(key)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the trial wait during the block, after the step that is being evaluated."""
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def close(self) -> None:
        """End the trial that runs."""
        if self._newest is not None and self._newest.task is not None:
            self._newest.stop()
            self._newest.task.cancel()
