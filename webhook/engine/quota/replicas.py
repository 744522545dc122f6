"""Charge the replicas of a workload to quotas, one after another, as the API server does when it creates them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.claimed_gpus import claim_of_scheduler
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.findings import final_amounts
from webhook.engine.pod_context import PodMutation
from webhook.engine.quota.admission import charge_by_names, compute_claims_charge, predict_claim_refusals
from webhook.engine.quota.charges import NO_CLAIM_CHARGES, ClaimCharges, compute_pod_charge, is_best_effort_amounts
from webhook.model.apimachinery import ZERO, Quantity, add_quantities, canonical_text, compare_quantities
from webhook.model.claims import NO_CLAIM
from webhook.model.cluster_view import ClusterView
from webhook.model.limit_ranges import NamespaceLimitRanges, ResourceList, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import PodAmounts, container_amounts
from webhook.model.pods import Pod
from webhook.model.pools import GpuWeight, scale_weight, sum_weights
from webhook.model.quota_matching import has_scopes, quota_matches_pod
from webhook.model.remaining_quota import RemainingQuota
from webhook.policy.policy_set import QuotaRules


class ReplicaCharge(NamedTuple):
    """The charge of one replica of a template.

    Attributes:
        mutation: The changes of one of them.
        ranges: The LimitRanges of its namespace.
        weight: Its GPUs as shared quotas count them.
        shared: The part of them that replicas share, by name of the claim.
    """

    namespace: str
    mutation: PodMutation
    ranges: NamespaceLimitRanges
    weight: GpuWeight
    shared: tuple[tuple[str, GpuWeight], ...] = ()

    def amounts(self) -> PodAmounts | None:
        """Return its amounts after all changes and defaults; None if one is not a quantity."""
        return final_amounts(self.mutation, self.ranges)

    def claims(self, view: ClusterView) -> ResourceList:
        """Return what quotas without scopes are charged for the claims that are made for it."""
        charged = _claims_charge(view, self)
        return ResourceList({key: Quantity(count) for key, count in charged.items()})

    def surely_fits(self, quotas: Sequence[RemainingQuota], replicas: int) -> bool:
        """Return whether ResourceQuotas surely admit this many replicas, by the fast path that most workloads pass."""
        pod, limits, requests = self.mutation.pod, self.mutation.limits, self.mutation.requests
        return is_surely_admitted(pod, container_amounts(pod.spec, limits, requests), self.ranges, quotas, replicas)


def charge_replicas(view: ClusterView, charge: ReplicaCharge, count: int) -> ClusterView:
    """Return the view after the API server has created this many replicas."""
    quotas = view.quotas(charge.namespace)
    if quotas and (amounts := charge.amounts()) is not None:
        of_claims, claiming = charge.claims(view), count_within_claims(view, charge, count)
        charged = [_charge_quota(quota, _quota_charge(quota, charge.mutation.pod, amounts), count) for quota in quotas]
        charged = [quota if has_scopes(quota) else _charge_quota(quota, of_claims, claiming) for quota in charged]
        view = view.with_objects({}, {}, {charge.namespace: charged})
    if charge.weight:
        shared = sum_weights(weight for _, weight in charge.shared)
        own = sum_weights((charge.weight, scale_weight(shared, -1)))
        claims = [name for name, _ in charge.shared]
        view = view.with_charged_weight(charge.namespace, sum_weights((scale_weight(own, count), shared)), claims)
    return view


def charge_claim(view: ClusterView, namespace: str, charge: Mapping[str, int]) -> ClusterView:
    """Return the view after the API server has created a claim with this charge."""
    amounts = ResourceList({key: Quantity(count) for key, count in charge.items()})
    charged = [quota if has_scopes(quota) else _charge_quota(quota, amounts, 1) for quota in view.quotas(namespace)]
    return view.with_objects({}, {}, {namespace: charged})


def count_within_quotas(view: ClusterView, charge: ReplicaCharge, replicas: int) -> int:
    """Return how many of the replicas the ResourceQuotas of their namespace admit, after the claims of those before."""
    quotas = view.quotas(charge.namespace)
    of_claims = charge.claims(view) if quotas else ResourceList()
    if not quotas or (not of_claims and charge.surely_fits(view.remaining_quotas(charge.namespace), replicas)):
        return replicas
    amounts = charge.amounts()
    if amounts is None:
        return replicas
    claiming = count_within_claims(view, charge, replicas)
    for quota in quotas:
        hard = parse_resource_list(quota.status.hard or quota.spec.hard)
        used = parse_resource_list(quota.status.used)
        of_others = ResourceList() if has_scopes(quota) else of_claims
        for key, amount in _quota_charge(quota, charge.mutation.pod, amounts).items():
            if key in used and key in hard:
                one = _KeyCharge(amount, of_others.get(key, ZERO), claiming)
                replicas = one.count_within(used[key], hard[key], replicas)
    return replicas


def count_within_claims(view: ClusterView, charge: ReplicaCharge, replicas: int) -> int:
    """Return for how many of the replicas the ResourceQuotas of their namespace admit the claims made for them.

    A pod itself is charged before its claims.
    """
    quotas, each = view.quotas(charge.namespace), _claims_charge(view, charge)
    if not quotas or not each:
        return replicas
    classes, own = view.claim_context(charge.namespace).classes, _own_charge(charge, quotas)

    def is_rejected(count: int) -> bool:
        charged, created = ({key: amount * count for key, amount in one.items()} for one in (each, own))
        return any(True for _ in predict_claim_refusals(charged, quotas, classes, created))

    return bisect_left(range(replicas), x=True, key=lambda before: is_rejected(before + 1))


def _own_charge(charge: ReplicaCharge, quotas: Sequence[ResourceQuota]) -> ClaimCharges:
    """Return what a pod itself requests by key of its quotas, before its claims; nothing for a right-sized one."""
    return NO_CLAIM_CHARGES if charge.mutation.applied_choice else charge_by_names(charge.mutation.pod, quotas)


def _claims_charge(view: ClusterView, charge: ReplicaCharge) -> ClaimCharges:
    pod, has_changed = charge.mutation.pod, charge.mutation.applied_choice is not None
    of_scheduler = NO_CLAIM if has_changed or not view.device_pools() else claim_of_scheduler(pod, view)
    return compute_claims_charge(pod, view.claim_context(charge.namespace), of_scheduler)


def count_within_shared(sections: Iterable[QuotaRules], charge: ReplicaCharge, view: ClusterView, replicas: int) -> int:
    """Return how many of the replicas the shared quotas of these policies admit."""
    labels = view.labels_of(charge.namespace)
    for quota in [quota for section in sections for quota in section.shared]:
        if not quota.pool.includes_namespace(charge.namespace, labels):
            continue
        shared = sum(quota.pool.counted_milli(weight) for _, weight in charge.shared)
        own, left = (
            quota.pool.counted_milli(charge.weight) - shared,
            quota.gpu_milli - view.pool_usage(quota.pool) - shared,
        )
        if left < 0 and own + shared:
            replicas = 0
        elif own:
            replicas = min(replicas, left // own)
    return replicas


class _KeyCharge(NamedTuple):
    """The charge of each replica under one key of a quota.

    Attributes:
        own: That of the pod.
        of_claims: That of the claims made for it afterwards.
        claiming: How many replicas get their claims.
    """

    own: Quantity
    of_claims: Quantity
    claiming: int

    def count_within(self, used: Quantity, hard: Quantity, most: int) -> int:
        """Return how many pods fit, at most this many."""
        return bisect_left(range(most), x=True, key=lambda before: self._exceeds(before, used, hard))

    def _exceeds(self, before: int, used: Quantity, hard: Quantity) -> bool:
        claims = _multiply(self.of_claims, min(before, self.claiming))
        charged = add_quantities(_multiply(self.own, before + 1), claims)
        return compare_quantities(add_quantities(used, charged), hard) > 0


def _multiply(amount: Quantity, count: int) -> Quantity:
    return amount._replace(unscaled=amount.unscaled * count, text="")


def _quota_charge(quota: ResourceQuota, pod: Pod, amounts: PodAmounts) -> ResourceList:
    """Return what one replica is charged to a quota; nothing if the quota does not match it."""
    if not quota_matches_pod(quota, pod, best_effort=is_best_effort_amounts(amounts)):
        return ResourceList()
    return compute_pod_charge(amounts, parse_resource_list(pod.spec.overhead), quota.status.hard or quota.spec.hard)


def _charge_quota(quota: ResourceQuota, charged: ResourceList, count: int) -> ResourceQuota:
    used = parse_resource_list(quota.status.used)
    after = {
        key: canonical_text(add_quantities(used[key], _multiply(amount, count)))
        for key, amount in charged.items()
        if key in used
    }
    return replace(quota, status=replace(quota.status, used={**quota.status.used, **after}))
