"""Whether a resource name stands for shares of a card: several pods take turns on it, or use it at once."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.model.fleet import Fleet
from webhook.model.resources import parse_gpu_resource


def requests_gpu_share(totals: Mapping[str, int], fleet: Fleet) -> bool:
    """Is one of these resources a share, by its name or by what nodes offer under it?

    Args:
        totals: Units asked for, by resource name.
    """
    if any((resource := parse_gpu_resource(name)) is not None and resource.shared for name in totals):
        return True
    return any(offer.replicas > 1 for offer in fleet.offers_on_nodes(totals, fleet.all_nodes).offers)
