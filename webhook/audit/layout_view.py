"""The cluster against which the demand of layouts is evaluated: empty nodes that advertise every slice and share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from webhook.audit.adjusted_view import AdjustedView
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_pools import DevicePools
from webhook.model.enums import GpuForm, IsolationLevel
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, CARD_MILLI, MIG_PREFIX, SHARED_GPU, WHOLE_GPU
from webhook.model.node_labels import PRODUCT_LABEL, REPLICAS_LABEL, SHARING_LABEL
from webhook.model.objects import Node, NodeCondition, NodeMetadata, NodeSpec, NodeStatus
from webhook.model.pods import QuantityText
from webhook.placement.labeled_gpus import GPU_COUNT_LABEL
from webhook.placement.layout_plan import WHOLE_CARD
from webhook.placement.mig import mig_geometry
from webhook.placement.node_layouts import NodeLayout
from webhook.policy.policy_set import PolicySet, RightSizingRules

AMPLE_UNITS = 100
"""Slices of each profile that a node advertises here: more than one pod requests."""

SHARE_ISOLATION = {GpuForm.MPS: IsolationLevel.MEMORY, GpuForm.TIME_SLICING: IsolationLevel.NONE}
SHARING_STRATEGIES = {GpuForm.MPS: "mps", GpuForm.TIME_SLICING: "time-slicing"}

COPY_MARK, TODAY = "/", "today"
"""Part of the names of copies of nodes, and the suffix of those with the labels of today."""


def allowed_share_forms(rule: RightSizingRules) -> list[GpuForm]:
    """Return the forms of shares that a policy allows, in its order."""
    return [form for form in rule.forms if form in SHARE_ISOLATION and SHARE_ISOLATION[form] >= rule.isolation]


def advertised_share_forms(policies: PolicySet) -> tuple[GpuForm, ...]:
    """Return the forms in which nodes advertise shares to pods that are evaluated: one that all policies allow which
    allow shares, MPS first, or both; none without such policies. The plan may have each form that the policy of a pod
    allows.
    """
    rules = [policy.right_sizing for policy in policies.policies if policy.right_sizing]
    shares = list(filter(None, map(allowed_share_forms, rules)))
    common = [form for form in SHARE_ISOLATION if shares and all(form in forms for forms in shares)]
    return tuple(common[:1]) if common or not shares else tuple(SHARE_ISOLATION)


def view_with_slices(
    view: ClusterView, nodes: Mapping[int, NodeLayout], share_forms: Sequence[GpuForm] = ()
) -> ClusterView:
    """Return the view of the same nodes, empty, some of which advertise every MIG profile of their cards.

    Pods that wait are left out: each would count as if it took a place on the node of every other.

    A pod may select labels of today that another layout changes: the node may keep its layout. So copies of such nodes
    with the labels of today follow all others.

    Args:
        share_forms: Also advertise half cards in the first of these forms. A node has one form, so nodes that advertise
            the next one follow all others.
    """
    adjusted = AdjustedView(view)
    fleet, first = view.fleet, next(iter(share_forms), None)
    found = [_as_node(fleet, index, nodes.get(index), first) for index in range(len(fleet.nodes))]
    more = [
        _with_suffix(_as_node(fleet, index, nodes[index], form), form.value)
        for form in share_forms[1:]
        for index in nodes
    ]
    today = [_as_today(fleet, index, nodes[index]) for index in nodes]
    changed = [
        node for index, node in zip(nodes, today, strict=True) if node.metadata.labels != found[index].metadata.labels
    ]
    adjusted.fleet = Fleet([*found, *more, *(_with_suffix(node, TODAY) for node in changed)])
    pools = DevicePools(view.devices.pools.slices, adjusted.fleet)
    return adjusted.with_devices(view.devices._replace(pools=pools)).with_all_free({}).without_waiting_pods()


def _with_suffix(node: Node, suffix: str) -> Node:
    """Return a copy of a node, with a name that no node has."""
    return msgspec.structs.replace(
        node, metadata=msgspec.structs.replace(node.metadata, name=f"{node.metadata.name}{COPY_MARK}{suffix}")
    )


def _as_node(fleet: Fleet, index: int, layout: NodeLayout | None, share_form: GpuForm | None) -> Node:
    node = fleet.nodes[index]
    gpus, labels = dict(node.gpus), dict(node.labels)
    if layout is not None:
        gpus |= _ample_slices(layout.product) | {WHOLE_GPU: len(layout.layouts)}
        labels = {key: text for key, text in labels.items() if not key.startswith(MIG_PREFIX)}
        if share_form is not None:
            labels.pop(REPLICAS_LABEL, None)
            shares = {SHARING_LABEL: SHARING_STRATEGIES[share_form], GPU_COUNT_LABEL: str(AMPLE_UNITS // 2)}
            labels |= {PRODUCT_LABEL: layout.product, **shares}
            gpus |= {SHARED_GPU: AMPLE_UNITS}
    return _node_with(fleet, index, gpus, labels)


def _as_today(fleet: Fleet, index: int, layout: NodeLayout) -> Node:
    """Return a node with its labels of today, and with ample slices if its cards are not shared."""
    node = fleet.nodes[index]
    slices = _ample_slices(layout.product) | {WHOLE_GPU: len(layout.layouts)} if layout.shared == WHOLE_CARD else {}
    return _node_with(fleet, index, {**node.gpus, **slices}, dict(node.labels))


def _node_with(fleet: Fleet, index: int, gpus: Mapping[str, int], labels: dict[str, str]) -> Node:
    """Return a node with other GPUs and labels."""
    node = fleet.nodes[index]
    amounts: dict[str, QuantityText] = {name: f"{nano}n" for name, nano in node.others.items()}
    if fleet.accounting_nodes >> index & 1:
        amounts[ACCOUNTING_RESOURCE] = str(CARD_MILLI * sum(gpus.values()))
    amounts |= {"cpu": f"{node.cpu_milli}m", "memory": str(node.memory), "pods": str(node.pods)}
    amounts |= {name: str(units) for name, units in gpus.items()}
    ready = NodeCondition("Ready", "True" if node.usable or node.cordoned else "False")
    return Node(
        NodeMetadata(node.name, labels),
        NodeSpec(node.taints, node.cordoned),
        NodeStatus(amounts, conditions=(ready,), declared_features=tuple(sorted(node.features))),
    )


def _ample_slices(product: str) -> dict[str, int]:
    geometry = mig_geometry(product)
    return {f"{MIG_PREFIX}{profile.name}": AMPLE_UNITS for profile in geometry.profiles} if geometry else {}
