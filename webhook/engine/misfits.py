"""Describe what keeps a pod off all nodes with a slice or share: the first of them, what it lacks, the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.errors import shorten_text
from webhook.model.node_groups import NEW_NODE_PREFIX, NodeGroup
from webhook.model.node_masks import bit_positions
from webhook.model.quantity import NANO, format_mib, format_nano

MAX_GROUP_NAME, MAX_BLOCKER = 253, 200
"""Letters of a node group in a message: of its name, and of why it cannot grow."""


def describe_exclusion(resource: str, nodes: int, feasible: FeasibleNodes) -> str:
    """Return what keeps a pod off the nodes of a mask, whatever is free there."""
    if not nodes:
        return resource
    index = next(bit_positions(nodes))
    return f"{resource}: {_name(index, feasible)} {_exclusion(index, feasible)}{_others(nodes)}"


def describe_lack(resource: str, nodes: int, feasible: FeasibleNodes) -> str:
    """Return what a pod requests and is not free on the nodes of a mask, which accept the pod."""
    view = feasible.view
    with_units = nodes & view.nodes_with_free_units(resource)
    total = view.fleet.units_index(resource).total_amount(nodes)
    if not total:
        return resource
    index = next(bit_positions(with_units or nodes))
    name = _name(index, feasible)
    if not with_units and view.free_on_node(index).pods > 0:
        return f"{resource}: 0 of {total} are free on {name}{_others(nodes)}"
    lack = next(_lacks(index, feasible), "has one free, but pods that wait or were just admitted may take it")
    return f"{resource}: {name} {lack}{_others(with_units or nodes)}"


def describe_stopped_groups(resource: str, groups: Sequence[NodeGroup]) -> str:
    """Return why the first of some groups cannot grow, which would add a node for the pod, and how many more cannot."""
    name, blocker = shorten_text(groups[0].name, MAX_GROUP_NAME), shorten_text(groups[0].blocker, MAX_BLOCKER)
    more = f" (and {len(groups) - 1} more)" if len(groups) > 1 else ""
    return f"{resource}: node group {name} cannot grow: {blocker}{more}"


def _name(index: int, feasible: FeasibleNodes) -> str:
    """Return what a message calls a node: those of groups have names such as "new node of slices"."""
    name = feasible.view.fleet.nodes[index].name
    return name if name.startswith(NEW_NODE_PREFIX) else f"node {name}"


def _others(nodes: int) -> str:
    others = nodes.bit_count() - 1
    return f" (and {others} more nodes)" if others > 1 else " (and 1 more node)" if others else ""


def _exclusion(index: int, feasible: FeasibleNodes) -> str:
    node = feasible.view.fleet.nodes[index]
    if not feasible.selected >> index & 1:
        selector = feasible.pod.spec.node_selector.items()
        lacking = next((f"{key}={value}" for key, value in selector if node.labels.get(key) != value), "")
        return (
            f"lacks the label {lacking}, which the pod selects"
            if lacking
            else "does not match the required node affinity"
        )
    if (taint := feasible.untolerated_taint(index)) is not None:
        return f"has the taint {taint.text}"
    lack = next((lack for nodes, lack in feasible.lacks if nodes >> index & 1), "does not accept it")
    return "is cordoned" if node.cordoned else lack


def _lacks(index: int, feasible: FeasibleNodes) -> Iterator[str]:
    """Yield what a node has too little of, first what it never has enough of."""
    node, free, needs = feasible.view.fleet.nodes[index], feasible.view.free_on_node(index), feasible.amounts()
    wanted = {"cpu": needs.cpu_milli * NANO // 1000, "memory": needs.memory * NANO, **dict(needs.others)}
    most = {"cpu": node.cpu_milli * NANO // 1000, "memory": node.memory * NANO, **node.others}
    left = {"cpu": free.cpu_milli * NANO // 1000, "memory": free.memory * NANO, **free.others}
    for name, amount in wanted.items():
        if amount > most.get(name, 0):
            yield f"has {_text(most.get(name, 0), name)} {name} in all, the pod requests {_text(amount, name)}"
    for name, amount in wanted.items():
        if amount > left.get(name, 0):
            yield f"has {_text(left.get(name, 0), name)} {name} free, the pod requests {_text(amount, name)}"
    if free.pods < 1:
        yield f"accepts no further pod (of {node.pods})"


def _text(nano: int, name: str) -> str:
    """Return an amount for people; an odd amount of memory in whole MiB."""
    amount = max(0, nano)
    return format_mib(amount // (NANO << 20)) if name in ("memory", "ephemeral-storage") else format_nano(amount)
