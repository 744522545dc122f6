"""Check policies against the node groups of a cluster: groups that cannot grow for what policies assign.

Policies that rely on groups are checked: those with `whenFull: grow` or `wait`, and those that account GPUs. Those with
`whenFull: keep` are, if only a new node of a group without nodes would have what they assign.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.errors import abbreviate_names
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import FullCapacityAction
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU
from webhook.model.node_groups import (
    KARPENTER_POOL,
    SETTINGS,
    NodeGroup,
    NodeOverlay,
    find_node_groups,
    growing_groups,
    hides_gpus_from_autoscaler,
)
from webhook.model.node_labels import DRIVER_LABEL, PRODUCT_LABEL
from webhook.model.node_masks import bit_positions, union_masks
from webhook.model.objects import is_gpu_taint, tolerates_all
from webhook.policy.policy_set import Policy, RightSizingRules

MAX_NAMES = 3
PAGE = "docs/autoscalers.md"


class GroupProblem(NamedTuple):
    """Something about node groups that keeps pods waiting, and what to do."""

    summary: str
    advice: str


def find_group_problems(policies: Iterable[Policy], view: ClusterView) -> Iterator[GroupProblem]:
    """Yield the problems of some policies with the node groups of a cluster, and nodes that may be removed."""
    groups, policies = find_node_groups(view.fleet, view.group_sources), tuple(policies)
    for policy in policies:
        if policy.right_sizing is not None:
            yield from _growth_problems(policy.name, policy.right_sizing, groups, view)
        if policy.limits is not None and policy.limits.accounting:
            yield from _accounting_problems(policy.name, groups)
    yield from _taint_problems(policies, view)
    if any(policy.right_sizing is not None for policy in policies):
        yield from _idle_nodes(view)


def _growth_problems(
    policy: str, rules: RightSizingRules, groups: tuple[NodeGroup, ...], view: ClusterView
) -> Iterator[GroupProblem]:
    if rules.when_full is FullCapacityAction.WAIT and groups:
        advice = "write whenFull: grow, so that only pods for which a node group grows get a slice that is not free"
        yield GroupProblem(f"policy {policy} lets pods wait for slices that no new node may have", advice)
    if rules.when_full is FullCapacityAction.KEEP:
        yield from _unused_groups(policy, rules, view)
    if rules.when_full is not FullCapacityAction.GROW:
        return
    assigned = _assigned_resources(rules, view)
    for group in groups:
        missing = sorted(assigned.intersection(group.unknown_gpus))
        offered = assigned.intersection(group.new_node.status.allocatable)
        if missing:
            summary = f"node group {group.name} cannot grow for {abbreviate_names(missing)}"
            yield GroupProblem(summary, _remedy_of_lack(group, view.group_sources.overlays))
        elif group.blocker and group.source != SETTINGS and offered:
            yield GroupProblem(f"node group {group.name} cannot grow: {group.blocker}", _remedy_of_blocker(group))
    yield from _unknown_sizes(rules, view)
    yield from _unknown_drivers(rules, view)
    growing = growing_groups(view.fleet, view.group_sources)
    if not any(assigned.intersection(group.new_node.status.allocatable) for group in growing):
        advice = f"pods keep whole GPUs if no slice is free; {PAGE} says how a group grows for slices"
        if unknown := _pools_without_nodes(groups, view):
            advice += f"; without nodes it is not known what NodePool {abbreviate_names(unknown)} offers"
        yield GroupProblem(f"policy {policy} lets node groups grow, and none offers a slice or share", advice)


def _unused_groups(policy: str, rules: RightSizingRules, view: ClusterView) -> Iterator[GroupProblem]:
    """Yield what only new nodes of groups would have, for a policy that does not count on them."""
    new = view.view_new_nodes().fleet
    for offer in new.offers_by_form(*rules.allowed_shares):
        if not view.fleet.nodes_advertising(offer.resource):
            summary = (
                f"policy {policy} keeps whole GPUs, although {abbreviate_names(new.names_of(offer.nodes))} would have"
            )
            yield GroupProblem(f"{summary} {offer.resource}", f"write whenFull: grow, so that pods get one ({PAGE})")


def _taint_problems(policies: Iterable[Policy], view: ClusterView) -> Iterator[GroupProblem]:
    """Yield the taints of new nodes with slices that no policy adds a toleration for."""
    rules = [policy.right_sizing for policy in policies if policy.right_sizing is not None]
    growing = [each for each in rules if each.when_full is FullCapacityAction.GROW]
    injections = [policy.injection for policy in policies if policy.injection is not None]
    added = tuple(each for injection in injections for each in injection.tolerations)
    auto = any(injection.tolerations_auto for injection in injections)
    new = view.view_new_nodes().fleet
    offers = [offer for each in growing for offer in new.offers_by_form(*each.allowed_shares)]
    for taint, nodes in new.nodes_by_taint:
        with_slices = nodes & union_masks(each.nodes for each in offers)
        is_added = tolerates_all(added, (taint,)) or (auto and is_gpu_taint(taint.key, taint.value))
        if with_slices and not is_added:
            summary = (
                f"{abbreviate_names(new.names_of(with_slices))} has the taint {taint.text}, which no policy tolerates"
            )
            write = "auto" if is_gpu_taint(taint.key, taint.value) else "[...]"
            advice = f"write injection: {{tolerations: {write}}} in a policy; pods without a toleration keep whole GPUs"
            yield GroupProblem(summary, f"{advice} ({PAGE})")


def _pools_without_nodes(groups: Iterable[NodeGroup], view: ClusterView) -> list[str]:
    names = {group.name for group in groups}
    return [each.metadata.name for each in view.group_sources.pools if each.metadata.name not in names]


def _unknown_sizes(rules: RightSizingRules, view: ClusterView) -> Iterator[GroupProblem]:
    """Yield the groups whose new nodes have slices of unknown memory, so that no pod gets one."""
    fleet = view.view_new_nodes().fleet
    unknown = [each for each in fleet.offers if each.memory_mib is None and each.form in rules.forms]
    for offer in unknown:
        names = fleet.names_of(offer.nodes)
        summary = f"{abbreviate_names(names)} would have {offer.resource} of unknown memory"
        yield GroupProblem(summary, f"add {PRODUCT_LABEL} to agentLabels or to the labels of its template ({PAGE})")


def _unknown_drivers(rules: RightSizingRules, view: ClusterView) -> Iterator[GroupProblem]:
    """Yield the groups whose new nodes have slices and an unknown driver, if nodes with whole GPUs have a known one.

    An image that runs on these nodes may need a newer driver than the new ones have, so its pods keep whole GPUs.
    """
    fleet, cards = view.view_new_nodes().fleet, view.fleet.nodes_advertising(WHOLE_GPU)
    if not any(each.driver for each in view.fleet.hardware_of_nodes(cards)):
        return
    nodes = union_masks(offer.nodes for offer in fleet.offers_by_form(*rules.allowed_shares))
    unknown = (
        node for node in bit_positions(nodes) if not any(each.driver for each in fleet.hardware_of_nodes(1 << node))
    )
    if names := [fleet.nodes[node].name for node in unknown]:
        summary = f"{abbreviate_names(names)} would have slices or shares, and an unknown driver"
        yield GroupProblem(summary, f"add {DRIVER_LABEL} to agentLabels or to the labels of its template ({PAGE})")


def _assigned_resources(rules: RightSizingRules, view: ClusterView) -> set[str]:
    fleets = view.fleet, view.view_new_nodes().fleet, view.view_new_nodes(stopped=True).fleet
    return {offer.resource for fleet in fleets for offer in fleet.offers_by_form(*rules.allowed_shares)}


def _remedy_of_lack(group: NodeGroup, overlays: Iterable[NodeOverlay]) -> str:
    """Return what makes an autoscaler expect resources that it does not expect on a new node."""
    if group.source != KARPENTER_POOL:
        return f"not all its ready nodes have it, and cluster-autoscaler may copy any: use a group for each ({PAGE})"
    missing = group.unknown_gpus
    setting = [one for one in overlays if not one.spec.capacity.keys().isdisjoint(missing)]
    if unready := [one.metadata.name for one in setting if one.status.is_unready]:
        return f"NodeOverlay {abbreviate_names(unready)} is not ready: its conditions say why ({PAGE})"
    capacity = ", ".join(f'{name}: "N"' for name in missing[:MAX_NAMES])
    rule = "of the highest weight, for all its nodes, " if setting else ""
    return f"Karpenter expects no slices on new nodes: write a NodeOverlay {rule}with capacity {{{capacity}}} ({PAGE})"


def _remedy_of_blocker(group: NodeGroup) -> str:
    if group.source == KARPENTER_POOL:
        change = "raise it" if group.blocker.startswith("the limit") else "change that"
        return f"{change}; pods keep whole GPUs if no slice is free, and may wait for another pool ({PAGE})"
    if group.source.startswith("Machine"):
        change = "raise it" if "maximum" in group.blocker else "change that"
        change = "set the annotation or its value" if "annotation" in group.blocker else change
        return f"{change}; Cluster API then lets cluster-autoscaler add machines ({PAGE})"
    return f"remove the GPU label of the cloud from the group, or state it in --node-groups ({PAGE})"


def _accounting_problems(policy: str, groups: Iterable[NodeGroup]) -> Iterator[GroupProblem]:
    lacking = [group.name for group in groups if ACCOUNTING_RESOURCE not in group.new_node.status.allocatable]
    if lacking:
        advice = f"autoscalers do not ignore it: add it to the NodeOverlay, tags or settings of the group ({PAGE})"
        lack = f"which new nodes of {abbreviate_names(lacking)} lack"
        yield GroupProblem(f"policy {policy} lets pods request {ACCOUNTING_RESOURCE}, {lack}", advice)


def _idle_nodes(view: ClusterView) -> Iterator[GroupProblem]:
    idle = [node.name for node in view.fleet.nodes if node.gpus and hides_gpus_from_autoscaler(node)]
    if idle:
        yield GroupProblem(
            f"cluster-autoscaler counts {abbreviate_names(idle)} as idle, whatever slices pods hold, and as not ready",
            "remove the GPU label from its group; or annotate the node with cluster-autoscaler.kubernetes.io/"
            'scale-down-disabled: "true", or its pods with cluster-autoscaler.kubernetes.io/safe-to-evict: "false"',
        )
