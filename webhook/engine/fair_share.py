"""Fair share: GPU time by group, with exponential decay, compared with the share each group is entitled to.

A pod that held g thousandths of a GPU from a to b counts g · ∫ 2^(−(now − t)/H) dt now, with the half-life H. So a GPU
held forever counts H/ln 2 hours.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from webhook.policy.fair_share import FairShare, GroupShare, PodGpuTime

HOUR_SECONDS = 3600.0


def rank_fair_shares(uses: Iterable[PodGpuTime], rule: FairShare, now: float) -> list[GroupShare]:
    """Return the share of every group that a policy names or that used GPUs; the largest excess first, then by name."""
    used: Counter[str] = Counter({name: 0 for name, _ in rule.shares})
    holds: Counter[str] = Counter()
    for use in uses:
        used[use.group] += decay_gpu_time(use, rule.half_life_hours, now)
        if not use.end:
            holds[use.group] += use.gpu_milli
    total, weights = used.total(), sum(map(rule.weight_of, used))
    shares = [
        GroupShare(
            group=name,
            milli_hours=amount,
            used=_permille(amount, total),
            entitled=_permille(rule.weight_of(name), weights),
            holds_milli=holds[name],
        )
        for name, amount in used.items()
    ]
    return sorted(shares, key=lambda one: (-one.excess_share, one.group))


def decay_gpu_time(use: PodGpuTime, half_life_hours: int, now: float) -> int:
    """Return decayed GPU time in thousandths of a GPU-hour; the future does not count."""
    start, end = min(use.start, now), min(use.end or now, now)
    if end <= start:
        return 0
    rate = math.log(2) / (half_life_hours * HOUR_SECONDS)
    seconds = (math.exp(-rate * (now - end)) - math.exp(-rate * (now - start))) / rate
    return round(use.gpu_milli * seconds / HOUR_SECONDS)


def _permille(amount: int, total: int) -> int:
    return (1000 * amount + total // 2) // total if total else 0
