"""The progress of layouts that are applied: the configurations of each node, and what the MIG manager and the device
plugin made of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.gpu_resources import SHARED_GPU
from webhook.report.layout_files import UNCHANGED, PlannedNode
from webhook.report.tables import Column, Table
from webhook.well_known import Json

CONFIG_LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
SHARING_CONFIG_LABEL = "nvidia.com/device-plugin.config"
SUCCESS, FAILED, PENDING = "success", "failed", "pending"
NOT_REQUESTED, NO_NODE = "not requested", "no such node"
"""States of planned nodes that do not have the planned label yet, or do not exist. The others are NVIDIA's words."""


class LayoutProgress(NamedTuple):
    """One node whose layout is set by a configuration.

    Attributes:
        config: The configuration of mig-parted that it should have; "-" if it keeps its own.
        sharing: The configuration of the device plugin that it should have; "-" if it keeps its own.
        state: A word of the MIG manager, or of this module.
        since: When the label with that state was set, as the API server writes times; "" if unknown.
        cordoned: Whether it is cordoned.
    """

    node: str
    config: str
    sharing: str
    state: str
    since: str = ""
    cordoned: bool = False


PROGRESS = Table[LayoutProgress](
    (
        Column("node", lambda row: row.node, "Node"),
        Column("config", lambda row: row.config, "Config"),
        Column("sharing", lambda row: row.sharing, "Sharing"),
        Column("state", lambda row: row.state, "State"),
        Column("since", lambda row: row.since, "Since"),
        Column("cordoned", lambda row: row.cordoned, "Cordoned", lambda row: "yes" if row.cordoned else "no"),
    )
)


def layout_progress(nodes: Iterable[Json], planned: Mapping[str, PlannedNode] | None = None) -> list[LayoutProgress]:
    """Return the state of each node, by name.

    Args:
        nodes: The nodes of the cluster.
        planned: The configurations of each planned node; None for all nodes that have one.
    """
    labeled = {node["metadata"]["name"]: node for node in nodes}
    if planned is None:
        found = {name: _labeled_configs(node) for name, node in labeled.items()}
        planned = {name: configs for name, configs in found.items() if configs != NO_CONFIGS}
    return [_node_progress(name, configs, labeled.get(name)) for name, configs in sorted(planned.items())]


NO_CONFIGS = PlannedNode(UNCHANGED)


def _labeled_configs(node: Json) -> PlannedNode:
    labels = _labels(node)
    return PlannedNode(labels.get(CONFIG_LABEL, UNCHANGED), labels.get(SHARING_CONFIG_LABEL, UNCHANGED))


def _node_progress(name: str, configs: PlannedNode, node: Json | None) -> LayoutProgress:
    if node is None:
        return LayoutProgress(name, configs.config, configs.sharing, NO_NODE)
    cordoned, states = bool((node.get("spec") or {}).get("unschedulable")), [(SUCCESS, "")]
    if configs.config != UNCHANGED:
        states.append(_layout_state(node, configs.config))
    if configs.sharing != UNCHANGED:
        states.append(_sharing_state(node, configs))
    unfinished = (each for each in states if each[0] != SUCCESS)
    return LayoutProgress(name, configs.config, configs.sharing, *next(unfinished, states[-1]), cordoned)


def _layout_state(node: Json, config: str) -> tuple[str, str]:
    """Return the state of a node's MIG layout, and since when."""
    labels = _labels(node)
    if labels.get(CONFIG_LABEL) != config:
        return NOT_REQUESTED, ""
    state = labels.get(STATE_LABEL)
    return state or PENDING, _label_time(node, STATE_LABEL if state else CONFIG_LABEL)


def _sharing_state(node: Json, configs: PlannedNode) -> tuple[str, str]:
    """Return the state of a node's shares, and since when: the device plugin reports only what it advertises."""
    if _labels(node).get(SHARING_CONFIG_LABEL) != configs.sharing:
        return NOT_REQUESTED, ""
    advertised = node.get("status", {}).get("allocatable", {}).get(SHARED_GPU, "0")
    state = SUCCESS if configs.shares in (UNCHANGED, advertised) else PENDING
    return state, _label_time(node, SHARING_CONFIG_LABEL)


def _labels(node: Json) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"].get("labels") or {}
    return labels


def _label_time(node: Json, label: str) -> str:
    """Return when the owner of a label last changed what it owns."""
    times = [
        entry.get("time") or ""
        for entry in node["metadata"].get("managedFields") or ()
        if f"f:{label}" in entry.get("fieldsV1", {}).get("f:metadata", {}).get("f:labels", {})
    ]
    return max(times, default="")
