"""The nodes that node groups may add for a pod, so that no finding says of such a pod that no node can run it.

Groups that settings or an object describe count, and those of live nodes if a policy says that groups grow. As for live
nodes, only node selection, taints and GPUs count here, and neither other resources nor other pods.
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.pod_context import PodContext
from webhook.engine.projected_pod import selecting_keys
from webhook.model.cluster_view import ClusterView
from webhook.model.derived_values import derived_value
from webhook.model.dra.device_view import DeviceKind, DeviceView
from webhook.model.enums import FullCapacityAction
from webhook.model.fleet import Fleet
from webhook.model.node_groups import SETTINGS, NodeGroup, growing_groups, new_device_pools
from webhook.model.node_masks import union_masks
from webhook.policy.policy_set import PolicySet


class NewNodes(NamedTuple):
    """One new node of each group that may grow.

    Attributes:
        fleet: The nodes.
        groups: Their groups, in the same order.
        allowed: Mask of those that a pod may use.
    """

    fleet: Fleet
    groups: tuple[NodeGroup, ...]
    allowed: int


NO_NEW_NODES = NewNodes(Fleet(()), (), 0)


def find_new_nodes(context: PodContext) -> NewNodes:
    """Return the nodes that groups may add, and those of them that a pod may use.

    An autoscaler adds no node for a pod that selects labels which only agents set later.
    """
    view, additions = context.view, context.policies.additions
    groups, by_policy = growing_groups(view.fleet, view.group_sources), says_that_groups_grow(context.policy_set)
    growing = [(index, group) for index, group in enumerate(groups) if by_policy or group.is_declared]
    if not growing:
        return NO_NEW_NODES
    keys = selecting_keys(context.pod.spec)
    known = union_masks(1 << index for index, group in growing if keys.isdisjoint(group.unknown_labels))
    if not known:
        return NO_NEW_NODES
    new, tolerate = view.view_new_nodes(), additions.tolerate_gpu_taints
    feasible = FeasibleNodes(new, context.pod, additions.tolerations, tolerate_gpu_taints=tolerate)
    return NewNodes(new.fleet, groups, feasible.nodes & known)


def view_new_devices(view: ClusterView, source: str = "") -> ClusterView | None:
    """Return the view of new nodes with the devices that they will publish; None if none is known to publish any.

    Args:
        source: The only source of groups that counts; "" for all.
    """
    pools, live = new_device_pools(view.fleet, view.group_sources, source), view.devices
    if not pools:
        return None
    devices = DeviceView(pools, {}, live.classes, live.class_by_resource, unlisted=live.unlisted)
    return view.view_new_nodes().with_api_minor(view.api_minor).with_classes(view.classes).with_devices(devices)


def publishing_view(view: ClusterView) -> ClusterView:
    """Return the view, or that of new nodes if no node publishes devices yet and the settings state theirs.

    Of machines, only what cluster-autoscaler expects is known, which is less than their devices will have.
    """
    if view.devices.pools or DeviceKind.SLICE in view.devices.unlisted:
        return view
    return view_new_devices(view, SETTINGS) or view


@derived_value()
def says_that_groups_grow(policies: PolicySet) -> bool:
    """Return whether some policy relies on an autoscaler."""
    rules = (policy.right_sizing for policy in policies.policies)
    return any(rule is not None and rule.when_full is FullCapacityAction.GROW for rule in rules)


def may_run_on_new_node(context: PodContext) -> bool:
    """Return whether a node that a group may add has all GPUs that a pod requests."""
    new = find_new_nodes(context)
    nodes = new.allowed
    for name, count in context.gpu_requests.totals.items():
        nodes &= new.fleet.nodes_advertising(name, count) if count > 0 else -1
    return bool(nodes)
