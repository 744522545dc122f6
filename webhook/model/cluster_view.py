"""ClusterView: all that is known of a cluster at one moment, immutable, replaced whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from webhook.model.assumed_pods import AssumedPod, AssumedPods, BoundPod
from webhook.model.claims import ClaimContext, DeviceClasses, ResourceClaimTemplate, claim_templates_by_name
from webhook.model.fleet import Fleet
from webhook.model.limit_ranges import NO_LIMIT_RANGES, NamespaceLimitRanges, parse_limit_range
from webhook.model.node_masks import EMPTY_INDEX, ThresholdIndex, bit_positions, union_masks
from webhook.model.objects import LimitRange, Namespace, ResourceQuota
from webhook.model.offers import GpuOffer
from webhook.model.pods import ObjectMeta
from webhook.model.pools import QuotaPool, QuotaReservation
from webhook.model.quota_keys import CountedResource
from webhook.model.quota_usage import PodSummaries, PoolHolders, QuotaUsage
from webhook.model.remaining_quota import QuotaConsumer, RemainingQuota, compute_remaining_quota

__all__ = ["AssumedPod", "ClusterView", "FreeResources"]

NAMESPACE_NAME = "kubernetes.io/metadata.name"

NOTHING: Mapping[str, Sequence[Any]] = MappingProxyType({})

Named = TypeVar("Named", LimitRange, ResourceQuota)


class FreeResources(msgspec.Struct, frozen=True, gc=False):
    """What pods that hold a node's resources leave free on it: the counterpart of `FleetNode`.

    Attributes:
        full: True where the node takes no more pods, whatever else is free.
        stranded: GPU units of a full node that nobody holds, by resource: none of them is in `gpus`.
    """

    cpu_milli: int
    memory: int
    gpus: Mapping[str, int]
    full: bool = False
    stranded: Mapping[str, int] = {}

    def units(self, resource: str) -> int:
        """GPU units that nobody holds, whether the node takes another pod or not."""
        return self.gpus.get(resource, 0) + self.stranded.get(resource, 0)


class ClusterView:
    """Immutable once made.

    Attributes:
        fleet: Nodes and offers.
        complete: True for a live view: a namespace that is not in it does not exist. A snapshot may
            lack namespaces; they are then taken as having no labels but their name.
        current: False where the view is too old to be sure of what is free: nothing is shrunk.
        before: The nodes as they were before they changed last; None where they did not.
        classes: The DeviceClasses.
    """

    classes: DeviceClasses
    fleet: Fleet
    before: Fleet | None
    complete: bool
    current: bool

    def __init__(
        self,
        fleet: Fleet,
        *,
        rooms: Mapping[str, FreeResources] | None = None,
        namespaces: Mapping[str, Namespace] | None = None,
        limit_ranges: Mapping[str, tuple[LimitRange, ...]] | None = None,
        quotas: Mapping[str, tuple[ResourceQuota, ...]] | None = None,
        claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]] | None = None,
        device_classes: DeviceClasses | None = None,
        lines: PodSummaries | None = None,
        assumed: Iterable[AssumedPod] = (),
        complete: bool = False,
        current: bool = True,
    ) -> None:
        """Index what is free.

        Args:
            fleet: Nodes and offers.
            rooms: What is free by node name; a node that is not named is empty.
            namespaces: By name.
            limit_ranges: By namespace.
            quotas: By namespace.
            claim_templates: By namespace.
            device_classes: See `DeviceClasses`.
            lines: The pods that have not ended, by namespace and name.
            assumed: Pods admitted a moment ago.
            complete: See the class.
            current: See the class.
        """
        self.fleet, self.complete, self.current, self.before = fleet, complete, current, None
        self._namespaces = {name: _with_name_label(name, found) for name, found in (namespaces or {}).items()}
        self._limit_ranges = {name: _sort_by_name(found) for name, found in (limit_ranges or {}).items()}
        self._limited = {name: _limited_resources(found) for name, found in self._limit_ranges.items()}
        self._ranges: dict[str, NamespaceLimitRanges] = {}
        self._room: dict[str, tuple[RemainingQuota, ...]] = {}
        self._quotas = {name: _sort_by_name(found) for name, found in (quotas or {}).items()}
        self._templates = {name: claim_templates_by_name(found) for name, found in (claim_templates or {}).items()}
        self.classes = device_classes or {}
        self._holders = QuotaUsage(fleet, lines or {})
        self._ledger = AssumedPods(assumed)
        self._index_free(rooms or {})

    def _index_free(self, rooms: Mapping[str, FreeResources]) -> None:
        nodes = self.fleet.nodes
        free = [rooms.get(node.name) or FreeResources(node.cpu_milli, node.memory, node.gpus) for node in nodes]
        with_gpus = [i for i, node in enumerate(nodes) if node.gpus]
        self._cpu = ThresholdIndex({i: free[i].cpu_milli for i in with_gpus})
        self._memory = ThresholdIndex({i: free[i].memory for i in with_gpus})
        self._gpus = {
            resource: ThresholdIndex({i: free[i].gpus.get(resource, 0) for i in with_gpus if resource in nodes[i].gpus})
            for resource in self.fleet.resources()
        }

    def namespace(self, name: str) -> Namespace | None:
        """The namespace, or None where a complete view has none. Carries `kubernetes.io/metadata.name`."""
        found = self._namespaces.get(name)
        if found is None and not self.complete:
            return _with_name_label(name, Namespace())
        return found

    def limit_ranges(self, namespace: str) -> tuple[LimitRange, ...]:
        """The namespace's LimitRanges, by name."""
        return self._limit_ranges.get(namespace, ())

    def ranges(self, namespace: str) -> NamespaceLimitRanges:
        """The namespace's LimitRanges, by name, read when they are first asked for."""
        found = self._ranges.get(namespace)
        if found is not None:
            return found
        written = self._limit_ranges.get(namespace)
        if not written:
            return NO_LIMIT_RANGES
        self._ranges[namespace] = NamespaceLimitRanges(map(parse_limit_range, written))
        return self._ranges[namespace]

    def quota_room(self, namespace: str) -> tuple[RemainingQuota, ...]:
        """What the namespace's quotas leave, by name, reckoned when it is first asked for."""
        found = self._room.get(namespace)
        if found is not None:
            return found
        quotas = self._quotas.get(namespace)
        if not quotas:
            return ()
        self._room[namespace] = tuple(map(compute_remaining_quota, quotas))
        return self._room[namespace]

    def limited_resources(self, namespace: str) -> frozenset[str]:
        """The resource names that the namespace's LimitRanges say anything about."""
        return self._limited.get(namespace, frozenset())

    def quotas(self, namespace: str) -> tuple[ResourceQuota, ...]:
        """The namespace's ResourceQuotas, by name."""
        return self._quotas.get(namespace, ())

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> Sequence[QuotaConsumer]:
        """Who holds what a quota counts, the largest first; reckoned when it is first asked for."""
        return self._holders.quota_users(quota, namespace, what)

    def claim_context(self, namespace: str) -> ClaimContext:
        """What is known of the claims that pods of the namespace will have."""
        return ClaimContext(self._templates.get(namespace, {}), self.classes)

    def claim_users(self, namespace: str, key: str) -> Sequence[QuotaConsumer]:
        """Whose claims fill a key of the namespace's quotas, the largest first."""
        return self._holders.claim_users(namespace, key, self.claim_context(namespace))

    def fits_pool(self, pool: QuotaPool, milli: int, most: int, uid: str) -> bool:
        """Do so many thousandths of GPUs fit beside what a pool holds? A pod's own reservation is not in its way."""
        return self._holders.pool_usage(pool, self.labels_of, but=uid) + milli <= most

    def pool_usage(self, pool: QuotaPool) -> int:
        """Thousandths of GPUs that pods of a pool hold, wait for, or were admitted for a moment ago."""
        return self._holders.pool_usage(pool, self.labels_of)

    def pool_holders(self, pool: QuotaPool) -> PoolHolders:
        """Who holds the most of a pool."""
        return self._holders.pool_holders(pool, self.labels_of)

    def has_reserved(self, uid: str) -> bool:
        """Was this pod admitted a moment ago, and not seen since?"""
        return self._holders.has_reserved(uid)

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The namespace's labels; of one that is not known, only its name."""
        found = self.namespace(namespace)
        return found.metadata.labels if found else {NAMESPACE_NAME: namespace}

    def namespace_state(self, namespace: str) -> tuple[object, ...]:
        """All that the view says of one namespace, and how sure it is: equal where nothing of it changed."""
        namespaced = (self.namespace(namespace), self.limit_ranges(namespace), self.quotas(namespace))
        return (self.complete, self.current, *namespaced, self.claim_context(namespace))

    def free_units(self, offer: GpuOffer, nodes: int) -> int:
        """Units of an offer that are free now on the nodes of a mask, pods assumed taken off."""
        mask = nodes & offer.nodes
        units = self._gpus.get(offer.resource, EMPTY_INDEX).total_amount(mask)
        return max(0, units - self._ledger.assumed_units(offer.resource, mask))

    def has_free_node(self, resource: str, count: int, nodes: int, cpu_milli: int, memory: int) -> bool:
        """Is there one node in the mask with `count` units of `resource`, this CPU and this memory free now?

        Pods assumed count as if each took the place this pod would get: it is taken as full when they could between
        them leave no node with `count` units, and CPU and memory for them.
        """
        count = max(1, count)
        fitting = nodes & self._fitting(resource, count, cpu_milli, memory)
        if not fitting:
            return False
        taken, (cpu, size) = (
            self._ledger.assumed_resources(resource, fitting),
            self._ledger.other_assumed_resources(resource, fitting),
        )
        places, times = 0, 0
        while fitting and places <= taken.units:
            more = times * taken.cpu_milli + cpu, times * taken.memory + size
            needs = cpu_milli and cpu_milli + more[0], memory and memory + more[1]
            fitting &= self._fitting(resource, count + times, *needs)
            places, times = places + fitting.bit_count(), times + 1
        return places > taken.units

    def _fitting(self, resource: str, count: int, cpu_milli: int, memory: int) -> int:
        """Mask of the nodes with so many units, so much CPU and so much memory free, pods assumed left aside."""
        nodes = self._gpus.get(resource, EMPTY_INDEX).nodes_with_at_least(count)
        if cpu_milli > 0:
            nodes &= self._cpu.nodes_with_at_least(cpu_milli)
        return nodes & self._memory.nodes_with_at_least(memory) if memory > 0 else nodes

    def with_room(self, resource: str, count: int, nodes: int) -> int:
        """Mask of the nodes among these with `count` units of `resource` free now, pods assumed left aside."""
        return nodes & self._gpus.get(resource, EMPTY_INDEX).nodes_with_at_least(max(1, count))

    def with_assumed(self, pod: AssumedPod, now: float) -> ClusterView:
        """The view with one more pod assumed and those past their time forgotten; a known uid adds nothing."""
        return self._with_assumed_pods(self._ledger.without_expired(now).with_pod(pod))

    def without_expired(self, now: float) -> ClusterView:
        """The view without pods assumed past their time: they did not come; itself if there are none."""
        return self._with_assumed_pods(self._ledger.without_expired(now))

    def without_bound(self, seen: Collection[BoundPod]) -> ClusterView:
        """The view in which pods assumed that are seen now are assumed no more. See `AssumedPods.without`."""
        return self._with_assumed_pods(self._ledger.without_bound(seen))

    def with_reservation(self, pod: QuotaReservation) -> ClusterView:
        """The view with one more pod that was admitted, until it is seen; one that is known counts once."""
        return self._with_holders(self._holders.with_reservation(pod))

    def without_reservations(self, uids: Collection[str]) -> ClusterView:
        """The view in which pods admitted that are seen now are reserved no more."""
        return self._with_holders(self._holders.without_reservations(uids))

    def without_reservations_before(self, moment: float) -> ClusterView:
        """The view without what was reserved up to a moment: who has not come by now does not come."""
        return self._with_holders(self._holders.without_reservations_before(moment))

    def precompute_weights(self, other: ClusterView) -> None:
        """Do now what takes long, if it will be asked for what the other was asked for."""
        self._holders.precompute_weights(other._holders)

    def with_pods(self, lines: PodSummaries) -> ClusterView:
        """The view after pods came or went in some namespaces, of which these are all."""
        return self._with_holders(self._holders.with_pods(lines))

    def _with_holders(self, holders: QuotaUsage) -> ClusterView:
        return self if holders is self._holders else self._copy_with(_holders=holders)

    def with_pending_of(self, other: ClusterView) -> ClusterView:
        """This view with the pods that another one assumes, on the same nodes by name, and those it has reserved."""
        before = other.before if other.fleet is self.fleet else other.fleet
        return self._copy_with(
            before=before, _holders=self._holders.with_reservations_of(other._holders)
        )._with_assumed_of(other)

    def _with_assumed_of(self, other: ClusterView) -> ClusterView:
        names = [node.name for node in other.fleet.nodes]
        if other.fleet is self.fleet or names == [node.name for node in self.fleet.nodes]:
            return self._with_assumed_pods(other._ledger)
        places = self.fleet.by_name

        def here(mask: int) -> int:
            return union_masks(1 << places[names[bit]] for bit in bit_positions(mask) if names[bit] in places)

        return self._with_assumed_pods(other._ledger.with_masks(here))

    def _with_assumed_pods(self, ledger: AssumedPods) -> ClusterView:
        return self if ledger is self._ledger else self._copy_with(_ledger=ledger)

    def with_currency(self, *, current: bool) -> ClusterView:
        """The view as one that is current, or not."""
        return self if current == self.current else self._copy_with(current=current)

    def with_free(self, changes: Mapping[int, tuple[FreeResources, FreeResources]]) -> ClusterView:
        """The view after room changed on some nodes; costs by the changes, not by the nodes.

        Args:
            changes: By index of a node with GPUs: the room this view was made with, and the room from now on.
        """
        moves = list(changes.items())
        return self._copy_with(
            _cpu=self._cpu.with_changes((i, old.cpu_milli, new.cpu_milli) for i, (old, new) in moves),
            _memory=self._memory.with_changes((i, old.memory, new.memory) for i, (old, new) in moves),
            _gpus={name: self._with_units_changed(name, levels, moves) for name, levels in self._gpus.items()},
        )

    def _with_units_changed(
        self, resource: str, levels: ThresholdIndex, moves: Sequence[tuple[int, tuple[FreeResources, FreeResources]]]
    ) -> ThresholdIndex:
        units = [
            (i, old.gpus.get(resource, 0), new.gpus.get(resource, 0))
            for i, (old, new) in moves
            if resource in self.fleet.nodes[i].gpus
        ]
        return levels.with_changes(units) if any(old != new for _, old, new in units) else levels

    def with_objects(
        self,
        namespaces: Mapping[str, Namespace | None],
        limit_ranges: Mapping[str, Sequence[LimitRange]],
        quotas: Mapping[str, Sequence[ResourceQuota]],
        claim_templates: Mapping[str, Sequence[ResourceClaimTemplate]] = NOTHING,
    ) -> ClusterView:
        """The view after some namespaces changed, or what is in them.

        Args:
            namespaces: By name; None for one that is gone.
            limit_ranges: By namespace, all of each.
            quotas: By namespace, all of each.
            claim_templates: By namespace, all of each.
        """
        named = {name: _with_name_label(name, found) for name, found in namespaces.items() if found is not None}
        there = {name: found for name, found in self._namespaces.items() if name not in namespaces}
        ranges = {name: _sort_by_name(found) for name, found in limit_ranges.items()}
        return self._copy_with(
            _namespaces={**there, **named} if namespaces else self._namespaces,
            _limit_ranges={**self._limit_ranges, **ranges} if ranges else self._limit_ranges,
            _limited={**self._limited, **{name: _limited_resources(found) for name, found in ranges.items()}},
            _ranges={} if ranges else self._ranges,
            _quotas={**self._quotas, **{name: _sort_by_name(found) for name, found in quotas.items()}},
            _room={} if quotas else self._room,
            _templates={
                **self._templates,
                **{name: claim_templates_by_name(found) for name, found in claim_templates.items()},
            },
            _holders=self._holders.with_changed_labels().with_changed_quotas()
            if namespaces
            else self._holders.with_changed_quotas(),
        )

    def with_classes(self, classes: DeviceClasses) -> ClusterView:
        """The view after DeviceClasses changed."""
        return self._copy_with(classes=classes)

    def _copy_with(self, **parts: object) -> ClusterView:
        view = object.__new__(ClusterView)
        view.__dict__.update(self.__dict__)
        view.__dict__.update(parts)
        return view

    @property
    def assumed_pods(self) -> tuple[AssumedPod, ...]:
        """The pods assumed."""
        return self._ledger.all_pods()


def _with_name_label(name: str, namespace: Namespace) -> Namespace:
    """The namespace with the label that the API server gives each one."""
    metadata = namespace.metadata
    labels = {**metadata.labels, NAMESPACE_NAME: name}
    return Namespace(metadata=ObjectMeta(name=name, labels=labels, annotations=metadata.annotations))


def _limited_resources(ranges: tuple[LimitRange, ...]) -> frozenset[str]:
    return frozenset(
        name
        for limit_range in ranges
        for item in limit_range.spec.limits
        for side in (item.max, item.min, item.default, item.default_request, item.max_limit_request_ratio)
        for name in side
    )


def _sort_by_name(found: Iterable[Named]) -> tuple[Named, ...]:
    return tuple(sorted(found, key=lambda item: item.metadata.name))
