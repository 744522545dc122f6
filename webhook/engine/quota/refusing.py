"""What the quota plugin would say of a pod, in its own words.

The plugin runs last and is exact; this predicts it.
Source: `k8s.io/apiserver/pkg/admission/plugin/resourcequota`, CheckRequest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.limitrange import Holders
from webhook.engine.quota.charging import charge, is_best_effort, unnamed
from webhook.model.apimachinery import Quantity, add, canonical, compare, negated
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.quota_keys import counted
from webhook.model.ranges import Amounts, amounts_in
from webhook.model.scopes import in_scope

NOTHING = Quantity(0)
NONE: Mapping[str, Quantity] = {}
Enforced = tuple[ResourceQuota, Amounts]
"""A quota that holds a pod, with its ceilings."""


class Excess(NamedTuple):
    """One key of a quota that a pod would take too much of.

    Attributes:
        own: What the pod holds already of what is used.
    """

    key: str
    asked: Quantity
    used: Quantity
    hard: Quantity
    own: Quantity = NOTHING

    @property
    def fits_alone(self) -> bool:
        """Would there be room if nobody else held anything?"""
        return compare(add(self.own, self.asked), self.hard) <= 0


class QuotaRefusal(NamedTuple):
    """Why one quota refuses a pod.

    Attributes:
        words: The API server's own words.
        excesses: The keys that would be exceeded; none where the quota objects to something else.
    """

    quota: str
    words: str
    excesses: tuple[Excess, ...] = ()


def refusals(pod: Pod, holders: Holders, quotas: Sequence[ResourceQuota]) -> list[QuotaRefusal]:
    """Every quota that refuses a new pod, those that object to its form first, as the API server asks them first.

    Args:
        pod: What scopes look at besides amounts.
        holders: Its amounts, all defaults in.
    """
    holding = _holding(pod, quotas, best_effort=is_best_effort(holders))
    return _objecting(holders, holding) + _without_room(holders, amounts_in(pod.spec.overhead), holding)


def refusals_on_update(
    old: Pod, pod: Pod, before: Holders, holders: Holders, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Every quota that refuses a changed pod: only where it gets or loses a deadline, and so moves between quotas.

    Each that holds it now may object to its form, also one that came after it. A quota that counted it before charges
    nothing, since a pod's amounts do not change; resizes apart.
    """
    if _ends(old) == _ends(pod):
        return []
    best_effort = is_best_effort(before)
    holding = _holding(pod, quotas, best_effort=best_effort)
    new = [one for one in holding if not in_scope(one[0], old, best_effort=best_effort)]
    return _objecting(holders, holding) + _without_room(holders, amounts_in(pod.spec.overhead), new)


def refusals_on_resize(
    pod: Pod, before: Holders, after: Holders, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Every quota that refuses a running pod its new amounts: it is charged for what is more than before.

    Each may object to its form as well, also one that came after the pod.
    """
    holding = _holding(pod, quotas, best_effort=is_best_effort(before))
    overhead = amounts_in(pod.spec.overhead)
    outgrown = [found for one in holding if (found := _outgrown(before, after, overhead, *one))]
    return _objecting(after, holding) + outgrown


def _holding(pod: Pod, quotas: Sequence[ResourceQuota], *, best_effort: bool) -> list[Enforced]:
    """The quotas that hold a pod, in their order."""
    return [(quota, enforced(quota)) for quota in quotas if in_scope(quota, pod, best_effort=best_effort)]


def _objecting(holders: Holders, holding: Sequence[Enforced]) -> list[QuotaRefusal]:
    return [found for one in holding if (found := _formal(holders, *one))]


def _without_room(holders: Holders, overhead: Amounts, holding: Sequence[Enforced]) -> list[QuotaRefusal]:
    charged = [(quota, hard, charge(holders, overhead, hard)) for quota, hard in holding]
    return [found for one in charged if (found := _refusal(*one))]


def _outgrown(
    before: Holders, after: Holders, overhead: Amounts, quota: ResourceQuota, hard: Amounts
) -> QuotaRefusal | None:
    had, asked = charge(before, overhead, hard), charge(after, overhead, hard)
    more = {key: add(amount, negated(had.get(key, NOTHING))) for key, amount in asked.items()}
    return _refusal(quota, hard, {key: amount for key, amount in more.items() if amount.unscaled > 0}, had)


def _ends(pod: Pod) -> bool:
    return pod.spec.active_deadline_seconds is not None


def enforced(quota: ResourceQuota) -> Amounts:
    """The ceilings that are enforced: those counted; of a quota that is not counted yet, those written."""
    hard = amounts_in(quota.status.hard or quota.spec.hard)
    return {key: amount for key, amount in hard.items() if counted(key)}


def _formal(holders: Holders, quota: ResourceQuota, hard: Amounts) -> QuotaRefusal | None:
    missing = unnamed(holders, hard)
    if missing:
        each = "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())
        return QuotaRefusal(quota.metadata.name, f"failed quota: {quota.metadata.name}: must specify {each}")
    if not hard.keys() <= quota.status.used.keys():
        words = f"status unknown for quota: {quota.metadata.name}, resources: {','.join(sorted(hard))}"
        return QuotaRefusal(quota.metadata.name, words)
    return None


def _refusal(
    quota: ResourceQuota, hard: Amounts, charged: Amounts, own: Mapping[str, Quantity] = NONE
) -> QuotaRefusal | None:
    """The refusal of a quota that has no room for what is charged."""
    return exceeded(quota.metadata.name, charged, amounts_in(quota.status.used), hard, own)


def exceeded(
    name: str, charged: Amounts, used: Amounts, hard: Amounts, own: Mapping[str, Quantity] = NONE
) -> QuotaRefusal | None:
    """The refusal of a quota that has no room for what is charged under its keys; `own` as of `Excess`."""
    found = [
        Excess(key, asked, used[key], hard[key], own.get(key, NOTHING))
        for key, asked in charged.items()
        if key in used and compare(add(used[key], asked), hard[key]) > 0
    ]
    if not found:
        return None
    found.sort()
    requested = _listed((excess.key, excess.asked) for excess in found)
    taken = _listed((excess.key, excess.used) for excess in found)
    limited = _listed((excess.key, excess.hard) for excess in found)
    words = f"exceeded quota: {name}, requested: {requested}, used: {taken}, limited: {limited}"
    return QuotaRefusal(name, words, tuple(found))


def _listed(amounts: Iterable[tuple[str, Quantity]]) -> str:
    return ",".join(f"{key}={canonical(amount)}" for key, amount in amounts)
