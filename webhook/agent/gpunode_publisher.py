"""Write what an agent publishes: the GPUNode of its node, the Lease that shows that it is current, and on the Node a
label and the accounting resource.

Changes are written at a limited rate, and the objects are checked now and then. A GPUNode is written only on changes,
so its age says nothing. A Lease is a tenth of its size, and has no watchers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import msgspec

from webhook.errors import ApiError
from webhook.kube.api import find_object
from webhook.kube.reflector import ExponentialBackoff, RandomSource
from webhook.model.gpu_node import GPUNode, GPUNodeStatus
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE
from webhook.model.node_labels import ISLAND_LABEL
from webhook.placement.topology import largest_island
from webhook.well_known import AGENT_NAMESPACE, API_VERSION, GROUP_PATH

FIELD_MANAGER = {"fieldManager": "rightslice-agent", "force": "true"}

MIN_WRITE_SECONDS = 5.0
"""Least time between two writes, so that pods that come and go together cause one."""

RECHECK_SECONDS = 360.0
"""Others may delete or edit a GPUNode unnoticed for at most this time, which is the validity of its Lease."""

MAX_BACKOFF_SECONDS = 300.0


class ObjectClient(Protocol):
    """The methods of `webhook.kube.api.KubeClient` that are used."""

    async def get(self, path: str) -> dict[str, Any]:
        """Read an object."""

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object."""

    async def patch(self, path: str, body: Any, kind: Any, params: Mapping[str, str] = ...) -> dict[str, Any]:
        """PATCH an object."""


class GpuNodePublisher:
    """Writes the GPUNode of one node."""

    def __init__(self, api: ObjectClient, node: str, clock: Callable[[], float], random: RandomSource) -> None:
        """Prepare; no request is sent yet.

        Args:
            clock: A monotonic clock, seconds.
            random: Spreads the writes of many nodes.
        """
        self._api, self._node, self._clock, self._random = api, node, clock, random
        self._backoff = ExponentialBackoff(random, initial=MIN_WRITE_SECONDS, maximum=MAX_BACKOFF_SECONDS)
        self._stored_status: GPUNodeStatus | None = None
        self._is_stored_known = False
        self._due = self._recheck_at = float("-inf")

    def is_published(self, status: GPUNodeStatus) -> bool:
        """Return True if this status is stored, as far as is known."""
        return self._is_stored_known and status == self._stored_status

    async def publish(self, status: GPUNodeStatus) -> bool:
        """Write the status if it differs from the stored one and a write is due; return True if it was written.

        Raises:
            ApiError: The write failed; the next attempt is delayed.
        """
        if self._clock() < self._due or (self.is_published(status) and self._clock() < self._recheck_at):
            return False
        try:
            if not self._is_stored_known or self._clock() >= self._recheck_at:
                self._stored_status, self._is_stored_known = await self._read_stored(), True
                self._recheck_at = self._clock() + self._random.uniform(RECHECK_SECONDS / 2, RECHECK_SECONDS)
            if written := status != self._stored_status:
                await self._write_status(status)
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            self._is_stored_known = False
            raise
        self._backoff.reset()
        self._stored_status = status
        if written:
            self._due = self._clock() + self._random.uniform(MIN_WRITE_SECONDS, MIN_WRITE_SECONDS * 1.5)
        return written

    async def _read_stored(self) -> GPUNodeStatus | None:
        """Return the stored status; None if there is none, or one of another version."""
        found = await find_object(self._api, f"{GROUP_PATH}/gpunodes/{self._node}")
        try:
            return msgspec.convert(found, GPUNode).status if found is not None else None
        except msgspec.ValidationError:
            return None

    async def _write_status(self, status: GPUNodeStatus) -> None:
        head = {"apiVersion": API_VERSION, "kind": "GPUNode"}
        body = {**head, "metadata": {"name": self._node}, "status": msgspec.to_builtins(status)}
        path = f"{GROUP_PATH}/gpunodes/{self._node}/status"
        try:
            await self._api.patch(path, body, "apply", FIELD_MANAGER)
        except ApiError as error:
            if error.status != 404:
                raise
            owner = await node_owner_reference(self._api, self._node)
            metadata = {"name": self._node, "ownerReferences": [owner]}
            await self._api.create(f"{GROUP_PATH}/gpunodes", {**head, "metadata": metadata})
            await self._api.patch(path, body, "apply", FIELD_MANAGER)


RENEW_SECONDS = 120.0

MISSED_RENEWALS = 3
"""Renewals that an agent may miss before it counts as not responding."""


class AgentLease:
    """The Lease of one node's agent, with the node's name."""

    def __init__(
        self,
        api: ObjectClient,
        node: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        random: RandomSource,
    ) -> None:
        """Prepare.

        Args:
            clock: A monotonic clock, seconds.
            now: The current time, with time zone.
            random: Spreads the renewals of many nodes.
        """
        self._api, self._node, self._clock, self._now, self._random = api, node, clock, now, random
        self._backoff = ExponentialBackoff(random, initial=RENEW_SECONDS / 4, maximum=RENEW_SECONDS * 4)
        self._owner: dict[str, Any] | None = None
        self._uid = ""
        self._due = float("-inf")

    async def renew(self) -> bool:
        """Renew the Lease if it is due; return True if it was written.

        Raises:
            ApiError: The write failed; the next attempt is delayed.
        """
        if self._clock() < self._due:
            return False
        try:
            fresh, before = self._owner is None, self._uid
            self._uid = await self._apply()
            if self._uid != before and not fresh:  # it was deleted, maybe because the Node was registered again
                self._owner = None
                self._uid = await self._apply()
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            raise
        self._backoff.reset()
        self._due = self._clock() + self._random.uniform(RENEW_SECONDS * 0.9, RENEW_SECONDS)
        return True

    async def _apply(self) -> str:
        if self._owner is None:
            self._owner = await node_owner_reference(self._api, self._node)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node, "namespace": AGENT_NAMESPACE, "ownerReferences": [self._owner]},
            "spec": {
                "holderIdentity": self._node,
                "leaseDurationSeconds": int(MISSED_RENEWALS * RENEW_SECONDS),
                "renewTime": f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}",
            },
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases/{self._node}"
        lease = await self._api.patch(path, body, "apply", FIELD_MANAGER)
        return str(lease["metadata"]["uid"])


async def node_owner_reference(api: ObjectClient, name: str) -> dict[str, Any]:
    """Return an ownerReference to the current Node of this name.

    Raises:
        ApiError: The Node cannot be read.
    """
    node = await api.get(f"/api/v1/nodes/{name}")
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}


NODE_WRITE_SECONDS = 60.0
NODE_RECHECK_SECONDS = 1200.0
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
        self._backoff = ExponentialBackoff(random, initial=NODE_WRITE_SECONDS, maximum=10 * NODE_WRITE_SECONDS)
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
        self._recheck_at = self._clock() + self._random.uniform(NODE_RECHECK_SECONDS / 2, NODE_RECHECK_SECONDS)
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
