"""What a pod that runs already holds: its GPUs, priced by what its own node advertises under their names.

`nvidia.com/gpu` is a whole card on one node, and an instance or a share on another that gives these the same
name. The pod does not tell; its node does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webhook.model.fleet import Fleet
from webhook.model.pools import unit_milli


def bound_node(pod: Mapping[str, Any]) -> str:
    """The name of the node that a pod is bound to; "" for none."""
    spec = pod.get("spec")
    name = spec.get("nodeName") if isinstance(spec, dict) else None
    return name if isinstance(name, str) else ""


def allocated_milli(totals: Mapping[str, int], node: str, fleet: Fleet) -> int:
    """Thousandths of whole cards that a pod holds.

    A name that its node does not advertise, or a node that is not in the fleet, is priced as the name is
    anywhere: `nvidia.com/gpu` is a whole card.

    Args:
        totals: Units that the pod asks for, by resource name.
    """
    return sum(count * _unit_milli_on_node(name, node, fleet) for name, count in totals.items())


def _unit_milli_on_node(name: str, node: str, fleet: Fleet) -> int:
    position = fleet.by_name.get(node)
    if position is None:
        return unit_milli(name, fleet)
    there = [offer.gpu_milli for offer in fleet.by_resource.get(name, ()) if offer.nodes >> position & 1]
    return max(there, default=unit_milli(name, fleet))
