"""The progress of MIG layouts that are applied: the configuration of each node, and what the MIG manager made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.report.tables import Column, Table
from webhook.well_known import Json

CONFIG_LABEL, STATE_LABEL = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
SUCCESS, FAILED, PENDING = "success", "failed", "pending"
NOT_REQUESTED, NO_NODE = "not requested", "no such node"
"""States of planned nodes that do not have the planned label yet, or do not exist. The others are NVIDIA's words."""


class LayoutProgress(NamedTuple):
    """One node whose layout is set by a configuration.

    Attributes:
        config: The configuration that it should have.
        state: A word of the MIG manager, or of this module.
        since: When the label with that state was set, as the API server writes times; "" if unknown.
        cordoned: Whether new pods are kept off it.
    """

    node: str
    config: str
    state: str
    since: str = ""
    cordoned: bool = False


PROGRESS = Table[LayoutProgress](
    (
        Column("node", lambda row: row.node, "Node"),
        Column("config", lambda row: row.config, "Config"),
        Column("state", lambda row: row.state, "State"),
        Column("since", lambda row: row.since, "Since"),
        Column("cordoned", lambda row: row.cordoned, "Cordoned", lambda row: "yes" if row.cordoned else "no"),
    )
)


def layout_progress(nodes: Iterable[Json], planned: Mapping[str, str] | None = None) -> list[LayoutProgress]:
    """Return the state of each node, by name.

    Args:
        nodes: The nodes of the cluster.
        planned: The configuration of each planned node; None for all nodes that have one.
    """
    labeled = {node["metadata"]["name"]: node for node in nodes}
    if planned is None:
        configs = {name: _labels(node).get(CONFIG_LABEL, "") for name, node in labeled.items()}
        planned = {name: config for name, config in configs.items() if config}
    return [_node_progress(name, config, labeled.get(name)) for name, config in sorted(planned.items())]


def _node_progress(name: str, config: str, node: Json | None) -> LayoutProgress:
    if node is None:
        return LayoutProgress(name, config, NO_NODE)
    labels, cordoned = _labels(node), bool((node.get("spec") or {}).get("unschedulable"))
    if labels.get(CONFIG_LABEL) != config:
        return LayoutProgress(name, config, NOT_REQUESTED, "", cordoned)
    state = labels.get(STATE_LABEL)
    since = _label_time(node, STATE_LABEL if state else CONFIG_LABEL)
    return LayoutProgress(name, config, state or PENDING, since, cordoned)


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
