"""What the user is told of quotas: the API server's words, and what they lack: who holds it, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from webhook.engine.limitrange import Holders, arrived
from webhook.engine.quota.claiming import refused_claim
from webhook.engine.quota.refusing import Excess, QuotaRefusal, refusals, refusals_on_resize, refusals_on_update
from webhook.engine.remarks import Remark
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add, canonical, negated
from webhook.model.claims import Claiming, unit_of
from webhook.model.modes import Mode
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.quantity import written
from webhook.model.quota_keys import Counted, counted
from webhook.model.quota_room import Holding

MOST_HOLDERS = 3
ASK = "Ask for at most what would fit"

Held = Callable[[ResourceQuota, Counted], Sequence[Holding]]
Claimed = Callable[[str], Sequence[Holding]]
"""Says whose claims fill a key of the namespace's quotas."""


def quota_remarks(pod: Pod, holders: Holders, quotas: Sequence[ResourceQuota], held: Held) -> Iterator[Remark]:
    """What the API server will say of a new pod because of its namespace's quotas.

    Args:
        pod: The pod.
        holders: Its amounts, all defaults in.
        quotas: The namespace's quotas.
        held: Says who holds what a quota counts.
    """
    yield from _told(refusals(pod, holders, quotas), quotas, held)


def moved_remarks(old: Pod, pod: Pod, quotas: Sequence[ResourceQuota], held: Held) -> Iterator[Remark]:
    """What the API server will say of a stored pod that changes. See `quota_remarks`."""
    try:
        before, after = arrived(old, ()), arrived(pod, ())
    except QuantityError:
        return
    yield from _told(refusals_on_update(old, pod, before, after, quotas), quotas, held)


def resized_remarks(old: Pod, pod: Pod, quotas: Sequence[ResourceQuota], held: Held) -> Iterator[Remark]:
    """What the API server will say of a pod that gets other amounts while it runs. See `quota_remarks`."""
    try:
        before, after = arrived(old, ()), arrived(pod, ())
    except QuantityError:
        return
    yield from _told(refusals_on_resize(old, before, after, quotas), quotas, held)


def claim_remarks(pod: Pod, claiming: Claiming, quotas: Sequence[ResourceQuota], claimed: Claimed) -> Iterator[Remark]:
    """What the API server will say of a claim that is made for the pod later; only told, since there may be room then.

    Args:
        claiming: Templates and classes.
        claimed: See `Claimed`.
    """
    refusal = refused_claim(pod, claiming, quotas)
    if refusal is None:
        return
    for found in refusal.quotas:
        message = f"claim {refusal.claim} cannot be made, and the pod waits for it: {_in_short(found, claimed)}"
        yield Remark("GPU-Q306", refusal.path, message, _fix(found), at_most=Mode.WARN)


def _in_short(refusal: QuotaRefusal, claimed: Claimed) -> str:
    """What is asked for, used and left, each with its holders; then the API server's words, whose keys fill a line."""
    said = dict.fromkeys(_figures(excess, claimed(excess.key)) for excess in refusal.excesses)
    return f"quota {refusal.quota}: {'; '.join(said)}; {refusal.words}"


def _figures(excess: Excess, holding: Sequence[Holding]) -> str:
    asked, used, hard = map(canonical, (excess.asked, excess.used, excess.hard))
    figures = f"{asked} {unit_of(excess.key)} asked, {used} of {hard} used, {_left(excess)} would fit"
    return f"{figures}{_held_by(holding, ',')}"


def _told(found: Sequence[QuotaRefusal], quotas: Sequence[ResourceQuota], held: Held) -> Iterator[Remark]:
    by_name = {quota.metadata.name: quota for quota in quotas}
    for refusal in found:
        yield _remark(refusal, by_name[refusal.quota], held)


def _remark(refusal: QuotaRefusal, quota: ResourceQuota, held: Held) -> Remark:
    if not refusal.excesses:
        return Remark(
            "GPU-Q301", ("spec",), refusal.words, "Write the amounts named, or ask the admin for a LimitRange."
        )

    def of_key(key: str) -> Sequence[Holding]:
        what = counted(key)
        return held(quota, what) if what else ()

    return Remark("GPU-Q301", ("spec",), _in_full(refusal, of_key), _fix(refusal))


def _in_full(refusal: QuotaRefusal, of_key: Claimed) -> str:
    """The API server's words, what would fit, and who holds the most of each key."""
    several = len(refusal.excesses) > 1
    held = (_held_by(of_key(one.key), f"; {one.key}" if several else ";") for one in refusal.excesses)
    return f"{refusal.words}; {_fitting(refusal.excesses)} would fit{''.join(held)}"


def _fix(refusal: QuotaRefusal) -> str:
    room = any(_room(excess).unscaled > 0 for excess in refusal.excesses)
    if all(excess.fits_alone for excess in refusal.excesses):
        return f"{ASK}, or wait until a holder ends." if room else "Wait until another pod of the namespace ends."
    instead = "ask for the quota to be raised, or use another namespace."
    return f"{ASK}, {instead}" if room else f"No pod that ends makes room for it: {instead}"


def _fitting(excesses: Sequence[Excess]) -> str:
    if len(excesses) == 1:
        return _left(excesses[0])
    return ", ".join(f"{_left(excess)} {excess.key}" for excess in excesses)


def _room(excess: Excess) -> Quantity:
    return add(excess.hard, negated(excess.used))


def _left(excess: Excess) -> str:
    room = _room(excess)
    return canonical(room) if room.unscaled > 0 else "0"


def _held_by(holding: Sequence[Holding], after: str) -> str:
    """Who holds the most, the largest first."""
    if not holding:
        return ""
    named = ", ".join(f"{one.name} ({written(one.amount)})" for one in holding[:MOST_HOLDERS])
    more = f" and {len(holding) - MOST_HOLDERS} more" if len(holding) > MOST_HOLDERS else ""
    return f"{after} held by {named}{more}"
