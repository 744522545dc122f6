"""A workload that ran out of memory, or whose GPU faulted under it, is not made smaller for a while."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from webhook.usage.history import UsageHistory

BLOCK_SECONDS = 7 * 86_400
"""A week from the last time: long enough to see a weekly cycle once."""

APPLICATION_XIDS = frozenset({11, 13, 25, 31, 32, 43, 45, 109})
"""Faults that an application makes or suffers itself: bad pushes, exceptions, page faults, what was stopped for them.
The others speak about the device."""


class FailureEvent(NamedTuple):
    """When it was, in Unix seconds, and what."""

    at: int
    cause: str


def shrink_block_reason(members: Sequence[UsageHistory], now: float) -> str:
    """Why a workload may not shrink, and until when; "" if it may."""
    last = max((trouble for member in members for trouble in _failure_events(member)), default=None)
    if last is None or last.at + BLOCK_SECONDS <= now:
        return ""
    return f"{last.cause} on {_utc_minute(last.at)}, so it stays until {_utc_minute(last.at + BLOCK_SECONDS)}"


def _failure_events(member: UsageHistory) -> list[FailureEvent]:
    killed = [FailureEvent(at, "it ran out of memory") for at in member.ooms]
    return killed + [FailureEvent(at, f"its GPU reported XID {code}") for at, code in member.xids if code in APPLICATION_XIDS]


def _utc_minute(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")
