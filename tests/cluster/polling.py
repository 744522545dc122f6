"""Polling until a condition holds or a deadline passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

EVERY = 0.05
"""Seconds between two polls."""


def eventually(ask: Callable[[], T], *, until: Callable[[T], object] = bool, within: float = 30) -> T:
    """Return the first result that satisfies `until`.

    Args:
        ask: The question. An OSError (nobody there) or LookupError (not there yet) is an answer that does not satisfy.
        until: What must hold of the answer; unless given, that it is not empty.
        within: Seconds from now on by which it must hold. A question that takes long is no lateness: it is failed by
            an answer to a question that was asked after that.

    Raises:
        AssertionError: no answer did in time; it has the last one.
    """
    deadline = time.monotonic() + within
    while True:
        last: object
        asked = time.monotonic()
        try:
            last = answer = ask()
            if until(answer):
                return answer
        except (OSError, LookupError) as error:
            last = error
        if asked > deadline:
            raise AssertionError(f"not so within {within} s; the last answer: {last!r}")
        time.sleep(EVERY)
