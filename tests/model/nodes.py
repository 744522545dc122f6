"""Build nodes with GPU labels for the tests of `webhook.model`."""

from __future__ import annotations

import msgspec

from tests.builders import Json, make_node
from webhook.model.fleet import Fleet
from webhook.model.node_masks import bit_positions
from webhook.model.objects import Node
from webhook.model.offers import GpuOffer

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
SMALL = "nvidia.com/mig-1g.10gb"
A100 = "NVIDIA-A100-SXM4-80GB"


def node(name: str = "n", labels: dict[str, str] | None = None, /, **gpus: object) -> Node:
    """Return a node with labels and GPU resources of any amount; label names without a prefix get nvidia.com/."""
    spelled = {key if "/" in key else f"nvidia.com/{key}": value for key, value in (labels or {}).items()}
    data = make_node(name, spelled)
    for field in ("allocatable", "capacity"):
        data["status"][field] |= gpus
    return read_node(data)


def read_node(data: Json) -> Node:
    """Parse a node from plain data."""
    return msgspec.convert(data, Node)


def reachable_nodes(fleet: Fleet, offer: GpuOffer) -> int:
    """Return the nodes where a pod may run that requests an offer's resource with its selector.

    These are more than the offer's own if taints separate them, or if no label distinguishes another size.
    """
    return fleet.select_nodes(dict(offer.selector), None) & fleet.nodes_advertising(offer.resource)


def only(*nodes: Node) -> GpuOffer:
    """Return the one offer of a fleet of these nodes."""
    (offer,) = Fleet(nodes).offers
    return offer


def block(profile: str, **fields: str) -> dict[str, str]:
    """Return the labels of one profile under the mixed strategy."""
    return {f"mig-{profile}.{key.replace('_', '-')}": value for key, value in fields.items()}


def names(fleet: Fleet, mask: int) -> set[str]:
    """Return the names of the nodes of a mask."""
    return {fleet.nodes[position].name for position in bit_positions(mask)}
