"""Fair share: allocated GPU time by group, with exponential decay, compared with the share each group is entitled to.

A pod that held g thousandths of a GPU from a to b counts g · ∫ 2^(−(now − t)/H) dt now, with the half-life H. So a GPU
held forever counts H/ln 2 hours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

BY_NAMESPACE = "namespace"
HOUR_SECONDS = 3600.0


class FairShare(msgspec.Struct, frozen=True):
    """Compiled `spec.fairShare`.

    Attributes:
        policy: Name of the policy; "" for the default.
        by: "namespace", or the pod label that names a queue.
        half_life_hours: Half-life of past GPU time.
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
        milli_hours: The GPU time that was allocated to it, decayed, in thousandths of a GPU for an hour.
        allocated: Its part of all allocated GPU time, in thousandths.
        entitled: Its part of all weights, in thousandths.
        holds_milli: GPU capacity that it holds now.
    """

    group: str
    milli_hours: int
    allocated: int
    entitled: int
    holds_milli: int

    @property
    def excess_share(self) -> int:
        """Thousandths of all allocated GPU time beyond its entitlement; negative below it."""
        return self.allocated - self.entitled


def rank_fair_shares(times: Iterable[PodGpuTime], rule: FairShare, now: float) -> list[GroupShare]:
    """Return the share of every group that a policy names or that had GPUs; the largest excess first, then by name."""
    allocated: Counter[str] = Counter({name: 0 for name, _ in rule.shares})
    holds: Counter[str] = Counter()
    for each in times:
        allocated[each.group] += decay_gpu_time(each, rule.half_life_hours, now)
        if not each.end:
            holds[each.group] += each.gpu_milli
    total, weights = allocated.total(), sum(map(rule.weight_of, allocated))
    shares = [
        GroupShare(
            group=name,
            milli_hours=amount,
            allocated=_permille(amount, total),
            entitled=_permille(rule.weight_of(name), weights),
            holds_milli=holds[name],
        )
        for name, amount in allocated.items()
    ]
    return sorted(shares, key=lambda one: (-one.excess_share, one.group))


def decay_gpu_time(time: PodGpuTime, half_life_hours: int, now: float) -> int:
    """Return decayed GPU time in thousandths of a GPU-hour; the future does not count."""
    start, end = min(time.start, now), min(time.end or now, now)
    if end <= start:
        return 0
    rate = math.log(2) / (half_life_hours * HOUR_SECONDS)
    seconds = (math.exp(-rate * (now - end)) - math.exp(-rate * (now - start))) / rate
    return round(time.gpu_milli * seconds / HOUR_SECONDS)


def _permille(amount: int, total: int) -> int:
    return (1000 * amount + total // 2) // total if total else 0
