"""Places that were promised to pods a moment ago, and not seen taken yet.

A scheduler asks where a pod should go and binds it a moment later, while it asks for the next one already. What
was answered is taken to come true, until the pod is seen on a node, or until its time is up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from webhook.placement.nodes.device_plugin import ContainerRequests

MAX_RESERVATIONS = 4096
"""Places that are promised at one time; of more, the oldest is forgotten."""


class NodeReservation(msgspec.Struct, frozen=True):
    """A place for one pod.

    Attributes:
        uid: The pod's uid.
        pod: "namespace/name"; "" for one of a gang that is still to come.
        node: Name of the node.
        amounts: What it will hold there, nano-units by resource.
        until: When to forget it, seconds of the caller's clock.
        gang: The gang it belongs to; "" for none.
        turns: Its containers that ask for whole GPUs; () where no two of them do.
    """

    uid: str
    pod: str
    node: str
    amounts: Mapping[str, int]
    expires_at: float
    gang: str = ""
    container_requests: ContainerRequests = ()


class NodeReservations:
    """The places promised. It has one writer; each change gives the names of the nodes that it touches."""

    def __init__(self) -> None:
        self._by_uid: dict[str, NodeReservation] = {}
        self._by_node: dict[str, dict[str, NodeReservation]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def on_node(self, node: str) -> Iterable[NodeReservation]:
        """The places on a node, the first promised first."""
        return self._by_node.get(node, {}).values()

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes with a place promised."""
        return set(self._by_node)

    def reserve(self, place: NodeReservation) -> set[str]:
        """Promise a place; the pod's former one is void."""
        touched = self.release(place.uid)
        if len(self._by_uid) >= MAX_RESERVATIONS:
            touched |= self.release(next(iter(self._by_uid)))
        self._by_uid[place.uid] = place
        self._by_node.setdefault(place.node, {})[place.uid] = place
        return touched | {place.node}

    def release(self, uid: str) -> set[str]:
        """A pod has no place promised any more."""
        place = self._by_uid.pop(uid, None)
        if place is None:
            return set()
        there = self._by_node[place.node]
        del there[uid]
        if not there:
            del self._by_node[place.node]
        return {place.node}

    def of_gang(self, gang: str) -> list[NodeReservation]:
        """The places of a gang, those too of who is still to come."""
        return [place for place in self._by_uid.values() if place.gang == gang] if gang else []

    def expire(self, now: float, seen: Callable[[str], bool]) -> set[str]:
        """Forget places whose time is up, and those of pods that are seen on a node.

        Args:
            now: Seconds of the caller's clock.
            seen: Is a pod, "namespace/name", on a node?
        """
        over = [place.uid for place in self._by_uid.values() if place.expires_at <= now or seen(place.pod)]
        return {node for uid in over for node in self.release(uid)}
