"""What the user is told of quotas: the API server's words, and what they lack: who holds it, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from webhook.engine.limitrange import Holders, arrived
from webhook.engine.quota.refusing import Excess, QuotaRefusal, refusals, refusals_on_update
from webhook.engine.remarks import Remark
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add, canonical, negated
from webhook.model.effective import effective
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod, name_of
from webhook.model.quantity import written
from webhook.model.quota_keys import counted
from webhook.model.scopes import in_scope

MOST_HOLDERS = 3


def quota_remarks(
    pod: Pod, holders: Holders, quotas: Sequence[ResourceQuota], others: Sequence[Pod]
) -> Iterator[Remark]:
    """What the API server will say of a new pod because of its namespace's quotas.

    Args:
        pod: The pod.
        holders: Its amounts, all defaults in.
        quotas: The namespace's quotas.
        others: The namespace's pods that hold resources.
    """
    yield from _told(refusals(pod, holders, quotas), quotas, others)


def moved_remarks(old: Pod, pod: Pod, quotas: Sequence[ResourceQuota], others: Sequence[Pod]) -> Iterator[Remark]:
    """What the API server will say of a stored pod that changes. See `quota_remarks`."""
    try:
        before, after = arrived(old, ()), arrived(pod, ())
    except QuantityError:
        return
    yield from _told(refusals_on_update(old, pod, before, after, quotas), quotas, others)


def _told(found: Sequence[QuotaRefusal], quotas: Sequence[ResourceQuota], others: Sequence[Pod]) -> Iterator[Remark]:
    by_name = {quota.metadata.name: quota for quota in quotas}
    for refusal in found:
        yield _remark(refusal, by_name[refusal.quota], others)


def _remark(refusal: QuotaRefusal, quota: ResourceQuota, others: Sequence[Pod]) -> Remark:
    if not refusal.excesses:
        return Remark(
            "GPU-Q301", ("spec",), refusal.words, "Write the amounts named, or ask the admin for a LimitRange."
        )
    message = f"{refusal.words}; {_fitting(refusal.excesses)} would fit{_held_by(refusal.excesses[0], quota, others)}"
    if any(_room(excess).unscaled > 0 for excess in refusal.excesses):
        return Remark("GPU-Q301", ("spec",), message, "Ask for at most what would fit, or wait until a holder ends.")
    return Remark("GPU-Q301", ("spec",), message, "Wait until another pod of the namespace ends.")


def _fitting(excesses: Sequence[Excess]) -> str:
    if len(excesses) == 1:
        return _left(excesses[0])
    return ", ".join(f"{_left(excess)} {excess.key}" for excess in excesses)


def _room(excess: Excess) -> Quantity:
    return add(excess.hard, negated(excess.used))


def _left(excess: Excess) -> str:
    room = _room(excess)
    return canonical(room) if room.unscaled > 0 else "0"


def _held_by(excess: Excess, quota: ResourceQuota, others: Sequence[Pod]) -> str:
    """Who holds the most of a key, the largest first; the same name counts once for each pod."""
    what = counted(excess.key)
    if what is None or not what.resource:
        return ""
    held = [
        (effective(pod, what.resource, limits=what.side == "limits"), pod) for pod in others if in_scope(quota, pod)
    ]
    holding = sorted(((amount, name_of(pod)) for amount, pod in held if amount), key=lambda one: (-one[0], one[1]))
    if not holding:
        return ""
    named = ", ".join(f"{name} ({written(amount)})" for amount, name in holding[:MOST_HOLDERS])
    more = f" and {len(holding) - MOST_HOLDERS} more" if len(holding) > MOST_HOLDERS else ""
    return f"; held by {named}{more}"
