"""A view from nothing, out of what stores hold.

It may run in a thread: what it is given does not change meanwhile, but for the sums by node, of which it only looks up
single numbers. Whoever runs it takes in afterwards what was written on nodes since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from webhook.cache.gathering import room_of
from webhook.cache.holdings import PODS, Holdings
from webhook.cache.stored import stored_quota
from webhook.model.claims import Classes, ResourceClaimTemplate
from webhook.model.cluster import ClusterView, Room
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.holders import Lines
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota


class Made(NamedTuple):
    """A view, and the room it knows by index of node."""

    view: ClusterView
    rooms: list[Room]


def make(
    nodes: Fleet | Sequence[Node],
    holdings: Holdings,
    namespaces: Mapping[str, Namespace],
    limit_ranges: Mapping[str, Sequence[LimitRange]],
    quotas: Mapping[str, Sequence[ResourceQuota]],
    lines: Lines,
    claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]],
    device_classes: Classes,
) -> Made:
    """The live view of what there is. Pods that come and go meanwhile may be in it or not.

    Args:
        nodes: The nodes, or the fleet where they did not change.
        holdings: What pods hold.
        namespaces: By name.
        limit_ranges, quotas: By namespace.
        lines: The pods that have not ended.
        claim_templates: By namespace.
        device_classes: See `Classes`.
    """
    fleet = nodes if isinstance(nodes, Fleet) else Fleet(sorted(nodes, key=lambda node: node.metadata.name))
    rooms = [room_on(node, holdings) for node in fleet.nodes]
    view = ClusterView(
        fleet,
        rooms={node.name: room for node, room in zip(fleet.nodes, rooms, strict=True)},
        namespaces=namespaces,
        limit_ranges={name: tuple(found) for name, found in limit_ranges.items()},
        quotas={name: tuple(stored_quota(quota, ()) for quota in found) for name, found in quotas.items()},
        claim_templates=claim_templates,
        device_classes=device_classes,
        lines=lines,
        complete=True,
    )
    return Made(view, rooms)


def room_on(node: FleetNode, holdings: Holdings) -> Room:
    """What pods leave free on a node."""
    held = holdings.on(node.name)
    return room_of(node, held, held.get(PODS, 0))
