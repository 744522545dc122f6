"""Fair shares of GPU time: weights, the half-life of past usage, and the share of each group."""

from __future__ import annotations

import msgspec

BY_NAMESPACE = "namespace"


class FairShare(msgspec.Struct, frozen=True):
    """Compiled `spec.fairShare`.

    Attributes:
        policy: Name of the policy; "" for the default.
        by: "namespace", or the pod label that names a queue.
        half_life_hours: Half-life of past usage.
        shares: Weights by name.
        default_weight: Weight of every other name.
    """

    policy: str = ""
    by: str = BY_NAMESPACE
    half_life_hours: int = 168
    shares: tuple[tuple[str, int], ...] = ()
    default_weight: int = 1

    def weight_of(self, name: str) -> int:
        """Return the weight of a namespace or queue."""
        return dict(self.shares).get(name, self.default_weight)


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
