"""Usage by pod in the namespaces of a cluster, for quotas of one namespace and for shared quotas."""

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
from webhook.model.quota_matching import CountedResource
from webhook.model.remaining_quota import QuotaConsumer, list_claim_consumers, list_quota_consumers, sort_consumers

PodSummaries = Mapping[str, Mapping[str, PodSummary]]
"""The pods that have not ended, by namespace and name."""

NamespaceLabels = Callable[[str], Mapping[str, str]]
"""Return the labels of a namespace."""

MAX_NAMED = 3
"""Namespaces, and pods, that are named."""


class PoolHolders(NamedTuple):
    """The largest users of a pool.

    Attributes:
        namespaces: The largest.
        namespace_count: Number of namespaces with any usage.
        pods: The largest pods in these.
        reserved_milli: Thousandths of GPUs of pods admitted a moment ago and not seen yet.
    """

    namespaces: tuple[QuotaConsumer, ...]
    namespace_count: int
    pods: tuple[QuotaConsumer, ...]
    reserved_milli: int = 0


class QuotaUsage:
    """Usage by pods and claims. Immutable except for caches; every change returns a new value that shares the rest."""

    __slots__ = ("_fleet", "_members", "_pods", "_reserved", "_usage_by_pool", "_users", "_weights")

    def __init__(self, fleet: Fleet, pods: PodSummaries, reserved: QuotaReservations = NO_QUOTA_RESERVATIONS) -> None:
        self._fleet, self._pods, self._reserved = fleet, pods, reserved
        self._users: dict[tuple[str, str, CountedResource], tuple[QuotaConsumer, ...]] = {}
        self._weights: dict[str, GpuWeight] = {}
        self._members: dict[tuple[QuotaPool, str], bool] = {}
        self._usage_by_pool: dict[QuotaPool, tuple[int, Mapping[str, int]]] = {}

    # Who holds it.

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> tuple[QuotaConsumer, ...]:
        """Return the pods that use what a quota counts, the largest first."""
        key = (namespace, quota.metadata.name, what)
        found = self._users.get(key)
        if found is None:
            found = self._users[key] = list_quota_consumers(quota, what, self._pods.get(namespace, {}))
        return found

    def claim_users(self, namespace: str, key: str, claiming: ClaimContext) -> tuple[QuotaConsumer, ...]:
        """Return the pods whose claims use a quota key, the largest first."""
        return list_claim_consumers(key, claiming, self._pods.get(namespace, {}))

    def pool_usage(self, pool: QuotaPool, labels: NamespaceLabels, *, but: str = "") -> int:
        """Return the thousandths of GPUs that pods of a pool hold, wait for, or were admitted for a moment ago.

        Args:
            pool: The pool.
            labels: Returns a namespace's labels.
            but: The uid of a pod whose own reservation does not count.
        """
        seen, _ = self._observed_usage(pool, labels)
        return seen + self._reserved_milli(pool, labels, but)

    def _reserved_milli(self, pool: QuotaPool, labels: NamespaceLabels, but: str = "") -> int:
        coming = self._reserved.weights(but).items()
        return sum([pool.counted_milli(weight) for name, weight in coming if self._is_in_pool(pool, name, labels)])

    def pool_holders(self, pool: QuotaPool, labels: NamespaceLabels) -> PoolHolders:
        """Return the largest users of a pool, among pods that have been seen."""
        spaces = sort_consumers(
            QuotaConsumer(milli, name) for name, milli in self._observed_usage(pool, labels)[1].items()
        )
        pods = sort_consumers(
            QuotaConsumer(pool.counted_milli(pod_weight(pod, self._fleet)), f"{space.name}/{name}")
            for space in spaces[:MAX_NAMED]
            for name, pod in self._pods[space.name].items()
        )
        return PoolHolders(spaces[:MAX_NAMED], len(spaces), pods[:MAX_NAMED], self._reserved_milli(pool, labels))

    def _observed_usage(self, pool: QuotaPool, labels: NamespaceLabels) -> tuple[int, Mapping[str, int]]:
        """Return the observed usage of a pool, in total and by namespace. Cached."""
        found = self._usage_by_pool.get(pool)
        if found is None:
            weights = ((name, self._namespace_weight(name)) for name in self._pods)
            each = {
                name: pool.counted_milli(weight)
                for name, weight in weights
                if weight and self._is_in_pool(pool, name, labels)
            }
            found = self._usage_by_pool[pool] = sum(each.values()), each
        return found

    def _namespace_weight(self, namespace: str) -> GpuWeight:
        found = self._weights.get(namespace)
        if found is None:
            pods = self._pods[namespace].values()
            found = self._weights[namespace] = sum_weights([pod_weight(pod, self._fleet) for pod in pods])
        return found

    def _is_in_pool(self, pool: QuotaPool, namespace: str, labels: NamespaceLabels) -> bool:
        found = self._members.get((pool, namespace))
        if found is None:
            found = self._members[pool, namespace] = pool.includes_namespace(namespace, labels(namespace))
        return found

    def precompute_weights(self, other: QuotaUsage) -> None:
        """Compute the weight of every namespace now, if the other one was asked about pools."""
        for name in self._pods if other._usage_by_pool else ():
            self._namespace_weight(name)

    # What changes.

    def has_reserved(self, uid: str) -> bool:
        """Return whether this pod was admitted a moment ago and has not been seen since."""
        return uid in self._reserved

    def with_reservation(self, pod: QuotaReservation) -> QuotaUsage:
        """Add an admitted pod; a known one counts once."""
        return self._with_reservations(self._reserved.with_pod(pod))

    def without_reservations(self, uids: Collection[str]) -> QuotaUsage:
        """Remove the reservations of pods that have been seen."""
        return self._with_reservations(self._reserved.without(uids))

    def without_reservations_before(self, before: float) -> QuotaUsage:
        """Remove reservations up to a time: pods that have not appeared by then will not."""
        return self._with_reservations(self._reserved.admitted_after(before))

    def with_reservations_of(self, other: QuotaUsage) -> QuotaUsage:
        """Take over the reservations of another value."""
        return self._with_reservations(other._reserved)

    def with_pods(self, pods: PodSummaries) -> QuotaUsage:
        """Replace all pods of some namespaces."""
        there = {name: some for name, some in {**self._pods, **pods}.items() if some}
        after = QuotaUsage(self._fleet, there, self._reserved)
        after._weights = {name: weight for name, weight in self._weights.items() if name not in pods}
        after._members = self._members
        return after

    def without_pod(self, namespace: str, name: str) -> QuotaUsage:
        """Remove one pod."""
        there = self._pods.get(namespace, {})
        return self.with_pods({namespace: {key: pod for key, pod in there.items() if key != name}})

    def with_changed_labels(self) -> QuotaUsage:
        """Return a copy for changed namespace labels."""
        after = QuotaUsage(self._fleet, self._pods, self._reserved)
        after._users, after._weights = self._users, self._weights
        return after

    def with_changed_quotas(self) -> QuotaUsage:
        """Return a copy for changed ResourceQuotas."""
        after = self._copy_caches()
        after._users = {}
        return after

    def _with_reservations(self, reserved: QuotaReservations) -> QuotaUsage:
        if reserved is self._reserved:
            return self
        after = self._copy_caches()
        after._reserved = reserved
        return after

    def _copy_caches(self) -> QuotaUsage:
        after = QuotaUsage(self._fleet, self._pods, self._reserved)
        after._users, after._weights = self._users, self._weights
        after._members, after._usage_by_pool = self._members, self._usage_by_pool
        return after
