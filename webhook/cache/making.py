"""A view from nothing, out of what stores hold.

It may run in a thread: what it is given does not change meanwhile, but for the sums by node, of which it only looks up
single numbers. Whoever runs it takes in afterwards what was written on nodes since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from webhook.cache.build_view import free_resources_of_node
from webhook.cache.node_usage import POD_COUNT, NodeUsage
from webhook.cache.stored import with_quota_status
from webhook.model.claims import DeviceClasses, ResourceClaimTemplate
from webhook.model.cluster_view import ClusterView, FreeResources
from webhook.model.fleet import Fleet, FleetNode
from webhook.model.objects import LimitRange, Namespace, Node, ResourceQuota
from webhook.model.quota_usage import PodSummaries


class BuiltView(NamedTuple):
    """A view, and the room it knows by index of node."""

    view: ClusterView
    rooms: list[FreeResources]


def build_live_view(
    nodes: Fleet | Sequence[Node],
    holdings: NodeUsage,
    namespaces: Mapping[str, Namespace],
    limit_ranges: Mapping[str, Sequence[LimitRange]],
    quotas: Mapping[str, Sequence[ResourceQuota]],
    lines: PodSummaries,
    claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]],
    device_classes: DeviceClasses,
) -> BuiltView:
    """The live view of what there is. Pods that come and go meanwhile may be in it or not.

    Args:
        nodes: The nodes, or the fleet where they did not change.
        holdings: What pods hold.
        namespaces: By name.
        limit_ranges, quotas: By namespace.
        lines: The pods that have not ended.
        claim_templates: By namespace.
        device_classes: See `DeviceClasses`.
    """
    fleet = nodes if isinstance(nodes, Fleet) else Fleet(sorted(nodes, key=lambda node: node.metadata.name))
    rooms = [free_resources_on_node(node, holdings) for node in fleet.nodes]
    view = ClusterView(
        fleet,
        rooms={node.name: room for node, room in zip(fleet.nodes, rooms, strict=True)},
        namespaces=namespaces,
        limit_ranges={name: tuple(found) for name, found in limit_ranges.items()},
        quotas={name: tuple(with_quota_status(quota, ()) for quota in found) for name, found in quotas.items()},
        claim_templates=claim_templates,
        device_classes=device_classes,
        lines=lines,
        complete=True,
    )
    return BuiltView(view, rooms)


def free_resources_on_node(node: FleetNode, holdings: NodeUsage) -> FreeResources:
    """What pods leave free on a node."""
    held = holdings.on_node(node.name)
    return free_resources_of_node(node, held, held.get(POD_COUNT, 0))
