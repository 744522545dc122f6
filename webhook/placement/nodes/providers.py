"""Requirements of a pod for device plugins, by node: a device class serves a GPU resource where no plugin offers it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
from msgspec.structs import replace

from webhook.model.dra.device_view import DeviceView
from webhook.model.fleet import Fleet
from webhook.placement.capacity import BoolArray, node_mask_array
from webhook.placement.nodes.device_values import DeviceValues
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.pod_requirements import PodRequirements
from webhook.placement.nodes.ranking import (
    BROKEN_SETS,
    FREE_UNITS,
    NodeOrder,
    NodeRanking,
    RankedNode,
    sort_by_keys,
)

OF_PLUGINS = [BROKEN_SETS, FREE_UNITS]
"""The parts of a key that only nodes with a device plugin have."""


class ProviderRequirements(NamedTuple):
    """The requirements of one pod, by who serves its GPU resources.

    Attributes:
        parts: Masks that divide all nodes, each with what the pod requires of device plugins on these. The first are
            the nodes whose plugins offer most of the resources.
    """

    parts: tuple[tuple[int, PodRequirements], ...]

    @property
    def of_plugins(self) -> PodRequirements:
        """The requirements on nodes whose device plugins offer the resources; on all nodes if there are none."""
        return self.parts[0][1]

    @property
    def selected_nodes(self) -> int:
        """The nodes that node selector and required affinity allow."""
        return self.of_plugins.selected_nodes

    def on_node(self, node: int) -> PodRequirements:
        """Return the requirements on one node."""
        return next(each for mask, each in self.parts if mask >> node & 1)

    def on_plugin_nodes(self) -> PodRequirements:
        """Return the requirements of a pod that may use only nodes whose device plugins offer the resources."""
        nodes, required = self.parts[0]
        return replace(required, selected_nodes=required.selected_nodes & nodes)

    def selecting(self, nodes: int) -> Self:
        """Return the requirements of a pod that may use only nodes of a mask."""
        parts = [(mask, replace(each, selected_nodes=each.selected_nodes & nodes)) for mask, each in self.parts]
        return self._replace(parts=tuple(parts))

    def rank(
        self, ranking: NodeRanking, gang: GangContext | None = None, devices: DeviceValues | None = None
    ) -> Sequence[RankedNode]:
        """Return the feasible nodes, the best first. Arguments: see `NodeRanking.order`."""
        order = self.order(ranking, gang=gang, devices=devices)
        return [ranking.describe_node(self.on_node(node), node, key) for node, key in order.pairs()]

    def order(
        self,
        ranking: NodeRanking,
        *,
        candidates: BoolArray | None = None,
        gang: GangContext | None = None,
        over_fair_share: bool = False,
        devices: DeviceValues | None = None,
    ) -> NodeOrder:
        """Return the order of `rank` as arrays. Arguments: see `NodeRanking.order`.

        Of GPUs that classes serve it is unknown how they are linked: they count as linked like those of the best node
        with a device plugin, and a gang is kept together on such nodes only.
        """
        found = [
            ranking.order(
                replace(one, selected_nodes=one.selected_nodes & mask),
                candidates=None if candidates is None else candidates & node_mask_array(mask, len(candidates)),
                gang=gang if one.gpu_resources or len(self.parts) == 1 else None,
                over_fair_share=over_fair_share,
                devices=devices,
            )
            for mask, one in self.parts
        ]
        first, *others = [each for each in found if len(each.nodes)] or found[:1]
        if not others:
            return first
        for each in others:
            each.keys[:, OF_PLUGINS] = first.keys[:, OF_PLUGINS].max(0)
        parts = (first, *others)
        nodes, keys = (np.concatenate([each[i] for each in parts]) for i in range(2))
        return sort_by_keys(NodeOrder(nodes, keys))

    def pod_capacity(self, ranking: NodeRanking, nodes: Iterable[int]) -> dict[int, int]:
        """Return how many such pods fit on each of some nodes, ignoring taints and selectors."""
        counts = [(mask, ranking.pod_capacity(each)) for mask, each in self.parts]
        return {node: next(int(some[node]) for mask, some in counts if mask >> node & 1) for node in nodes}


def requirements_by_provider(required: PodRequirements, view: DeviceView, fleet: Fleet) -> ProviderRequirements:
    """Return what a pod requires on the nodes whose plugins offer its GPU resources, and where classes serve them."""
    parts = [(fleet.all_nodes, required)]
    for name in (name for name, _ in required.gpu_resources if name in view.class_by_resource):
        offering = fleet.nodes_advertising(name)
        offered = [(mask & offering, each) for mask, each in parts]
        served = [(mask & ~offering, _without_resource(each, name)) for mask, each in parts]
        parts = [part for part in (*offered, *served) if part[0]] or served
    return ProviderRequirements(tuple(parts))


def _without_resource(required: PodRequirements, name: str) -> PodRequirements:
    left = [each for each in required.gpu_resources if each[0] != name]
    resource, count = left[0] if left else ("", 0)
    return replace(
        required,
        resource=resource,
        count=count,
        other_gpus=tuple(left[1:]),
        container_requests=(),
        served_by_classes=required.served_by_classes | {name},
    )
