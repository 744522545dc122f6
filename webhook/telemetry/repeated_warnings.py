"""Warnings that come again and again while something else is down: one per cause and hour, with their number."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from webhook.telemetry.logs import StructuredLogger

PERIOD_SECONDS = 3600.0
QUIET_SECONDS = 600.0
"""Time without a warning after which its cause is over, and the next is a new one."""

MAX_CAUSES = 32
"""Causes that are remembered, as texts of errors can differ without end."""

MAX_CAUSE_LETTERS = 500
_CHANGING = re.compile(r"0x[0-9a-fA-F]+|[0-9]+\.[0-9]+s?")
"""Addresses in memory, and fractions such as the seconds until the next attempt."""


class WarningCount(NamedTuple):
    """The number of warnings of a cause, and the times of the last one and of the last that was logged, in seconds."""

    times: int
    last: float
    logged: float


NEVER = WarningCount(0, -inf, -inf)


class RepeatedWarnings:
    """Logs the first warning of each cause, and one in an hour while it lasts.

    `times` of a line is the number of warnings since the cause began, with those that were not logged.
    """

    def __init__(self, log: StructuredLogger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._counts: OrderedDict[tuple[str, str], WarningCount] = OrderedDict()

    def warn(self, event: str, error: str, advice: str = "") -> None:
        """Count a warning, and log it unless its cause was logged in the last hour.

        Args:
            event: What does not work.
            error: Why; errors that differ in fractions of numbers only have one cause.
            advice: What to do.
        """
        cause, now = (event, _CHANGING.sub("#", error[:MAX_CAUSE_LETTERS])), self._clock()
        times, last, logged = self._counts.pop(cause, NEVER)
        if now - last >= QUIET_SECONDS:
            times, logged = 0, -inf
        is_due = now - logged >= PERIOD_SECONDS
        self._counts[cause] = WarningCount(times + 1, now, now if is_due else logged)
        if len(self._counts) > MAX_CAUSES:
            self._counts.popitem(last=False)
        if is_due:
            self._log.warning(event, error=error, times=times + 1, **({"advice": advice} if advice else {}))

    def is_counted(self, event: str) -> bool:
        """Return whether a warning of this event was logged in the last hour."""
        since = self._clock() - PERIOD_SECONDS
        return any(name == event and count.logged > since for (name, _), count in self._counts.items())

    def forget(self, event: str) -> None:
        """Log the next warning of this event at once: it works again."""
        for cause in [cause for cause in self._counts if cause[0] == event]:
            del self._counts[cause]
