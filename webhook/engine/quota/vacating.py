"""Quotas without a pod that they count."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from webhook.engine.limitrange.holding import Holders, holders_of
from webhook.engine.quota.charging import charge, is_best_effort
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add, canonical, compare, negated
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.ranges import amounts_in
from webhook.model.scopes import in_scope

NOTHING = Quantity(0)


def vacated(quotas: Iterable[ResourceQuota], pod: Pod) -> tuple[ResourceQuota, ...]:
    """The quotas once a stored pod is gone: those that count it have what it is charged back, down to nothing used.

    A pod with an amount that is no quantity was never charged, so nothing comes back.
    """
    try:
        holders = holders_of(pod, {}, {})
    except QuantityError:
        return tuple(quotas)
    best_effort = is_best_effort(holders)
    return tuple(
        _without(quota, pod, holders) if in_scope(quota, pod, best_effort=best_effort) else quota for quota in quotas
    )


def _without(quota: ResourceQuota, pod: Pod, holders: Holders) -> ResourceQuota:
    used = amounts_in(quota.status.used)
    charged = charge(holders, amounts_in(pod.spec.overhead), used)
    left = {key: canonical(_less(used[key], amount)) for key, amount in charged.items()}
    status = msgspec.structs.replace(quota.status, used={**quota.status.used, **left})
    return msgspec.structs.replace(quota, status=status)


def _less(used: Quantity, charged: Quantity) -> Quantity:
    left = add(used, negated(charged))
    return left if compare(left, NOTHING) > 0 else NOTHING
