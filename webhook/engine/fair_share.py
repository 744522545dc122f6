"""Fair share over time: GPU time by group, what is long past counting less, against what each is entitled to.

Use that decays is an integral: a pod that held g thousandths of a GPU from a to b counts g · ∫ 2^(−(now − t)/H) dt
today, with H the half-life. So one who holds a GPU for good comes to H/ln 2 hours of it, and no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from webhook.model.fairness import GroupShare, PodGpuTime
from webhook.policy.fair_share import FairShare

HOUR_SECONDS = 3600.0
WHOLE_PERMILLE = 1000


def rank_fair_shares(uses: Iterable[PodGpuTime], rule: FairShare, now: float) -> list[GroupShare]:
    """Where everybody stands: whoever has the most over the share first, then by name.

    Groups that a policy names are there without any use; of the others only those that have used something.
    """
    used: Counter[str] = Counter({name: 0 for name, _ in rule.shares})
    holds: Counter[str] = Counter()
    for use in uses:
        used[use.group] += decay_gpu_time(use, rule.half_life_hours, now)
        if not use.end:
            holds[use.group] += use.gpu_milli
    total, weights = used.total(), sum(map(rule.weight_of, used))
    found = [
        GroupShare(
            group=name,
            milli_hours=amount,
            used=_permille(amount, total),
            entitled=_permille(rule.weight_of(name), weights),
            holds_milli=holds[name],
        )
        for name, amount in used.items()
    ]
    return sorted(found, key=lambda one: (-one.excess_share, one.group))


def decay_gpu_time(use: PodGpuTime, half_life_hours: int, now: float) -> int:
    """Thousandths of a GPU for an hour, as they count now; what lies in the future does not."""
    start, end = min(use.start, now), min(use.end or now, now)
    if end <= start:
        return 0
    rate = math.log(2) / (half_life_hours * HOUR_SECONDS)
    seconds = (math.exp(-rate * (now - end)) - math.exp(-rate * (now - start))) / rate
    return round(use.gpu_milli * seconds / HOUR_SECONDS)


def _permille(amount: int, total: int) -> int:
    return (WHOLE_PERMILLE * amount + total // 2) // total if total else 0
