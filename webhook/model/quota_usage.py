"""Holders: who holds what in the namespaces of a cluster, for quotas of one namespace and for those of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from webhook.model.claims import ClaimContext
from webhook.model.fleet import Fleet
from webhook.model.objects import ResourceQuota
from webhook.model.pod_summary import PodSummary
from webhook.model.pools import (
    NO_QUOTA_RESERVATIONS,
    GpuWeight,
    QuotaPool,
    QuotaReservation,
    QuotaReservations,
    pod_weight,
    sum_weights,
)
from webhook.model.quota_keys import CountedResource
from webhook.model.remaining_quota import QuotaConsumer, list_claim_consumers, list_quota_consumers, sort_consumers

PodSummaries = Mapping[str, Mapping[str, PodSummary]]
"""The pods that have not ended, by namespace and name."""

NamespaceLabels = Callable[[str], Mapping[str, str]]
"""The labels of a namespace."""

MAX_NAMED = 3
"""Namespaces, and pods, that are named."""


class PoolHolders(NamedTuple):
    """Who holds the most of a pool.

    Attributes:
        namespaces: The largest.
        among: How many hold anything.
        pods: The largest in these.
        coming: Thousandths of GPUs of pods admitted a moment ago and not seen yet, so in nobody's name.
    """

    namespaces: tuple[QuotaConsumer, ...]
    namespace_count: int
    pods: tuple[QuotaConsumer, ...]
    reserved_milli: int = 0


class QuotaUsage:
    """Immutable but for what it remembers of its own answers; whatever changes is a new one that shares the rest."""

    __slots__ = ("_by_pool", "_fleet", "_held", "_lines", "_reserved", "_sharing", "_weights")

    def __init__(self, fleet: Fleet, lines: PodSummaries, reserved: QuotaReservations = NO_QUOTA_RESERVATIONS) -> None:
        self._fleet, self._lines, self._reserved = fleet, lines, reserved
        self._held: dict[tuple[str, str, CountedResource], tuple[QuotaConsumer, ...]] = {}
        self._weights: dict[str, GpuWeight] = {}
        self._sharing: dict[tuple[QuotaPool, str], bool] = {}
        self._by_pool: dict[QuotaPool, tuple[int, Mapping[str, int]]] = {}

    # Who holds it.

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> tuple[QuotaConsumer, ...]:
        """Who holds what a quota counts, the largest first."""
        key = (namespace, quota.metadata.name, what)
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = list_quota_consumers(quota, what, self._lines.get(namespace, {}))
        return found

    def claim_users(self, namespace: str, key: str, claiming: ClaimContext) -> tuple[QuotaConsumer, ...]:
        """Whose claims fill a key of a quota, the largest first."""
        return list_claim_consumers(key, claiming, self._lines.get(namespace, {}))

    def pool_usage(self, pool: QuotaPool, labels: NamespaceLabels, *, but: str = "") -> int:
        """Thousandths of GPUs that pods of a pool hold, wait for, or were admitted for a moment ago.

        Args:
            pool: The pool.
            labels: Says what labels a namespace has.
            but: The uid of a pod whose own reservation does not count.
        """
        seen, _ = self._observed_usage(pool, labels)
        return seen + self._reserved_milli(pool, labels, but)

    def _reserved_milli(self, pool: QuotaPool, labels: NamespaceLabels, but: str = "") -> int:
        coming = self._reserved.weights(but).items()
        return sum([pool.counted_milli(weight) for name, weight in coming if self._is_in_pool(pool, name, labels)])

    def pool_holders(self, pool: QuotaPool, labels: NamespaceLabels) -> PoolHolders:
        """The largest holders of a pool, as far as they are seen."""
        spaces = sort_consumers(
            QuotaConsumer(milli, name) for name, milli in self._observed_usage(pool, labels)[1].items()
        )
        pods = sort_consumers(
            QuotaConsumer(pool.counted_milli(pod_weight(line, self._fleet)), f"{space.name}/{name}")
            for space in spaces[:MAX_NAMED]
            for name, line in self._lines[space.name].items()
        )
        return PoolHolders(spaces[:MAX_NAMED], len(spaces), pods[:MAX_NAMED], self._reserved_milli(pool, labels))

    def _observed_usage(self, pool: QuotaPool, labels: NamespaceLabels) -> tuple[int, Mapping[str, int]]:
        """What is seen of a pool, together and by namespace; reckoned when it is first asked for."""
        found = self._by_pool.get(pool)
        if found is None:
            weights = ((name, self._namespace_weight(name)) for name in self._lines)
            each = {
                name: pool.counted_milli(weight)
                for name, weight in weights
                if weight and self._is_in_pool(pool, name, labels)
            }
            found = self._by_pool[pool] = sum(each.values()), each
        return found

    def _namespace_weight(self, namespace: str) -> GpuWeight:
        found = self._weights.get(namespace)
        if found is None:
            lines = self._lines[namespace].values()
            found = self._weights[namespace] = sum_weights([pod_weight(line, self._fleet) for line in lines])
        return found

    def _is_in_pool(self, pool: QuotaPool, namespace: str, labels: NamespaceLabels) -> bool:
        found = self._sharing.get((pool, namespace))
        if found is None:
            found = self._sharing[pool, namespace] = pool.includes_namespace(namespace, labels(namespace))
        return found

    def precompute_weights(self, other: QuotaUsage) -> None:
        """Weigh every namespace now, where another one was asked what pools hold."""
        for name in self._lines if other._by_pool else ():
            self._namespace_weight(name)

    # What changes.

    def has_reserved(self, uid: str) -> bool:
        """Was this pod admitted a moment ago, and not seen since?"""
        return uid in self._reserved

    def with_reservation(self, pod: QuotaReservation) -> QuotaUsage:
        """One more pod that was admitted; one that is known counts once."""
        return self._with_reservations(self._reserved.with_pod(pod))

    def without_reservations(self, uids: Collection[str]) -> QuotaUsage:
        """Pods admitted that are seen now are reserved no more."""
        return self._with_reservations(self._reserved.without(uids))

    def without_reservations_before(self, moment: float) -> QuotaUsage:
        """Without what was reserved up to a moment: who has not come by now does not come."""
        return self._with_reservations(self._reserved.admitted_after(moment))

    def with_reservations_of(self, other: QuotaUsage) -> QuotaUsage:
        """With what another one has reserved."""
        return self._with_reservations(other._reserved)

    def with_pods(self, lines: PodSummaries) -> QuotaUsage:
        """After pods came or went in some namespaces, of which these are all."""
        there = {name: some for name, some in {**self._lines, **lines}.items() if some}
        after = QuotaUsage(self._fleet, there, self._reserved)
        after._weights = {name: weight for name, weight in self._weights.items() if name not in lines}
        after._sharing = self._sharing
        return after

    def without_pod(self, namespace: str, name: str) -> QuotaUsage:
        """Without one pod."""
        there = self._lines.get(namespace, {})
        return self.with_pods({namespace: {key: line for key, line in there.items() if key != name}})

    def with_changed_labels(self) -> QuotaUsage:
        """After labels of namespaces changed."""
        after = QuotaUsage(self._fleet, self._lines, self._reserved)
        after._held, after._weights = self._held, self._weights
        return after

    def with_changed_quotas(self) -> QuotaUsage:
        """After ResourceQuotas changed."""
        after = self._copy_caches()
        after._held = {}
        return after

    def _with_reservations(self, reserved: QuotaReservations) -> QuotaUsage:
        if reserved is self._reserved:
            return self
        after = self._copy_caches()
        after._reserved = reserved
        return after

    def _copy_caches(self) -> QuotaUsage:
        after = QuotaUsage(self._fleet, self._lines, self._reserved)
        after._held, after._weights = self._held, self._weights
        after._sharing, after._by_pool = self._sharing, self._by_pool
        return after
