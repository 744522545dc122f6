"""Nodes reserved for pods that are not bound yet.

A scheduler sends the next pod before the last one is bound. A reservation ends when the pod is on a node, or expires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from webhook.placement.nodes.device_plugin import ContainerRequests

MAX_RESERVATIONS = 4096
"""Reservations at one time; beyond that the oldest is dropped."""


class NodeReservation(msgspec.Struct, frozen=True):
    """A node reserved for one pod.

    Attributes:
        pod: "namespace/name"; "" for a pod of a gang that has not arrived.
        amounts: Amounts that it will hold there, nano-units by resource.
        expires_at: Seconds of the caller's clock.
        gang: Name of its gang; "" for none.
        container_requests: Its containers that request whole GPUs; () unless several do.
    """

    uid: str
    pod: str
    node: str
    amounts: Mapping[str, int]
    expires_at: float
    gang: str = ""
    container_requests: ContainerRequests = ()


class NodeReservations:
    """All reservations. It has one writer; each change returns the names of the nodes that it affects."""

    def __init__(self) -> None:
        self._by_uid: dict[str, NodeReservation] = {}
        self._by_node: dict[str, dict[str, NodeReservation]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def on_node(self, node: str) -> Iterable[NodeReservation]:
        """Return the reservations of a node, the oldest first."""
        return self._by_node.get(node, {}).values()

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes with a reservation."""
        return set(self._by_node)

    def reserve(self, reservation: NodeReservation) -> set[str]:
        """Add a reservation, replacing the pod's earlier one."""
        changed = self.release(reservation.uid)
        if len(self._by_uid) >= MAX_RESERVATIONS:
            changed |= self.release(next(iter(self._by_uid)))
        self._by_uid[reservation.uid] = reservation
        self._by_node.setdefault(reservation.node, {})[reservation.uid] = reservation
        return changed | {reservation.node}

    def release(self, uid: str) -> set[str]:
        """Remove a pod's reservation."""
        reservation = self._by_uid.pop(uid, None)
        if reservation is None:
            return set()
        on_node = self._by_node[reservation.node]
        del on_node[uid]
        if not on_node:
            del self._by_node[reservation.node]
        return {reservation.node}

    def of_gang(self, gang: str) -> list[NodeReservation]:
        """Return the reservations of a gang, including those for pods that have not arrived."""
        return [each for each in self._by_uid.values() if each.gang == gang] if gang else []

    def expire(self, now: float, is_bound: Callable[[str], bool]) -> set[str]:
        """Remove expired reservations, and those of pods ("namespace/name") that `is_bound`."""
        expired = [each.uid for each in self._by_uid.values() if each.expires_at <= now or is_bound(each.pod)]
        return {node for uid in expired for node in self.release(uid)}
