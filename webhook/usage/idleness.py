"""A workload is idle where no engine of its GPUs was active: for as long as any evidence takes, and until lately."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.model.usage import IDLE_BELOW
from webhook.usage.ages import DAY
from webhook.usage.history import History
from webhook.usage.pools import LEAST_SECONDS, seen_seconds

LATELY_SECONDS = DAY
"""What was seen before that says nothing about pods of now."""


def is_idle(members: Sequence[History], now: float) -> bool:
    """Was no engine active under any pod, as far as profiling fields told?"""
    told = [member for member in members if member.active_milli is not None]
    lately = any(now - member.end <= LATELY_SECONDS for member in told)
    active = max((member.active_milli or 0 for member in told), default=IDLE_BELOW)
    return lately and seen_seconds(told) >= LEAST_SECONDS and active < IDLE_BELOW
