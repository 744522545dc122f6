"""What a pod is charged for, to the letter.

As LimitRanger reckons, with huge pages of the pod as a whole and with overhead.
Source: `pkg/quota/v1/evaluator/core` and `k8s.io/component-helpers/resource`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.model.apimachinery import Quantity, add_quantities
from webhook.model.limit_ranges import ResourceList
from webhook.model.pod_amounts import LIMITS, LimitsAndRequests, PodAmounts, sum_containers
from webhook.model.quota_keys import CountedResource, resource_of_quota_key
from webhook.model.remaining_quota import REQUIRED_KEYS
from webhook.model.resource_names import is_pod_level_resource

ONE_POD = Quantity(1)


def compute_pod_charge(holders: PodAmounts, overhead: ResourceList, keys: Iterable[str]) -> ResourceList:
    """What the keys of a quota are charged, those that come to nothing left out."""
    charged = ResourceList()
    for key in keys:
        what = resource_of_quota_key(key)
        amount = _charged_amount(holders, overhead, what) if what else None
        if amount is not None and amount.unscaled:
            charged[key] = amount
    return charged


def _charged_amount(holders: PodAmounts, overhead: ResourceList, what: CountedResource) -> Quantity | None:
    resource, side = what
    if not resource:
        return ONE_POD
    whole = holders.pod_level
    if whole is not None and resource in whole.amounts(side) and is_pod_level_resource(resource):
        amount: Quantity | None = whole.amounts(side)[resource]
    else:
        amount = sum_containers(holders, resource, side)
    return _add_overhead(amount, overhead.get(resource), side)


def _add_overhead(amount: Quantity | None, overhead: Quantity | None, side: str) -> Quantity | None:
    if overhead is None or (side == LIMITS and (amount is None or not amount.unscaled)):
        return amount
    return overhead if amount is None else add_quantities(amount, overhead)


def missing_required_resources(holders: PodAmounts, keys: Iterable[str]) -> Mapping[str, list[str]]:
    """Names of containers by the key that a quota makes them name, and they do not: CPU and memory only."""
    if holders.pod_level is not None and any(
        map(is_pod_level_resource, holders.pod_level.limits | holders.pod_level.requests)
    ):
        return {}
    missing: dict[str, list[str]] = {}
    for key in sorted(set(keys).intersection(REQUIRED_KEYS)):
        names = {holder.name for holder in holders.all_containers if not _names_key_resource(holder, key)}
        if names:
            missing[key] = sorted(names)
    return missing


def _names_key_resource(holder: LimitsAndRequests, key: str) -> bool:
    what = resource_of_quota_key(key)
    return what is not None and what.resource in holder.amounts(what.side)


def is_best_effort_amounts(holders: PodAmounts) -> bool:
    """Does nothing of the pod ask for CPU or memory? What it says as a whole, where it says anything, stands alone."""
    each = holders.all_containers if holders.pod_level is None else (holders.pod_level,)
    return not any(
        name in side and side[name].unscaled > 0
        for holder in each
        for side in (holder.limits, holder.requests)
        for name in ("cpu", "memory")
    )
