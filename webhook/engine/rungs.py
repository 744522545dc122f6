"""Which size the observed use of a container asks for, among those that are on offer: price x risk + what it holds.

What a size holds is told by how little of it typical use fills. The whole card is the last rung: it carries no risk
that the pod does not carry today, and the request for it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from webhook.model.decisions import Keep, Why
from webhook.model.quantity import nano, written
from webhook.model.usage import CERTAIN_PPM, Observed

_HELD = 1000 * CERTAIN_PPM
"""What costs are counted in: thousandths of a pod-hour, times risk in ppm."""


def rung(use: Observed, sizes: Sequence[int], price_milli: int, most_ppm: int) -> int | Keep:
    """The cheapest size whose risk is bearable, MiB; the least that would be where no offer has one; or why none is.

    Args:
        use: What was seen.
        sizes: MiB that some offer has, ascending.
        price_milli: Price of running out once, thousandths of an hour of an unused card.
        most_ppm: Pod-hours in a million that may need more.
    """
    if use.preallocates:
        return Keep(Why.PREALLOCATES, "nearly all of its GPU, and never less")
    if not use.sizes_mib:
        return Keep(Why.SHORT_HISTORY)
    bearable = [size for size in sizes if use.risk_ppm(size) <= most_ppm]
    if not bearable:
        return use.size_mib(most_ppm)
    best = min(bearable, key=lambda size: _cost(use, size, price_milli))
    whole = -(_HELD * use.typical_mib // max(use.card_mib, best + 1))
    return best if _cost(use, best, price_milli) < whole else Keep(Why.RISK, said(use, best))


def _cost(use: Observed, size: int, price_milli: int) -> int:
    """Of a size as the limit; of equals the smaller is first."""
    return price_milli * use.risk_ppm(size) - _HELD * use.typical_mib // size


def said(use: Observed, size: int) -> str:
    """A size, its stated risk, and what stands behind it."""
    risk = f"{use.risk_ppm(size) / 10_000:g}%"
    windows = f"{use.samples} windows of {use.horizon_hours} h of its {use.pool}"
    return f"{written(size * nano('1Mi'))} from observed use with {risk} risk an hour, by {windows}"
