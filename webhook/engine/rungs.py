"""Which size the observed use of a container asks for, among those that are on offer: price x risk + what it holds.

What a size holds is told by how little of it typical use fills. The whole card is the last rung: it carries no risk
that the pod does not carry today, and the request for it stays.
"""

from __future__ import annotations

from functools import lru_cache

from webhook.model.decisions import KeepRequest, KeepReason
from webhook.model.usage import CERTAIN_PPM, ObservedUsage

_COST_UNIT = 1000 * CERTAIN_PPM
"""What costs are counted in: thousandths of a pod-hour, times risk in ppm."""

SIZE_CACHE = 1024
"""Choices that are kept, for the pods of one workload that come one after another."""


@lru_cache(maxsize=SIZE_CACHE)
def choose_size(use: ObservedUsage, sizes: tuple[int, ...], price_milli: int, most_ppm: int) -> int | KeepRequest:
    """The cheapest size whose risk is bearable, MiB; the least that would be where no offer has one; or why none is.

    Args:
        use: What was seen.
        sizes: MiB that some offer has, ascending.
        price_milli: Price of running out once, thousandths of an hour of an unused card.
        most_ppm: Pod-hours in a million that may need more.
    """
    if not use.sizes_mib:
        return KeepRequest(KeepReason.SHORT_HISTORY)
    costs = [(_size_cost(use, size, risk, price_milli), size) for size in sizes if (risk := use.risk_ppm(size)) <= most_ppm]
    if not costs:
        return use.size_mib(most_ppm)
    cost, best = min(costs)
    whole = -(_COST_UNIT * use.typical_mib // max(use.card_mib, best + 1))
    return best if cost < whole else KeepRequest(KeepReason.RISK, describe_size(use, best))


def _size_cost(use: ObservedUsage, size: int, risk_ppm: int, price_milli: int) -> int:
    return price_milli * risk_ppm - _COST_UNIT * use.typical_mib // size


@lru_cache(maxsize=SIZE_CACHE)
def describe_size(use: ObservedUsage, size: int) -> str:
    """A size, its stated risk, and what stands behind it."""
    amount = f"{size}Mi" if size % 1024 else f"{size // 1024}Gi"
    risk = f"{use.risk_ppm(size) / 10_000:g}%"
    windows = f"{use.samples} windows of {use.horizon_hours} h of its {use.pool}"
    return f"{amount} from observed use with {risk} risk an hour, by {windows}"
