"""The quotas on the demand of layouts: ResourceQuotas, and the shared quotas that policies enforce.

Pods whose layouts are planned count with what the plan gives them, and not with what they request now. All other pods
keep what they use, and so do planned pods that keep their whole cards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import PolicyMode
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE, WHOLE_GPU, parse_gpu_resource
from webhook.model.node_labels import PRODUCT_LABEL, without_shared_mark
from webhook.model.objects import ResourceQuota
from webhook.model.pools import QuotaPool, weigh_on_node
from webhook.model.quantity import parse_units
from webhook.placement.layout_plan import CardUnit
from webhook.policy.policy_set import PolicySet
from webhook.report.layout_demand import DemandQuota, QuotaKey, UnitNeed
from webhook.report.results import CheckResult

REQUESTS = "requests."


class QuotaMatch(NamedTuple):
    """A quota that counts a pod.

    Attributes:
        quota: With its hard amount.
        used: What all pods use of it now.
        pool: The namespaces and products of a shared quota; None for a ResourceQuota.
    """

    quota: DemandQuota
    used: int
    pool: QuotaPool | None = None

    def amount(self, result: CheckResult, view: ClusterView) -> int:
        """Return what the quota counts of a pod now."""
        units = result.decision.requested_units
        if self.pool is not None:
            named = tuple((name, count) for name, count in units.items() if parse_gpu_resource(name))
            return self.pool.counted_milli(weigh_on_node(named, view.fleet, result.node or ""))
        if self.quota.resource == ACCOUNTING_RESOURCE:
            return result.pod_details.accounting_milli if result.pod_details is not None else 0
        return units.get(self.quota.resource, 0)


class QuotaCollector:
    """Sums up what planned pods use of quotas now, and what they keep."""

    def __init__(self, view: ClusterView, policies: PolicySet) -> None:
        """Start without pods.

        Args:
            view: The cluster as it is.
        """
        self._view, self._policies = view, {policy.name: policy for policy in policies.policies}
        self._matches: dict[tuple[str, str], tuple[QuotaMatch, ...]] = {}
        self._released = Counter[DemandQuota]()
        self._used: dict[DemandQuota, int] = {}

    def add(self, result: CheckResult) -> None:
        """Add a planned pod, which no longer uses what it uses now."""
        for match in self._matches_of(result):
            self._used.setdefault(match.quota, match.used)
            self._released[match.quota] += match.amount(result, self._view)

    def keys(self, result: CheckResult, units: Sequence[CardUnit]) -> tuple[QuotaKey, ...]:
        """Return the keys of the quotas that count a pod with some of these units."""
        quotas = (match.quota for match in self._matches_of(result))
        return tuple(dict.fromkeys(quota.key for quota in quotas if any(map(quota.amount, units))))

    def escapes(self, result: CheckResult, resource: str) -> bool:
        """Return whether a quota that counts whole GPUs of a pod would not count a resource instead of them."""
        counted: dict[str, set[str]] = {}
        for match in self._matches_of(result):
            if match.pool is None:
                counted.setdefault(match.quota.name, set()).add(match.quota.resource)
        return any(WHOLE_GPU in names and not names & {resource, ACCOUNTING_RESOURCE} for names in counted.values())

    def quotas(self, kept: Mapping[UnitNeed, int]) -> tuple[DemandQuota, ...]:
        """Return what each quota admits of the needs that it counts.

        Args:
            kept: The whole cards that planned pods keep.
        """
        found = []
        for quota, used in self._used.items():
            keeps = sum(
                count * max(map(quota.amount, need.units), default=0)
                for need, count in kept.items()
                if quota.key in need.quotas
            )
            used_by_others = max(0, used - self._released[quota])
            found.append(quota._replace(most=max(0, quota.most - used_by_others - keeps)))
        return tuple(found)

    def _matches_of(self, result: CheckResult) -> Iterator[QuotaMatch]:
        """Yield the quotas that count a pod."""
        namespace = result.namespace
        counting = result.pod_details.quotas if result.pod_details is not None else ()
        for quota in self._view.quotas(namespace) if counting else ():
            if quota.metadata.name in counting:
                yield from self._matches_of_quota(namespace, quota, result)
        for name in result.decision.policies:
            yield from self._matches_of_policy(namespace, name)

    def _matches_of_quota(self, namespace: str, quota: ResourceQuota, result: CheckResult) -> Iterator[QuotaMatch]:
        key = (namespace, quota.metadata.name)
        if key not in self._matches:
            self._matches[key] = tuple(_matches_by_resource(namespace, quota))
        for match in self._matches[key]:
            if match.quota.resource != ACCOUNTING_RESOURCE or self._is_accounted(result):
                yield match

    def _is_accounted(self, result: CheckResult) -> bool:
        policies = (self._policies[name] for name in result.decision.policies if name in self._policies)
        return any(policy.limits is not None and policy.limits.accounting for policy in policies)

    def _matches_of_policy(self, namespace: str, name: str) -> tuple[QuotaMatch, ...]:
        section = self._policies[name].quotas if name in self._policies else None
        if section is None or section.mode is not PolicyMode.ENFORCE:
            return ()
        key, labels = (namespace, f"policy/{name}"), self._view.labels_of(namespace)
        if key not in self._matches:
            self._matches[key] = tuple(
                QuotaMatch(
                    self._shared_quota(f"quota {each.name} of policy {name}", each.pool, each.gpu_milli),
                    self._view.pool_usage(each.pool),
                    each.pool,
                )
                for each in section.shared
                if each.pool.includes_namespace(namespace, labels)
            )
        return self._matches[key]

    def _shared_quota(self, name: str, pool: QuotaPool, most: int) -> DemandQuota:
        labels, test = {node.labels.get(PRODUCT_LABEL, "") for node in self._view.fleet.nodes}, pool.includes_product
        products = set(map(without_shared_mark, labels))
        counted = None if test is None else frozenset(filter(test, products))
        return DemandQuota(name, "", most, counted)


def _matches_by_resource(namespace: str, quota: ResourceQuota) -> Iterator[QuotaMatch]:
    """Yield what a ResourceQuota has of each GPU resource that it counts; amounts that cannot be read are left out."""
    hard, name = quota.status.hard or quota.spec.hard, f"ResourceQuota {namespace}/{quota.metadata.name}"
    for key in hard:
        resource = key.removeprefix(REQUESTS)
        if key.startswith(REQUESTS) and (resource == ACCOUNTING_RESOURCE or parse_gpu_resource(resource)):
            try:
                used = parse_units(quota.status.used.get(key, 0))
                yield QuotaMatch(DemandQuota(name, resource, parse_units(hard[key])), used)
            except QuantityError:
                continue
