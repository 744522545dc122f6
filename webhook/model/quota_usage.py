"""Usage by pod in the namespaces of a cluster, for quotas of one namespace and for shared quotas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from webhook.model.claims import ClaimContext
from webhook.model.dra.claim_weights import NO_CLUSTER_CLAIMS, ClusterClaims
from webhook.model.filters.pod_ties import TieKey
from webhook.model.fleet import Fleet
from webhook.model.objects import ResourceQuota
from webhook.model.pod_summary import PodSummary
from webhook.model.pools import (
    NO_QUOTA_RESERVATIONS,
    GpuWeight,
    QuotaPool,
    QuotaReservations,
    pod_weight,
    sum_weights,
)
from webhook.model.quantity import NANO
from webhook.model.quota_matching import CountedResource, has_scopes, scopes_match
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
        reserved_milli: Thousandths of GPUs of pods admitted a moment ago and not observed yet.
    """

    namespaces: tuple[QuotaConsumer, ...]
    namespace_count: int
    pods: tuple[QuotaConsumer, ...]
    reserved_milli: int = 0


class QuotaUsage:
    """Usage by pods and claims. Immutable except for caches; every change returns a new value that shares the rest.

    Attributes:
        reserved: Pods that were admitted a moment ago and have not been observed since.
    """

    __slots__ = (
        "_claim_names",
        "_claim_weights",
        "_claims",
        "_fleet",
        "_members",
        "_pods",
        "_pods_by_tie",
        "_units_held",
        "_usage_by_pool",
        "_users",
        "_weights",
        "reserved",
    )

    def __init__(
        self,
        fleet: Fleet,
        pods: PodSummaries,
        reserved: QuotaReservations = NO_QUOTA_RESERVATIONS,
        claims: ClusterClaims = NO_CLUSTER_CLAIMS,
    ) -> None:
        self._fleet, self._pods, self.reserved, self._claims = fleet, pods, reserved, claims
        self._users: dict[tuple[str, str, CountedResource], tuple[QuotaConsumer, ...]] = {}
        self._units_held: dict[tuple[str, str, str], int] = {}
        self._weights: dict[str, GpuWeight] = {}
        self._claim_weights: dict[str, GpuWeight] = {}
        self._claim_names: dict[str, frozenset[str]] = {}
        self._members: dict[tuple[QuotaPool, str], bool] = {}
        self._usage_by_pool: dict[QuotaPool, tuple[int, Mapping[str, int]]] = {}
        self._pods_by_tie: dict[TieKey, Counter[str]] | None = None

    def quota_users(self, quota: ResourceQuota, namespace: str, what: CountedResource) -> tuple[QuotaConsumer, ...]:
        """Return the pods that use what a quota counts, the largest first."""
        key = (namespace, quota.metadata.name, what)
        found = self._users.get(key)
        if found is None:
            found = self._users[key] = list_quota_consumers(quota, what, self._pods.get(namespace, {}))
        return found

    def units_held(self, quota: ResourceQuota, namespace: str, resource: str) -> int:
        """Return the units of a resource that a namespace's pods request which a quota counts. Cached."""
        key = (namespace, quota.metadata.name if has_scopes(quota) else "", resource)
        found = self._units_held.get(key)
        if found is None:
            pods: Iterable[PodSummary] = self._pods.get(namespace, {}).values()
            if has_scopes(quota):
                pods = [pod for pod in pods if scopes_match(quota, pod.kind)]
            units = [amount for pod in pods for name, amount in pod.requests if name == resource]
            found = self._units_held[key] = sum(units) // NANO
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
        observed, _ = self._observed_usage(pool, labels)
        return observed + self.reserved_milli(pool, labels, but)

    def reserved_milli(self, pool: QuotaPool, labels: NamespaceLabels, but: str = "") -> int:
        """Return the thousandths of GPUs of reservations in a pool, without that of one pod."""
        weights = self.reserved.weights(but).items()
        return sum([pool.counted_milli(weight) for name, weight in weights if self._is_in_pool(pool, name, labels)])

    def pool_holders(self, pool: QuotaPool, labels: NamespaceLabels) -> PoolHolders:
        """Return the largest users of a pool, among observed pods."""
        spaces = sort_consumers(
            QuotaConsumer(milli, name) for name, milli in self._observed_usage(pool, labels)[1].items()
        )
        pods = sort_consumers(
            QuotaConsumer(pool.counted_milli(self._pod_weight(space.name, pod)), f"{space.name}/{name}")
            for space in spaces[:MAX_NAMED]
            for name, pod in self._pods.get(space.name, {}).items()
        )
        return PoolHolders(spaces[:MAX_NAMED], len(spaces), pods[:MAX_NAMED], self.reserved_milli(pool, labels))

    def _observed_usage(self, pool: QuotaPool, labels: NamespaceLabels) -> tuple[int, Mapping[str, int]]:
        """Return the observed usage of a pool, in total and by namespace. Cached."""
        found = self._usage_by_pool.get(pool)
        if found is None:
            weights = ((name, self._namespace_weight(name)) for name in {**self._pods, **self._claims.devices.claims})
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
            pods = self._pods.get(namespace, {}).values()
            found = self._weights[namespace] = sum_weights([pod_weight(pod, self._fleet) for pod in pods])
        if self._claims is NO_CLUSTER_CLAIMS:
            return found
        return sum_weights((found, self._weight_of_claims(namespace)))

    def _weight_of_claims(self, namespace: str) -> GpuWeight:
        found = self._claim_weights.get(namespace)
        if found is None:
            pods, claims = self._pods.get(namespace, {}).values(), self._claims
            weights = (
                claims.weigh_namespace(namespace, pods, self._fleet),
                claims.weigh_class_resources(pods, self._fleet),
            )
            found = self._claim_weights[namespace] = sum_weights(weights)
        return found

    def _pod_weight(self, namespace: str, pod: PodSummary) -> GpuWeight:
        """Return the weight of a pod with all its claims, also those that it shares."""
        named = pod_weight(pod, self._fleet)
        if self._claims is NO_CLUSTER_CLAIMS:
            return named
        return sum_weights((named, self._claims.weigh_pod(namespace, pod, self._fleet)))

    def counts_claim(self, namespace: str, name: str, *, but: str = "") -> bool:
        """Return whether usage has a claim already: it has devices, or another pod names it.

        Args:
            but: The uid of a pod whose own reservation does not count.
        """
        claim = self._claims.devices.claims.get(namespace, {}).get(name)
        if claim is not None and claim.status.allocation is not None:
            return True
        return self.reserved.has_claim(namespace, name, but) or name in self._named_claims(namespace)

    def _named_claims(self, namespace: str) -> frozenset[str]:
        """Return the names of the claims that pods of a namespace use. Cached."""
        found = self._claim_names.get(namespace)
        if found is None:
            pods = self._pods.get(namespace, {}).values()
            found = self._claim_names[namespace] = frozenset([one.name for pod in pods for one in pod.claims])
        return found

    def _is_in_pool(self, pool: QuotaPool, namespace: str, labels: NamespaceLabels) -> bool:
        found = self._members.get((pool, namespace))
        if found is None:
            found = self._members[pool, namespace] = pool.includes_namespace(namespace, labels(namespace))
        return found

    def precompute_weights(self, other: QuotaUsage) -> None:
        """Compute the weight of every namespace now, if the other value was used for pools."""
        for name in self._pods if other._usage_by_pool else ():
            self._namespace_weight(name)

    def with_reservations(self, reserved: QuotaReservations) -> QuotaUsage:
        """Replace the reservations."""
        if reserved is self.reserved:
            return self
        after = self._copy_caches()
        after.reserved = reserved
        return after

    def with_pods(self, pods: PodSummaries) -> QuotaUsage:
        """Replace all pods of some namespaces."""
        remaining = {name: some for name, some in {**self._pods, **pods}.items() if some}
        after = QuotaUsage(self._fleet, remaining, self.reserved, self._claims)
        after._units_held = {key: units for key, units in self._units_held.items() if key[0] not in pods}
        after._weights = {name: weight for name, weight in self._weights.items() if name not in pods}
        after._claim_weights = {name: weight for name, weight in self._claim_weights.items() if name not in pods}
        after._claim_names = {name: found for name, found in self._claim_names.items() if name not in pods}
        after._members = self._members
        return after

    def with_claims(self, claims: ClusterClaims) -> QuotaUsage:
        """Return a copy for changed claims, devices or classes."""
        if claims is self._claims:
            return self
        after = QuotaUsage(self._fleet, self._pods, self.reserved, claims)
        after._users, after._weights, after._members = self._users, self._weights, self._members
        after._units_held = self._units_held
        unchanged = (name for name in self._claim_weights if claims.has_same_weights(self._claims, name))
        after._claim_weights = {name: self._claim_weights[name] for name in unchanged}
        after._claim_names = self._claim_names
        return after

    def has_pod(self, namespace: str, name: str) -> bool:
        """Return whether a pod of this name is counted."""
        return name in self._pods.get(namespace, {})

    def without_pod(self, namespace: str, name: str) -> QuotaUsage:
        """Remove one pod, and the claims that only it uses."""
        others = dict(self._pods.get(namespace, {}))
        removed = others.pop(name, None)
        after = self.with_pods({namespace: others})
        own = {one.name for one in removed.claims} if removed is not None else set()
        if own:
            own -= {one.name for pod in others.values() for one in pod.claims}
        return after.with_claims(self._claims.without(namespace, own)) if own else after

    def tie_counts_of_others(self, namespace: str, name: str) -> Mapping[TieKey, Mapping[str, int]]:
        """Return what one pod is counted by, with the numbers of other pods with each by the name of the node."""
        pod = self._pods.get(namespace, {}).get(name)
        if pod is None or not pod.ties:
            return {}
        counts = self._count_by_tie()
        return {key: {**counts[key], pod.node: counts[key][pod.node] - 1} for key in pod.ties}

    def with_tie_counts(self, counts: Mapping[TieKey, Mapping[str, int]]) -> QuotaUsage:
        """Replace the numbers of pods with some ties."""
        after = self._copy_caches()
        after._pods_by_tie = {**self._count_by_tie(), **{key: Counter(by_node) for key, by_node in counts.items()}}
        return after

    def _count_by_tie(self) -> dict[TieKey, Counter[str]]:
        if self._pods_by_tie is None:
            self._pods_by_tie = count_by_tie(pod for pods in self._pods.values() for pod in pods.values())
        return self._pods_by_tie

    def with_changed_labels(self) -> QuotaUsage:
        """Return a copy for changed namespace labels."""
        after = self._copy_caches()
        after._members, after._usage_by_pool = {}, {}
        return after

    def with_changed_quotas(self) -> QuotaUsage:
        """Return a copy for changed ResourceQuotas."""
        after = self._copy_caches()
        after._users, after._units_held = {}, {}
        return after

    def _copy_caches(self) -> QuotaUsage:
        after = QuotaUsage(self._fleet, self._pods, self.reserved, self._claims)
        after._users, after._weights, after._claim_weights = self._users, self._weights, self._claim_weights
        after._claim_names, after._units_held = self._claim_names, self._units_held
        after._members, after._usage_by_pool = self._members, self._usage_by_pool
        return after


def count_by_tie(pods: Iterable[PodSummary]) -> dict[TieKey, Counter[str]]:
    """Return the numbers of pods by what ties them to others and by the name of the node; "" without one."""
    counts: dict[TieKey, Counter[str]] = {}
    for pod in pods:
        for key in pod.ties:
            counts.setdefault(key, Counter())[pod.node] += 1
    return counts
