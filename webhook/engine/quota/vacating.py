"""Quotas without a pod that they count."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from webhook.engine.limitrange.holding import holders_of
from webhook.engine.quota.charging import charge, is_best_effort
from webhook.engine.quota.claiming import NONE, Charge
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add, canonical, compare, negated
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.ranges import Amounts, amounts_in
from webhook.model.scopes import in_scope, is_scoped

NOTHING = Quantity(0)


def vacated(quotas: Iterable[ResourceQuota], pod: Pod, claims: Charge = NONE) -> tuple[ResourceQuota, ...]:
    """The quotas once a stored pod is gone: those that count it have what it is charged back, down to nothing used.

    A pod with an amount that is no quantity was never charged, so nothing comes back.

    Args:
        quotas: Those of its namespace.
        pod: The pod.
        claims: What the claims are charged that go with it. A quota with scopes counts none.
    """
    try:
        holders = holders_of(pod, {}, {})
    except QuantityError:
        return tuple(quotas)
    overhead, best_effort = amounts_in(pod.spec.overhead), is_best_effort(holders)
    taken: list[ResourceQuota] = []
    for quota in quotas:
        used = amounts_in(quota.status.used)
        counted = in_scope(quota, pod, best_effort=best_effort)
        charged = charge(holders, overhead, used) if counted else {}
        made = {} if is_scoped(quota) else claims
        taken.append(_without(quota, used, charged, made))
    return tuple(taken)


def _without(quota: ResourceQuota, used: Amounts, charged: Amounts, made: Charge) -> ResourceQuota:
    keys = [key for key in used if key in charged or key in made]
    each = {key: add(charged.get(key, NOTHING), Quantity(made.get(key, 0))) for key in keys}
    left = {key: canonical(_less(used[key], amount)) for key, amount in each.items()}
    status = msgspec.structs.replace(quota.status, used={**quota.status.used, **left})
    return msgspec.structs.replace(quota, status=status)


def _less(used: Quantity, charged: Quantity) -> Quantity:
    left = add(used, negated(charged))
    return left if compare(left, NOTHING) > 0 else NOTHING
