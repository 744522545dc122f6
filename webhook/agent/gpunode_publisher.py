"""One GPUNode in the cluster, kept equal to what its node's agent sees: written on a change, and not often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from webhook.errors import ApiError
from webhook.kube.backoff import ExponentialBackoff, RandomSource
from webhook.model.gpu_node import GPUNode, GPUNodeStatus
from webhook.well_known import API_VERSION, GROUP_PATH


class NodeReader(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""


FIELD_MANAGER = {"fieldManager": "rightslice-agent", "force": "true"}

MIN_WRITE_SECONDS = 5.0
"""Between two writes. Pods that come and go together are written together."""

RECHECK_SECONDS = 360.0
"""For as long as its Lease counts, a GPUNode may have been deleted or changed by others unseen."""

MAX_BACKOFF_SECONDS = 300.0


class ObjectClient(Protocol):
    """What is used of `webhook.kube.api.KubeClient`."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object."""

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """PATCH an object."""


class GpuNodePublisher:
    """The GPUNode of one node."""

    def __init__(self, api: ObjectClient, node: str, clock: Callable[[], float], random: RandomSource) -> None:
        """Prepare; nothing is asked yet.

        Args:
            api: The API server.
            node: Name of the node, and of its GPUNode.
            clock: Seconds that only grow.
            random: Spreads out what the agents of many nodes would write at once.
        """
        self._api, self._node, self._clock, self._random = api, node, clock, random
        self._backoff = ExponentialBackoff(random, initial=MIN_WRITE_SECONDS, maximum=MAX_BACKOFF_SECONDS)
        self._stored_status: GPUNodeStatus | None = None
        self._is_stored_known = False
        self._due = self._recheck_at = float("-inf")

    def is_published(self, status: GPUNodeStatus) -> bool:
        """Is this what is stored, as far as was seen?"""
        return self._is_stored_known and status == self._stored_status

    async def publish(self, status: GPUNodeStatus) -> bool:
        """Write the status if it is another one than is stored, and it is time; True if it was written.

        Raises:
            ApiError: it could not be; the next write waits longer each time.
        """
        if self._clock() < self._due or (self.is_published(status) and self._clock() < self._recheck_at):
            return False
        try:
            await self._refresh_stored()
            if written := status != self._stored_status:
                await self._write_status(status)
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            self._is_stored_known = False  # what is stored is not known any more
            raise
        self._backoff.reset()
        self._stored_status = status
        if written:
            self._due = self._clock() + self._random.uniform(MIN_WRITE_SECONDS, MIN_WRITE_SECONDS * 1.5)
        return written

    async def _refresh_stored(self) -> None:
        """See what is stored, where that is not known or was long ago."""
        if self._is_stored_known and self._clock() < self._recheck_at:
            return
        self._stored_status, self._is_stored_known = await self._read_stored(), True
        self._recheck_at = self._clock() + self._random.uniform(RECHECK_SECONDS / 2, RECHECK_SECONDS)

    async def _read_stored(self) -> GPUNodeStatus | None:
        """What a former agent of this node has left."""
        try:
            found = await self._api.get(f"{GROUP_PATH}/gpunodes/{self._node}")
            return msgspec.convert(found, GPUNode).status
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        except msgspec.ValidationError:
            return None  # of another version: it is written anew

    async def _write_status(self, status: GPUNodeStatus) -> None:
        body = {
            "apiVersion": API_VERSION,
            "kind": "GPUNode",
            "metadata": {"name": self._node},
            "status": msgspec.to_builtins(status),
        }
        path = f"{GROUP_PATH}/gpunodes/{self._node}/status"
        try:
            await self._api.patch(path, body, "apply", FIELD_MANAGER)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._create_object()
            await self._api.patch(path, body, "apply", FIELD_MANAGER)

    async def _create_object(self) -> None:
        """Make the object. It goes when its node goes."""
        metadata = {"name": self._node, "ownerReferences": [await node_owner_reference(self._api, self._node)]}
        await self._api.create(
            f"{GROUP_PATH}/gpunodes", {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": metadata}
        )


async def node_owner_reference(api: NodeReader, name: str) -> dict[str, Any]:
    """An ownerReference to the Node that has the name now.

    Raises:
        ApiError: it cannot be read.
    """
    node = await api.get(f"/api/v1/nodes/{name}")
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
