"""Polling until a condition holds or a deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05
"""Seconds between two polls."""

PATIENCE_SECONDS = 180
"""The usual deadline: what takes a second on an idle machine takes half a minute on a busy one."""


COMMAND_SECONDS = 600
"""The deadline of a program that takes seconds on an idle machine: longer only if it hangs."""


def eventually(
    get_result: Callable[[], T], *, until: Callable[[T], object] = bool, within: float = PATIENCE_SECONDS
) -> T:
    """Return the first result that satisfies `until`.

    Args:
        get_result: Called repeatedly. An OSError (no connection) or LookupError (not there yet) counts as unsatisfied.
        until: The condition on the result; by default, that it is not empty.
        within: Seconds until the deadline. A slow call is not a failure: only a call that started after the deadline
            fails.

    Raises:
        AssertionError: no result satisfied `until` in time; the message has the last one.
    """
    deadline = time.monotonic() + within
    while True:
        last: object
        started = time.monotonic()
        try:
            last = result = get_result()
            if until(result):
                return result
        except (OSError, LookupError) as error:
            last = error
        if started > deadline:
            raise AssertionError(f"condition not met within {within} s; last result: {last!r}")
        time.sleep(POLL_SECONDS)
