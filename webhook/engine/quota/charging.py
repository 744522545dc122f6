"""What a pod is charged for, to the letter.

As LimitRanger reckons, with huge pages of the pod as a whole and with overhead.
Source: `pkg/quota/v1/evaluator/core` and `k8s.io/component-helpers/resource`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webhook.engine.limitrange import Holders
from webhook.engine.limitrange.holding import LIMITS, Holder, in_containers
from webhook.model.apimachinery import Quantity, add
from webhook.model.quota_keys import Counted, counted
from webhook.model.quota_room import MUST_BE_NAMED
from webhook.model.ranges import Amounts
from webhook.model.resource_names import is_for_pods

ONE = Quantity(1)


def charge(holders: Holders, overhead: Amounts, keys: Iterable[str]) -> Amounts:
    """What the keys of a quota are charged, those that come to nothing left out."""
    charged = Amounts()
    for key in keys:
        what = counted(key)
        amount = _amount(holders, overhead, what) if what else None
        if amount is not None and amount.unscaled:
            charged[key] = amount
    return charged


def _amount(holders: Holders, overhead: Amounts, what: Counted) -> Quantity | None:
    resource, side = what
    if not resource:
        return ONE
    whole = holders.whole
    if whole is not None and resource in whole.side(side) and is_for_pods(resource):
        amount: Quantity | None = whole.side(side)[resource]
    else:
        amount = in_containers(holders, resource, side)
    return _with_overhead(amount, overhead.get(resource), side)


def _with_overhead(amount: Quantity | None, overhead: Quantity | None, side: str) -> Quantity | None:
    if overhead is None or (side == LIMITS and (amount is None or not amount.unscaled)):
        return amount
    return overhead if amount is None else add(amount, overhead)


def unnamed(holders: Holders, keys: Iterable[str]) -> Mapping[str, list[str]]:
    """Names of containers by the key that a quota makes them name, and they do not: CPU and memory only."""
    if holders.whole is not None and any(map(is_for_pods, holders.whole.limits | holders.whole.requests)):
        return {}
    missing: dict[str, list[str]] = {}
    for key in sorted(set(keys).intersection(MUST_BE_NAMED)):
        names = {holder.name for holder in holders.each if not _names(holder, key)}
        if names:
            missing[key] = sorted(names)
    return missing


def _names(holder: Holder, key: str) -> bool:
    what = counted(key)
    return what is not None and what.resource in holder.side(what.side)


def is_best_effort(holders: Holders) -> bool:
    """Does nothing of the pod ask for CPU or memory? What it says as a whole, where it says anything, stands alone."""
    each = holders.each if holders.whole is None else (holders.whole,)
    return not any(
        name in side and side[name].unscaled > 0
        for holder in each
        for side in (holder.limits, holder.requests)
        for name in ("cpu", "memory")
    )
