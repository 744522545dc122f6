"""ClusterView: all that is known of a cluster at one moment, immutable, replaced whole."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.model.fleet import Fleet
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.offers import Offer


class Room(msgspec.Struct, frozen=True, gc=False):
    """What pods that hold a node's resources leave free on it: the counterpart of `FleetNode`."""

    cpu_milli: int
    memory: int
    gpus: Mapping[str, int]


class Assumed(msgspec.Struct, frozen=True, gc=False):
    """A pod that was admitted a moment ago and is not seen yet: it holds units of one offer.

    Attributes:
        uid: The request's uid, so that one admission counts once.
        resource: Resource name it will ask for.
        nodes: Mask of the nodes it may land on.
        count: Units.
        until: When to forget it, seconds of the caller's clock.
    """

    uid: str
    resource: str
    nodes: int
    count: int
    until: float


class ClusterView:
    """Immutable once made.

    Attributes:
        fleet: Nodes and offers.
        complete: True for a live view: a namespace that is not in it does not exist. A snapshot may
            lack namespaces; they are then taken as having no labels but their name.
        current: False where the view is too old to be sure of what is free: nothing is shrunk.
    """

    fleet: Fleet
    complete: bool
    current: bool

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, or None where a complete view has none. Carries `kubernetes.io/metadata.name`."""
        raise NotImplementedError

    def limit_ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """The namespace's LimitRanges, by name."""
        raise NotImplementedError

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """The namespace's ResourceQuotas, by name."""
        raise NotImplementedError

    def free(self, offer: Offer, nodes: int) -> int:
        """Units of an offer that are free now on the nodes of a mask, pods assumed taken off."""
        raise NotImplementedError

    def has_room(self, resource: str, count: int, nodes: int, *, cpu_milli: int, memory: int) -> bool:
        """Is there one node in the mask with `count` units of `resource`, this CPU and this memory free now?

        Pods assumed count as if each took the place this pod would get.
        """
        raise NotImplementedError

    def assume(self, pod: Assumed, now: float) -> ClusterView:
        """The view with one more pod assumed and those past their time forgotten; a known uid adds nothing."""
        raise NotImplementedError
