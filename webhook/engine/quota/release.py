"""Quotas without a pod that they count."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from webhook.engine.quota.admission import NO_CLAIM_CHARGES, ClaimCharges
from webhook.engine.quota.charges import compute_pod_charge, is_best_effort_amounts
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add_quantities, canonical_text, compare_quantities, negate_quantity
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import read_pod_amounts
from webhook.model.pods import Pod
from webhook.model.quota_scopes import has_scopes, quota_matches_pod

NOTHING = Quantity(0)


def release_pod_usage(
    quotas: Iterable[ResourceQuota], pod: Pod, claims: ClaimCharges = NO_CLAIM_CHARGES
) -> tuple[ResourceQuota, ...]:
    """The quotas once a stored pod is gone: those that count it have what it is charged back, down to nothing used.

    A pod with an amount that is no quantity was never charged, so nothing comes back.

    Args:
        quotas: Those of its namespace.
        pod: The pod.
        claims: What the claims are charged that go with it. A quota with scopes counts none.
    """
    try:
        holders = read_pod_amounts(pod, {}, {})
    except QuantityError:
        return tuple(quotas)
    overhead, best_effort = parse_resource_list(pod.spec.overhead), is_best_effort_amounts(holders)
    taken: list[ResourceQuota] = []
    for quota in quotas:
        used = parse_resource_list(quota.status.used)
        counted = quota_matches_pod(quota, pod, best_effort=best_effort)
        charged = compute_pod_charge(holders, overhead, used) if counted else {}
        made = {} if has_scopes(quota) else claims
        taken.append(_subtract_usage(quota, used, charged, made))
    return tuple(taken)


def _subtract_usage(
    quota: ResourceQuota, used: ResourceList, charged: ResourceList, made: ClaimCharges
) -> ResourceQuota:
    keys = [key for key in used if key in charged or key in made]
    each = {key: add_quantities(charged.get(key, NOTHING), Quantity(made.get(key, 0))) for key in keys}
    left = {key: canonical_text(_subtract_to_zero(used[key], amount)) for key, amount in each.items()}
    status = msgspec.structs.replace(quota.status, used={**quota.status.used, **left})
    return msgspec.structs.replace(quota, status=status)


def _subtract_to_zero(used: Quantity, charged: Quantity) -> Quantity:
    left = add_quantities(used, negate_quantity(charged))
    return left if compare_quantities(left, NOTHING) > 0 else NOTHING
