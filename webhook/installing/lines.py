"""A line of `doctor`: what was looked at, what it came to, what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from webhook.errors import shorten
from webhook.installing.facts import Facts


class State(StrEnum):
    """What a line says. FAIL and WARN are something to act on."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Line(NamedTuple):
    """One line: what was looked at, and what to know or do."""

    state: State
    what: str
    advice: str = ""


def unread(facts: Facts, name: str, absent: str, advice: str) -> Line:
    """What to say of a part that could not be read: it is not there, or we may not see it."""
    error = facts.refused[name]
    if error.status == 404:
        return Line(State.FAIL, absent, advice)
    return Line(State.SKIP, f"{name} cannot be read", shorten(error.message, 160))
