"""One GPUNode in the cluster, kept equal to what its node's agent sees: written on a change, and not often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from webhook.agent.owning import node_as_owner
from webhook.errors import ApiError
from webhook.kube.pace import Backoff, Random
from webhook.model.gpunodes import GPUNode, GPUNodeStatus

GROUP = "/apis/rightslice.dev/v1alpha1"
VERSION = "rightslice.dev/v1alpha1"
MANAGER = {"fieldManager": "rightslice-agent", "force": "true"}

LEAST_SECONDS = 5.0
"""Between two writes. Pods that come and go together are written together."""

AGAIN_SECONDS = 360.0
"""For as long as its Lease counts, a GPUNode may have been deleted or changed by others unseen."""

BACKOFF_MOST = 300.0


class Calls(Protocol):
    """What is used of `webhook.kube.api.Api`."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object."""

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """PATCH an object."""


class Publisher:
    """The GPUNode of one node."""

    def __init__(self, api: Calls, node: str, clock: Callable[[], float], random: Random) -> None:
        """Prepare; nothing is asked yet.

        Args:
            api: The API server.
            node: Name of the node, and of its GPUNode.
            clock: Seconds that only grow.
            random: Spreads out what the agents of many nodes would write at once.
        """
        self._api, self._node, self._clock, self._random = api, node, clock, random
        self._backoff = Backoff(random, first=LEAST_SECONDS, most=BACKOFF_MOST)
        self._written: GPUNodeStatus | None = None
        self._read = False
        self._due = self._again = float("-inf")

    def stands(self, status: GPUNodeStatus) -> bool:
        """Is this what is stored, as far as was seen?"""
        return self._read and status == self._written

    async def publish(self, status: GPUNodeStatus) -> bool:
        """Write the status if it is another one than is stored, and it is time; True if it was written.

        Raises:
            ApiError: it could not be; the next write waits longer each time.
        """
        if self._clock() < self._due or (self.stands(status) and self._clock() < self._again):
            return False
        try:
            await self._read_again()
            if written := status != self._written:
                await self._write(status)
        except ApiError as error:
            self._due = self._clock() + self._backoff.failed(error.retry_after)
            self._read = False  # what is stored is not known any more
            raise
        self._backoff.succeeded()
        self._written = status
        if written:
            self._due = self._clock() + self._random.uniform(LEAST_SECONDS, LEAST_SECONDS * 1.5)
        return written

    async def _read_again(self) -> None:
        """See what is stored, where that is not known or was long ago."""
        if self._read and self._clock() < self._again:
            return
        self._written, self._read = await self._stored(), True
        self._again = self._clock() + self._random.uniform(AGAIN_SECONDS / 2, AGAIN_SECONDS)

    async def _stored(self) -> GPUNodeStatus | None:
        """What a former agent of this node has left."""
        try:
            found = await self._api.get(f"{GROUP}/gpunodes/{self._node}")
            return msgspec.convert(found, GPUNode).status
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        except msgspec.ValidationError:
            return None  # of another version: it is written anew

    async def _write(self, status: GPUNodeStatus) -> None:
        body = {
            "apiVersion": VERSION,
            "kind": "GPUNode",
            "metadata": {"name": self._node},
            "status": msgspec.to_builtins(status),
        }
        path = f"{GROUP}/gpunodes/{self._node}/status"
        try:
            await self._api.patch(path, body, "apply", MANAGER)
        except ApiError as error:
            if error.status != 404:
                raise
            await self._create()
            await self._api.patch(path, body, "apply", MANAGER)

    async def _create(self) -> None:
        """Make the object. It goes when its node goes."""
        metadata = {"name": self._node, "ownerReferences": [await node_as_owner(self._api, self._node)]}
        await self._api.create(f"{GROUP}/gpunodes", {"apiVersion": VERSION, "kind": "GPUNode", "metadata": metadata})
