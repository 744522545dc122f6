"""Devices of ResourceSlices that pods need, and those reserved for pods whose claims have no allocation yet."""

from __future__ import annotations

from typing import NamedTuple

from webhook.cache.inventory import NodeInventory
from webhook.cache.stored_objects import object_namespace
from webhook.model.dra.allocator import NodeAllocation
from webhook.model.dra.device_view import NO_DEVICES, ClaimsByNamespace
from webhook.model.dra.pod_devices import is_partly_served, resolve_claims, with_devices_taken
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod, pod_uid
from webhook.placement.nodes.device_values import NeededDevices

MAX_RESERVED = 256
"""Pods with reserved devices; beyond that the oldest reservation is dropped."""


class DeviceReservation(NamedTuple):
    """The devices that a pod will get on the node that is best for it.

    Attributes:
        claims: The names of its claims in its namespace.
        found: The devices.
        expires_at: Seconds of the caller's clock.
    """

    namespace: str
    claims: tuple[str, ...]
    found: NodeAllocation
    expires_at: float

    def has_ended(self, now: float, claims: ClaimsByNamespace) -> bool:
        """Return whether it has expired, or a claim of the pod has its devices."""
        known = claims.get(self.namespace, {})
        statuses = (known[name].status for name in self.claims if name in known)
        return self.expires_at <= now or any(each.allocation is not None for each in statuses)


class ReservedDevices:
    """The devices that pods need. A scheduler sends the next pod before the claims of the last one are written."""

    def __init__(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._by_uid: dict[str, DeviceReservation] = {}

    def find_needed(self, pod: Pod, fleet: Fleet, now: float) -> NeededDevices | None:
        """Return the devices that a pod needs; None if it needs none, or if the node decides who provides them.

        Its earlier reservation is dropped.
        """
        self._by_uid.pop(pod_uid(pod), None)
        view = self._inventory.device_view()
        if view is NO_DEVICES:
            return None
        claims = resolve_claims(pod, self._inventory.claims_of_pod(pod, view), view, fleet)
        is_decided = claims.rejection or not (claims.unallocated or claims.extended)
        if is_decided or is_partly_served(claims, fleet):
            return None
        self._by_uid = {uid: one for uid, one in self._by_uid.items() if not one.has_ended(now, view.claims)}
        return NeededDevices(pod, claims, with_devices_taken(view, [one.found for one in self._by_uid.values()]))

    def reserve(self, needed: NeededDevices, node: int, fleet: Fleet, expires_at: float) -> None:
        """Reserve the devices that a pod would get on a node."""
        if len(self._by_uid) >= MAX_RESERVED:
            del self._by_uid[next(iter(self._by_uid))]
        made = {each.name: each.resource_claim_name for each in needed.pod.status.resource_claim_statuses}
        names = tuple(each.resource_claim_name or made.get(each.name, "") for each in needed.pod.spec.resource_claims)
        found = needed.find_on_node(node, fleet)
        namespace = object_namespace(needed.pod)
        self._by_uid[pod_uid(needed.pod)] = DeviceReservation(namespace, names, found, expires_at)
