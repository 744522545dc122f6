"""The Node that owns what its agent writes: what is written goes when the Node goes."""

from __future__ import annotations

from typing import Any, Protocol


class NodeReader(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""


async def node_owner_reference(api: NodeReader, name: str) -> dict[str, Any]:
    """An ownerReference to the Node that has the name now.

    Raises:
        ApiError: it cannot be read.
    """
    node = await api.get(f"/api/v1/nodes/{name}")
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
