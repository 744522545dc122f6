"""A workload is idle where no engine of its GPUs was active, of all its pods, and until lately."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.model.usage import IDLE_BELOW
from webhook.usage.history import UsageHistory


def workload_idle_until(members: Sequence[UsageHistory]) -> int:
    """Unix seconds until which no engine was active under any pod; 0 where one was, or no profiling field told."""
    active = [member.active_milli for member in members]
    if any(each is None or each >= IDLE_BELOW for each in active):
        return 0
    return max(member.observed_until for member in members)
