"""Advertise on the Node: a label with the size of the largest NVLink island, and the accounting resource."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from webhook.agent.gpunode_publisher import ObjectClient
from webhook.errors import ApiError
from webhook.kube.backoff import ExponentialBackoff, RandomSource
from webhook.model.gpu_node import GPUNodeStatus
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.node_labels import ISLAND_LABEL
from webhook.placement.topology import largest_island

MIN_WRITE_SECONDS = 60.0
RECHECK_SECONDS = 1200.0
"""A Node that was registered again or edited may have lost its label and resource."""

MILLI_PER_GPU = 1_000_000
"""Amount that is advertised per healthy GPU: a thousand shares, each counted as a whole card.

The quota is the limit, not the node. With 1000 per GPU pods could wait for the resource: seven slices of a seventh add
up to 1001, and a share with the resource name of a whole card may count 1000."""


class NodeAdvertisement(msgspec.Struct, frozen=True):
    """The advertised values of a node.

    Attributes:
        island: Number of GPUs in the largest island, allocated or not; 0 if none is known.
        milli: Amount of the accounting resource.
    """

    island: int
    milli: int


def build_advertisement(status: GPUNodeStatus) -> NodeAdvertisement:
    """Compute the values. Unhealthy GPUs and those with NVLink errors belong to no island."""
    usable = [gpu for gpu in status.gpus if gpu.healthy]
    linked = [gpu for gpu in usable if not gpu.mig and not gpu.nvlink_degraded]
    by_index = [(gpu.index, {link.gpu: link.nvlinks for link in gpu.links}) for gpu in linked]
    matrix = [[links.get(other, 0) for other, _ in by_index] for _, links in by_index]
    return NodeAdvertisement(largest_island(matrix), MILLI_PER_GPU * len(usable))


class NodeAdvertiser:
    """Writes the label and, if enabled, the capacity of one Node."""

    def __init__(
        self, api: ObjectClient, node: str, clock: Callable[[], float], random: RandomSource, *, milli: bool
    ) -> None:
        """Prepare; `milli` enables the accounting resource, for schedulers that cannot be configured to ignore it."""
        self._api, self._node, self._clock = api, node, clock
        self._milli = milli
        self._backoff = ExponentialBackoff(random, initial=MIN_WRITE_SECONDS, maximum=10 * MIN_WRITE_SECONDS)
        self._last: NodeAdvertisement | None = None
        self._random = random
        self._due = self._recheck_at = float("-inf")

    async def advertise(self, status: GPUNodeStatus) -> bool:
        """Write changed values, and check the Node now and then; return True if the Node was read.

        Raises:
            ApiError: The write failed; the next attempt is delayed.
        """
        advertisement = build_advertisement(status)
        if self._clock() < self._due or (advertisement == self._last and self._clock() < self._recheck_at):
            return False
        try:
            await self._patch_node(advertisement)
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            raise
        self._backoff.reset()
        self._last = advertisement
        self._recheck_at = self._clock() + self._random.uniform(RECHECK_SECONDS / 2, RECHECK_SECONDS)
        return True

    async def _patch_node(self, advertisement: NodeAdvertisement) -> None:
        node = await self._api.get(f"/api/v1/nodes/{self._node}")
        label = str(advertisement.island) if advertisement.island else None
        if (node["metadata"].get("labels") or {}).get(ISLAND_LABEL) != label:
            body: dict[str, Any] = {"metadata": {"labels": {ISLAND_LABEL: label}}}
            await self._api.patch(f"/api/v1/nodes/{self._node}", body, "merge")
        capacity = str(advertisement.milli) if advertisement.milli else None
        if self._milli and ((node.get("status") or {}).get("capacity") or {}).get(ACCOUNTING_RESOURCE) != capacity:
            amounts = {ACCOUNTING_RESOURCE: capacity}
            body = {"status": {"capacity": amounts, "allocatable": amounts}}
            await self._api.patch(f"/api/v1/nodes/{self._node}/status", body, "merge")
