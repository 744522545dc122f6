"""Fair share over time: GPU time by group, what is long past counting less, against what each is entitled to.

Use that decays is an integral: a pod that held g thousandths of a GPU from a to b counts g · ∫ 2^(−(now − t)/H) dt
today, with H the half-life. So one who holds a GPU for good comes to H/ln 2 hours of it, and no more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from webhook.model.fairness import Standing, Use
from webhook.policy.fairness import FairShare

HOUR = 3600.0
WHOLE = 1000


def standings(uses: Iterable[Use], rule: FairShare, now: float) -> list[Standing]:
    """Where everybody stands: whoever has the most over the share first, then by name.

    Groups that a policy names are there without any use; of the others only those that have used something.
    """
    used: Counter[str] = Counter({name: 0 for name, _ in rule.shares})
    holds: Counter[str] = Counter()
    for use in uses:
        used[use.group] += decayed(use, rule.half_life_hours, now)
        if not use.end:
            holds[use.group] += use.gpu_milli
    total, weights = used.total(), sum(map(rule.weight, used))
    found = [
        Standing(
            group=name,
            milli_hours=amount,
            used=_part(amount, total),
            entitled=_part(rule.weight(name), weights),
            holds_milli=holds[name],
        )
        for name, amount in used.items()
    ]
    return sorted(found, key=lambda one: (-one.over, one.group))


def decayed(use: Use, half_life_hours: int, now: float) -> int:
    """Thousandths of a GPU for an hour, as they count now; what lies in the future does not."""
    start, end = min(use.start, now), min(use.end or now, now)
    if end <= start:
        return 0
    rate = math.log(2) / (half_life_hours * HOUR)
    seconds = (math.exp(-rate * (now - end)) - math.exp(-rate * (now - start))) / rate
    return round(use.gpu_milli * seconds / HOUR)


def _part(amount: int, total: int) -> int:
    return (WHOLE * amount + total // 2) // total if total else 0
