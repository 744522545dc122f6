"""What GPUs weigh, in thousandths of a whole card: the unit of savings and of the accounting resource."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.fleet import Fleet
from webhook.model.pools import unit_milli


def total_milli(totals: Mapping[str, int], fleet: Fleet) -> int:
    """Thousandths of a whole card that a pod's totals take."""
    return sum([count * unit_milli(name, fleet) for name, count in totals.items()])
