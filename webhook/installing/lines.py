"""A line of `doctor`: what was looked at, what it came to, what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from webhook.errors import shorten_text
from webhook.installing.facts import ClusterFacts


class CheckState(StrEnum):
    """What a line says. FAIL and WARN are something to act on."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class DiagnosticResult(NamedTuple):
    """One line: what was looked at, and what to know or do."""

    state: CheckState
    summary: str
    advice: str = ""


def unread_part_result(facts: ClusterFacts, name: str, absent: str, advice: str) -> DiagnosticResult:
    """What to say of a part that could not be read: it is not there, or we may not see it."""
    error = facts.refused[name]
    if error.status == 404:
        return DiagnosticResult(CheckState.FAIL, absent, advice)
    return DiagnosticResult(CheckState.SKIP, f"{name} cannot be read", shorten_text(error.message, 160))
