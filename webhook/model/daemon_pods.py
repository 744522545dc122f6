"""Free resources of a new node: those that pods of DaemonSets and static pods leave of it.

cluster-autoscaler and Karpenter expect these pods on a new node, so another pod must fit beside them.

Sources: cluster-autoscaler `simulator/node_info_utils.go`; Karpenter 1.14 `getDaemonOverhead` of
`pkg/controllers/provisioning/scheduling`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from webhook.model.daemon_kinds import DaemonKind
from webhook.model.fleet import FleetNode
from webhook.model.free_resources import UNLIMITED_PODS, FreeResources, free_resources_of_empty_node
from webhook.model.objects import tolerates_all
from webhook.model.pod_resources import MANY_RESOURCES
from webhook.model.quantity import NANO

LATER_LABELS = ("kubernetes.io/", "topology.kubernetes.io/", "node.kubernetes.io/", "nvidia.com/", "feature.node.")
"""Prefixes of labels that a new node gets from its kubelet, its cloud or agents, although its template lacks them."""


class DaemonPods(msgspec.Struct, frozen=True, eq=False):
    """The pods of a cluster that new nodes run too: the names of their nodes by kind. Compared by identity."""

    nodes: Mapping[DaemonKind, Collection[str]] = {}


NO_DAEMONS = DaemonPods()


class GroupNodes(NamedTuple):
    """A new node of a group, and the names of live nodes.

    Attributes:
        siblings: The nodes of the group.
        live: All nodes that are ready.
        is_copied: True if a new node is known to run what its siblings run, and nothing else.
        spare_percent: Part of a node's CPU and memory that `new` leaves out for such pods already.
    """

    new: FleetNode
    siblings: Collection[str]
    live: Collection[str]
    is_copied: bool = False
    spare_percent: int = 0


def free_on_new_node(group: GroupNodes, daemons: DaemonPods) -> FreeResources:
    """Return what the pods of DaemonSets and static pods leave of a new node; there is nothing else on it."""
    by_owner: dict[tuple[str, str], dict[str, int]] = {}
    for kind, nodes in daemons.nodes.items():
        if _runs_on_new_node(kind, nodes, group):
            amounts = by_owner.setdefault((kind.namespace, kind.owner), {})
            amounts.update((name, max(amount, amounts.get(name, 0))) for name, amount in kind.requests)
    sums = Counter[str]()
    for amounts in by_owner.values():
        sums.update(amounts)
    return _subtract(group, sums, len(by_owner))


def _runs_on_new_node(kind: DaemonKind, nodes: Collection[str], group: GroupNodes) -> bool:
    """Return whether a new node runs a kind: its siblings do, or else nothing known excludes it."""
    if any(name in nodes for name in group.siblings):
        return True
    if group.is_copied:
        return False
    if kind.is_static:
        return all(name in nodes for name in group.live)
    return tolerates_all(kind.tolerations, group.new.taints) and all(
        group.new.labels.get(key, value if key.startswith(LATER_LABELS) else None) == value
        for key, value in kind.labels
    )


def _subtract(group: GroupNodes, used: Mapping[str, int], pods: int) -> FreeResources:
    free, spare = free_resources_of_empty_node(group.new), group.spare_percent
    cpu_milli, memory = -(-used.get("cpu", 0) * 1000 // NANO), -(-used.get("memory", 0) // NANO)
    return replace(
        free,
        cpu_milli=free.cpu_milli - max(0, cpu_milli - free.cpu_milli * spare // (100 - spare)),
        memory=free.memory - max(0, memory - free.memory * spare // (100 - spare)),
        gpus={name: max(0, units - -(-used.get(name, 0) // NANO)) for name, units in free.gpus.items()},
        others={} if MANY_RESOURCES in used else {name: most - used.get(name, 0) for name, most in free.others.items()},
        pods=free.pods if free.pods == UNLIMITED_PODS else max(0, free.pods - pods),
    )
