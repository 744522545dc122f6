"""Compute what a pod is charged under the keys of a ResourceQuota, and release it when the pod is deleted.

Like LimitRanger's totals, with pod-level huge pages and overhead.
Source: `pkg/quota/v1/evaluator/core` and `k8s.io/component-helpers/resource`.

Check that a smaller GPU stays covered by the quotas that count the original request, and fits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from webhook.errors import QuantityError
from webhook.model.apimachinery import (
    ZERO,
    Quantity,
    add_quantities,
    canonical_text,
    compare_quantities,
    negate_quantity,
)
from webhook.model.claims import CLAIM_COUNT_KEY, ClaimSpec, claim_charge, claim_of_class
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.extended_resources import ClassByResource
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import LIMITS, PodAmounts, read_pod_amounts, sum_containers
from webhook.model.pods import Pod
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import CountedResource, has_scopes, quota_matches_pod, resource_of_quota_key
from webhook.model.remaining_quota import REQUIRED_KEYS
from webhook.model.resource_names import is_pod_level_resource

ClaimCharges = Mapping[str, int]
NO_CLAIM_CHARGES: ClaimCharges = {}
ONE_POD = Quantity(1)


def compute_pod_charge(amounts: PodAmounts, overhead: ResourceList, keys: Iterable[str]) -> ResourceList:
    """Return the charge of a pod under each key, zeros left out."""
    charged = ResourceList()
    for key in keys:
        counted = resource_of_quota_key(key)
        amount = _charged_amount(amounts, overhead, counted) if counted else None
        if amount is not None and amount.unscaled:
            charged[key] = amount
    return charged


def release_pod_usage(
    quotas: Iterable[ResourceQuota], pod: Pod, claims: ClaimCharges = NO_CLAIM_CHARGES
) -> tuple[ResourceQuota, ...]:
    """Return quotas without the usage of a stored pod, never below zero.

    A pod with an amount that is not a quantity was never charged.

    Args:
        claims: The charges of claims that are deleted with it; quotas with scopes count none.
    """
    try:
        amounts = read_pod_amounts(pod)
    except QuantityError:
        return tuple(quotas)
    overhead, best_effort = parse_resource_list(pod.spec.overhead), is_best_effort_amounts(amounts)
    released: list[ResourceQuota] = []
    for quota in quotas:
        used = parse_resource_list(quota.status.used)
        matches = quota_matches_pod(quota, pod, best_effort=best_effort)
        charged = compute_pod_charge(amounts, overhead, used) if matches else {}
        released.append(_subtract_usage(quota, used, charged, {} if has_scopes(quota) else claims))
    return tuple(released)


def missing_required_resources(amounts: PodAmounts, keys: Iterable[str]) -> Mapping[str, list[str]]:
    """Return, by key, the containers that lack CPU or memory amounts which a quota requires of every container."""
    whole = amounts.pod_level
    if whole is not None and any(map(is_pod_level_resource, whole.limits | whole.requests)):
        return {}
    missing: dict[str, list[str]] = {}
    for key in sorted(set(keys).intersection(REQUIRED_KEYS)):
        counted = resource_of_quota_key(key)
        names = {
            holder.name
            for holder in amounts.all_containers
            if counted is None or counted.resource not in holder.amounts(counted.side)
        }
        if names:
            missing[key] = sorted(names)
    return missing


def is_best_effort_amounts(amounts: PodAmounts) -> bool:
    """Return whether the pod requests neither CPU nor memory. Pod-level resources replace those of containers."""
    each = amounts.all_containers if amounts.pod_level is None else (amounts.pod_level,)
    return not any(
        name in side and side[name].unscaled > 0
        for holder in each
        for side in (holder.limits, holder.requests)
        for name in ("cpu", "memory")
    )


def _charged_amount(amounts: PodAmounts, overhead: ResourceList, counted: CountedResource) -> Quantity | None:
    resource, side = counted
    if not resource:
        return ONE_POD
    whole = amounts.pod_level
    if whole is not None and resource in whole.amounts(side) and is_pod_level_resource(resource):
        amount: Quantity | None = whole.amounts(side)[resource]
    else:
        amount = sum_containers(amounts, resource, side)
    added = overhead.get(resource)
    if added is None or (side == LIMITS and (amount is None or not amount.unscaled)):
        return amount
    return added if amount is None else add_quantities(amount, added)


def _subtract_usage(
    quota: ResourceQuota, used: ResourceList, charged: ResourceList, claims: ClaimCharges
) -> ResourceQuota:
    remaining: dict[str, str] = {}
    for key in used:
        if key in charged or key in claims:
            amount = add_quantities(charged.get(key, ZERO), Quantity(claims.get(key, 0)))
            rest = add_quantities(used[key], negate_quantity(amount))
            remaining[key] = canonical_text(rest if compare_quantities(rest, ZERO) > 0 else ZERO)
    return replace(quota, status=replace(quota.status, used={**quota.status.used, **remaining}))


HoldsAtMost = Callable[[ResourceQuota, int], bool]
"""Tells whether pods that a quota counts, or will count, hold at most so many units: `ClusterView.holds_at_most`."""


def find_full_quota(
    quotas: Sequence[ResourceQuota], pod: Pod, target: str, holds_at_most: HoldsAtMost, units: int = 1
) -> str:
    """Return the name of the first quota with fewer than so many units of `target` left; "" if there is none.

    A quota's own usage lags behind: the API server counts a pod after `/mutate`, and a watch shows it still later. So
    what its pods hold counts where that is more. A quota whose amounts cannot be read is skipped.
    """
    key = f"requests.{target}"
    for quota in quotas:
        hard = (quota.status.hard or quota.spec.hard).get(key)
        if hard is None or not quota_matches_pod(quota, pod):
            continue
        try:
            limit, used = parse_units(hard), parse_units(quota.status.used.get(key, 0))
        except QuantityError:
            continue
        if limit - used < units or not holds_at_most(quota, limit - units):
            return quota.metadata.name or "without a name"
    return ""


def escapes_quota(
    quotas: Sequence[ResourceQuota], pod: Pod, requested: str, target: str, *, accounted: str = ""
) -> bool:
    """Return whether a quota that counts `requested` would not count `target`.

    Args:
        requested: The requested resource.
        target: The resource that replaces it.
        accounted: The accounting resource, if the pod carries it: a quota on it counts both.
    """
    for quota in quotas:
        if not quota_matches_pod(quota, pod):
            continue
        hard = quota.status.hard or quota.spec.hard
        requested_key, target_key = f"requests.{requested}", f"requests.{target}"
        if requested_key in hard and target_key not in hard and not (accounted and f"requests.{accounted}" in hard):
            return True
    return False


def escapes_quota_by_class(quotas: Sequence[ResourceQuota], pod: Pod, target: str, view: ClusterView) -> bool:
    """Return whether a quota that counts a whole GPU of a pod would not count a device of a class.

    The scheduler makes a claim for the device, which quotas without scopes count too.

    Args:
        target: The extended resource that the class serves.
    """
    served = view.devices.class_by_resource
    before, after = _quota_keys(WHOLE_GPU, served, view), _quota_keys(target, served, view)
    for quota in quotas:
        hard = (quota.status.hard or quota.spec.hard).keys()
        if has_scopes(quota):
            counted = quota_matches_pod(quota, pod) and f"requests.{WHOLE_GPU}" in hard
            if counted and f"requests.{target}" not in hard:
                return True
        elif not hard.isdisjoint(before) and hard.isdisjoint(after):
            return True
    return False


def _quota_keys(resource: str, served: ClassByResource, view: ClusterView) -> set[str]:
    """Return the keys by which quotas count an extended resource: those of pods, and of the claim that serves it."""
    claim = claim_of_class(served[resource]) if resource in served else ClaimSpec()
    return {f"requests.{resource}", *claim_charge(claim, view.classes)} - {CLAIM_COUNT_KEY}


def find_full_quota_by_class(
    quotas: Sequence[ResourceQuota], pod: Pod, target: str, view: ClusterView, holds_at_most: HoldsAtMost
) -> str:
    """Return the first quota that may refuse a pod with a device of a class, or the claim that is made for it.

    Claims are made later than pods, so that those of pods that wait must fit too.
    """
    served = view.devices.class_by_resource
    names = list(view.class_offers().by_resource)
    charge = claim_charge(claim_of_class(served[target]), view.classes)
    for quota in quotas:
        left = {} if has_scopes(quota) else {key: _units_left(quota, key) for key in charge}
        waiting = all(
            units is None or all(view.has_fewer_pending(name, units // len(names)) for name in names)
            for units in left.values()
        )
        if not waiting:
            return quota.metadata.name or "without a name"
    return find_full_quota(quotas, pod, target, holds_at_most)


def _units_left(quota: ResourceQuota, key: str) -> int | None:
    """Return what a quota leaves of a key; None if it does not count it. An amount that cannot be read leaves none."""
    hard = (quota.status.hard or quota.spec.hard).get(key)
    if hard is None:
        return None
    try:
        return parse_units(hard) - parse_units(quota.status.used.get(key, 0))
    except QuantityError:
        return 0
