"""Nodes simulated by kwok: ready, with GPUs, and running the pods that are bound to them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from webhook.cache.bundled_files import bundled_folder
from webhook.documents.reader import read_documents

NODES = "/api/v1/nodes"


def demo_nodes() -> list[Json]:
    """Return the nodes of the bundled example cluster."""
    files = sorted((bundled_folder("examples") / "cluster").glob("nodes-*.yaml"))
    documents = [document for file in files for document in read_documents(file.read_bytes(), file.name, aliases=True)]
    return [copy.deepcopy(document.data) for document in documents]


def add_nodes(plane: Plane, nodes: Iterable[Json]) -> list[str]:
    """Create nodes, and wait until pods can be scheduled on them.

    Args:
        plane: The control plane.
        nodes: Their labels, annotations, taints, resources and declared features are used; kwok sets the rest.

    Returns:
        Their names.
    """
    names = [_add(plane, node) for node in nodes]
    for name in names:
        eventually(partial(plane.api.get, f"{NODES}/{name}"), until=is_ready)
    return names


def remove_nodes(plane: Plane, names: Iterable[str]) -> None:
    """Delete nodes."""
    for name in names:
        plane.api.delete(f"{NODES}/{name}")


def is_ready(node: Json) -> bool:
    """Return whether the node is ready; its own taints may still exclude pods."""
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions", [])}
    return conditions.get("Ready") == "True"


def _add(plane: Plane, node: Json) -> str:
    spec: Json = node.get("spec", {})
    status: Json = node["status"]
    allocatable: Json = status["allocatable"]
    metadata = {key: node["metadata"][key] for key in ("name", "labels", "annotations") if key in node["metadata"]}
    name: str = metadata["name"]
    body: dict[str, Any] = {
        "metadata": metadata,
        "spec": spec,
        "status": {
            "allocatable": allocatable,
            "capacity": status.get("capacity", allocatable),
            "declaredFeatures": status.get("declaredFeatures", []),
        },
    }
    plane.api.create(NODES, body)
    # Every new node gets the taint not-ready, which nothing else removes: node-lifecycle does not run.
    plane.api.patch(f"{NODES}/{name}", {"spec": {"taints": spec.get("taints")}})
    return name
