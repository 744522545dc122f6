"""A workload that ran out of memory, or whose GPU faulted under it, is not made smaller for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from webhook.usage.history import History

BLOCK_SECONDS = 7 * 86_400
"""A week from the last time: long enough to see a weekly cycle once."""

OWN_XIDS = frozenset({11, 13, 25, 31, 32, 43, 45, 109})
"""Faults that an application makes or suffers itself: bad pushes, exceptions, page faults, what was stopped for them.
The others speak about the device."""


class Trouble(NamedTuple):
    """When it was, in Unix seconds, and what."""

    at: int
    what: str


def blocked(members: Sequence[History], now: float) -> str:
    """Why a workload may not shrink, and until when; "" if it may."""
    last = max((trouble for member in members for trouble in _troubles(member)), default=None)
    if last is None or last.at + BLOCK_SECONDS <= now:
        return ""
    return f"{last.what} on {_time(last.at)}, so it stays until {_time(last.at + BLOCK_SECONDS)}"


def _troubles(member: History) -> list[Trouble]:
    killed = [Trouble(at, "it ran out of memory") for at in member.ooms]
    return killed + [Trouble(at, f"its GPU reported XID {code}") for at, code in member.xids if code in OWN_XIDS]


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
