"""What GPUs weigh, in thousandths of a whole card: the unit of savings and of the accounting resource."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.fleet import Fleet
from webhook.model.resources import WHOLE_GPU, gpu_resource

SLICES = 7
"""Compute slices of most MIG cards; used only for a profile that no node of the cluster offers."""


def unit_milli(name: str, fleet: Fleet) -> int:
    """Thousandths of a whole card that one unit of a resource takes.

    `nvidia.com/gpu` counts as a whole card: that is what was asked for, whatever a node makes of it.
    """
    if name == WHOLE_GPU:
        return 1000
    offers = fleet.by_resource.get(name)
    if offers:
        return max(offer.gpu_milli for offer in offers)
    resource = gpu_resource(name)
    if resource is not None and resource.mig:
        return min(1000, -(-1000 * resource.slices // SLICES))
    return 1000


def total_milli(totals: Mapping[str, int], fleet: Fleet) -> int:
    """Thousandths of a whole card that a pod's totals take."""
    return sum([count * unit_milli(name, fleet) for name, count in totals.items()])
