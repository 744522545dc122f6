"""GPU time by group, for fair shares."""

from __future__ import annotations

import msgspec


class PodGpuTime(msgspec.Struct, frozen=True, gc=False):
    """GPU time of one pod.

    Attributes:
        group: Its namespace or queue; "" for none.
        gpu_milli: Thousandths of a GPU.
        start, end: Seconds since 1970; an end of 0: still running.
    """

    group: str
    gpu_milli: int
    start: float
    end: float = 0


class GroupShare(msgspec.Struct, frozen=True):
    """The share of one group.

    Attributes:
        milli_hours: Its usage, decayed, in thousandths of a GPU for an hour.
        used: Its part of all usage, in thousandths.
        entitled: Its part of all weights, in thousandths.
        holds_milli: GPU capacity that it holds now.
    """

    group: str
    milli_hours: int
    used: int
    entitled: int
    holds_milli: int

    @property
    def excess_share(self) -> int:
        """Thousandths of all usage beyond its entitlement; negative below it."""
        return self.used - self.entitled
