"""Renew the agent's Lease, which shows that its GPUNode is current.

A GPUNode is written only on changes, so its age says nothing. A Lease is a tenth of its size, and has no watchers.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from webhook.agent.gpunode_publisher import FIELD_MANAGER, ObjectClient, node_owner_reference
from webhook.errors import ApiError
from webhook.kube.backoff import ExponentialBackoff, RandomSource
from webhook.well_known import SYSTEM_NAMESPACE

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
            api: The API server.
            node: Name of the node and of its Lease.
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
            await self._renew_with_owner()
        except ApiError as error:
            self._due = self._clock() + self._backoff.next_delay(error.retry_after)
            raise
        self._backoff.reset()
        self._due = self._clock() + self._random.uniform(RENEW_SECONDS * 0.9, RENEW_SECONDS)
        return True

    async def _renew_with_owner(self) -> None:
        """Apply it; if it had been deleted, with a fresh owner, because its Node may have been registered again."""
        fresh = self._owner is None
        before, self._uid = self._uid, await self._apply()
        if self._uid != before and not fresh:
            self._owner = None
            self._uid = await self._apply()

    async def _apply(self) -> str:
        if self._owner is None:
            self._owner = await node_owner_reference(self._api, self._node)
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._node, "namespace": SYSTEM_NAMESPACE, "ownerReferences": [self._owner]},
            "spec": {
                "holderIdentity": self._node,
                "leaseDurationSeconds": int(MISSED_RENEWALS * RENEW_SECONDS),
                "renewTime": f"{self._now():%Y-%m-%dT%H:%M:%S.%fZ}",
            },
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{self._node}"
        lease = await self._api.patch(path, body, "apply", FIELD_MANAGER)
        return str(lease["metadata"]["uid"])
