"""What the agent says on its Node: how large an island of NVLink can be, and thousandths of GPUs to account by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from webhook.agent.gpunode_publisher import ObjectClient
from webhook.errors import ApiError
from webhook.kube.backoff import ExponentialBackoff, RandomSource
from webhook.model.gpu_node import GpuDevice, GPUNodeStatus
from webhook.model.node_labels import ISLAND_LABEL
from webhook.placement.topology import largest_island

GPU_MILLI = "rightslice.dev/gpu-milli"
MIN_WRITE_SECONDS = 60.0
RECHECK_SECONDS = 1200.0
"""A Node that was made anew under its name, or that somebody edited, has lost what was said on it."""

MILLI_PER_GPU = 1_000_000
"""Thousandths that are advertised for each healthy GPU: a thousand shares, each priced as a whole card.

Quotas bound the resource; a node only lets pods by that ask for it. With 1000 it would be what pods wait for: seven
shares of a seventh come to 1001, and a share that goes by a whole card's name may weigh 1000."""


class NodeAdvertisement(msgspec.Struct, frozen=True):
    """What a node says.

    Attributes:
        island: GPUs of the largest island, free or not; 0 where none is known.
        milli: What is advertised of the accounting resource.
    """

    island: int
    milli: int


def build_advertisement(status: GPUNodeStatus) -> NodeAdvertisement:
    """What these GPUs come to. Those that are not healthy, or cannot talk to others, are in no island."""
    usable = [gpu for gpu in status.gpus if gpu.healthy]
    return NodeAdvertisement(
        largest_island(_link_matrix(gpu for gpu in usable if not gpu.mig and not gpu.nvlink_degraded)),
        MILLI_PER_GPU * len(usable),
    )


def _link_matrix(gpus: Iterable[GpuDevice]) -> list[list[int]]:
    """NVLinks that each GPU has up towards each, shape (GPUs, GPUs)."""
    seen = [(gpu.index, {link.gpu: link.nvlinks for link in gpu.links}) for gpu in gpus]
    return [[links.get(other, 0) for other, _ in seen] for _, links in seen]


class NodeAdvertiser:
    """The label and, where wanted, the capacity of one Node."""

    def __init__(
        self, api: ObjectClient, node: str, clock: Callable[[], float], random: RandomSource, *, milli: bool
    ) -> None:
        """Prepare; `milli`: advertise rightslice.dev/gpu-milli, where the scheduler cannot be told to ignore it."""
        self._api, self._node, self._clock = api, node, clock
        self._milli = milli
        self._backoff = ExponentialBackoff(random, initial=MIN_WRITE_SECONDS, maximum=10 * MIN_WRITE_SECONDS)
        self._last: NodeAdvertisement | None = None
        self._random = random
        self._due = self._recheck_at = float("-inf")

    async def advertise(self, status: GPUNodeStatus) -> bool:
        """Say it if it changed, and look now and then whether it still stands; True if the Node was asked.

        Raises:
            ApiError: it could not be written; the next attempt waits.
        """
        said = build_advertisement(status)
        if self._clock() < self._due or (said == self._last and self._clock() < self._recheck_at):
            return False
        try:
            await self._patch_node(said)
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            raise
        self._backoff.reset()
        self._last, self._recheck_at = said, self._clock() + self._random.uniform(RECHECK_SECONDS / 2, RECHECK_SECONDS)
        return True

    async def _patch_node(self, said: NodeAdvertisement) -> None:
        node = await self._api.get(f"/api/v1/nodes/{self._node}")
        label = str(said.island) if said.island else None
        if (node["metadata"].get("labels") or {}).get(ISLAND_LABEL) != label:
            body: dict[str, Any] = {"metadata": {"labels": {ISLAND_LABEL: label}}}
            await self._api.patch(f"/api/v1/nodes/{self._node}", body, "merge")
        capacity = str(said.milli) if said.milli else None
        if self._milli and ((node.get("status") or {}).get("capacity") or {}).get(GPU_MILLI) != capacity:
            body = {"status": {"capacity": {GPU_MILLI: capacity}, "allocatable": {GPU_MILLI: capacity}}}
            await self._api.patch(f"/api/v1/nodes/{self._node}/status", body, "merge")
