"""GPU time by group: what one pod held, and where a group stands."""

from __future__ import annotations

import msgspec


class PodGpuTime(msgspec.Struct, frozen=True, gc=False):
    """What one pod held.

    Attributes:
        group: Its namespace or queue; "" for a pod that names none.
        gpu_milli: Thousandths of a GPU.
        start, end: Seconds since 1970; an end of 0: it holds them still.
    """

    group: str
    gpu_milli: int
    start: float
    end: float = 0


class GroupShare(msgspec.Struct, frozen=True):
    """Where one group stands.

    Attributes:
        milli_hours: Its use, decayed, in thousandths of a GPU for an hour.
        used: Its part of all use, in thousandths.
        entitled: Its part of all weights, in thousandths.
        holds_milli: What it holds now.
    """

    group: str
    milli_hours: int
    used: int
    entitled: int
    holds_milli: int

    @property
    def excess_share(self) -> int:
        """Thousandths of all use beyond what it is entitled to; negative: it is under."""
        return self.used - self.entitled
