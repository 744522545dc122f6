"""What the user is told of quotas: the API server's words, and what they lack: who holds it, and what would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from webhook.engine.quota.admission import (
    QuotaExcess,
    QuotaRefusal,
    find_refused_claim,
    predict_quota_refusals,
    predict_resize_refusals,
    predict_update_refusals,
)
from webhook.engine.violations import Violation
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add_quantities, canonical_text, negate_quantity
from webhook.model.claims import ClaimContext, claim_unit
from webhook.model.defaulting import apply_defaults
from webhook.model.enums import PolicyMode
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import PodAmounts
from webhook.model.pods import Pod
from webhook.model.quantity import format_nano
from webhook.model.quota_keys import CountedResource, resource_of_quota_key
from webhook.model.remaining_quota import QuotaConsumer

MAX_CONSUMERS_SHOWN = 3
ASK_FOR_LESS = "Ask for at most what would fit"

QuotaConsumerLookup = Callable[[ResourceQuota, CountedResource], Sequence[QuotaConsumer]]
ClaimConsumerLookup = Callable[[str], Sequence[QuotaConsumer]]
"""Says whose claims fill a key of the namespace's quotas."""


def quota_violations(
    pod: Pod, holders: PodAmounts, quotas: Sequence[ResourceQuota], held: QuotaConsumerLookup
) -> Iterator[Violation]:
    """What the API server will say of a new pod because of its namespace's quotas.

    Args:
        pod: The pod.
        holders: Its amounts, all defaults in.
        quotas: The namespace's quotas.
        held: Says who holds what a quota counts.
    """
    yield from _quota_refusals_to_violations(predict_quota_refusals(pod, holders, quotas), quotas, held)


def update_quota_violations(
    old: Pod, pod: Pod, quotas: Sequence[ResourceQuota], held: QuotaConsumerLookup
) -> Iterator[Violation]:
    """What the API server will say of a stored pod that changes. See `quota_violations`."""
    try:
        before, after = apply_defaults(old, ()), apply_defaults(pod, ())
    except QuantityError:
        return
    yield from _quota_refusals_to_violations(predict_update_refusals(old, pod, before, after, quotas), quotas, held)


def resize_quota_violations(
    old: Pod, pod: Pod, quotas: Sequence[ResourceQuota], held: QuotaConsumerLookup
) -> Iterator[Violation]:
    """What the API server will say of a pod that gets other amounts while it runs. See `quota_violations`."""
    try:
        before, after = apply_defaults(old, ()), apply_defaults(pod, ())
    except QuantityError:
        return
    yield from _quota_refusals_to_violations(predict_resize_refusals(old, before, after, quotas), quotas, held)


def claim_quota_violations(
    pod: Pod, claiming: ClaimContext, quotas: Sequence[ResourceQuota], claimed: ClaimConsumerLookup
) -> Iterator[Violation]:
    """What the API server will say of a claim that is made for the pod later; only told, since there may be room then.

    Args:
        claiming: Templates and classes.
        claimed: See `ClaimConsumerLookup`.
    """
    refusal = find_refused_claim(pod, claiming, quotas)
    if refusal is None:
        return
    for found in refusal.quotas:
        message = (
            f"claim {refusal.claim} cannot be made, and the pod waits for it: {_claim_refusal_summary(found, claimed)}"
        )
        yield Violation("GPU-Q306", refusal.path, message, _quota_fix(found), at_most=PolicyMode.WARN)


def _claim_refusal_summary(refusal: QuotaRefusal, claimed: ClaimConsumerLookup) -> str:
    """What is asked for, used and left, each with its holders; then the API server's words, whose keys fill a line."""
    said = dict.fromkeys(_excess_figures(excess, claimed(excess.key)) for excess in refusal.excesses)
    return f"quota {refusal.quota}: {'; '.join(said)}; {refusal.message}"


def _excess_figures(excess: QuotaExcess, holding: Sequence[QuotaConsumer]) -> str:
    asked, used, hard = map(canonical_text, (excess.requested, excess.used, excess.hard))
    figures = f"{asked} {claim_unit(excess.key)} asked, {used} of {hard} used, {_remaining_text(excess)} would fit"
    return f"{figures}{_top_consumers(holding, ',')}"


def _quota_refusals_to_violations(
    found: Sequence[QuotaRefusal], quotas: Sequence[ResourceQuota], held: QuotaConsumerLookup
) -> Iterator[Violation]:
    by_name = {quota.metadata.name: quota for quota in quotas}
    for refusal in found:
        yield _quota_refusal_to_violation(refusal, by_name[refusal.quota], held)


def _quota_refusal_to_violation(refusal: QuotaRefusal, quota: ResourceQuota, held: QuotaConsumerLookup) -> Violation:
    if not refusal.excesses:
        return Violation(
            "GPU-Q301", ("spec",), refusal.message, "Write the amounts named, or ask the admin for a LimitRange."
        )

    def of_key(key: str) -> Sequence[QuotaConsumer]:
        what = resource_of_quota_key(key)
        return held(quota, what) if what else ()

    return Violation("GPU-Q301", ("spec",), _quota_message(refusal, of_key), _quota_fix(refusal))


def _quota_message(refusal: QuotaRefusal, of_key: ClaimConsumerLookup) -> str:
    """The API server's words, what would fit, and who holds the most of each key."""
    several = len(refusal.excesses) > 1
    held = (_top_consumers(of_key(one.key), f"; {one.key}" if several else ";") for one in refusal.excesses)
    return f"{refusal.message}; {_fitting_amounts(refusal.excesses)} would fit{''.join(held)}"


def _quota_fix(refusal: QuotaRefusal) -> str:
    room = any(_remaining_quantity(excess).unscaled > 0 for excess in refusal.excesses)
    if all(excess.fits_alone for excess in refusal.excesses):
        return (
            f"{ASK_FOR_LESS}, or wait until a holder ends." if room else "Wait until another pod of the namespace ends."
        )
    instead = "ask for the quota to be raised, or use another namespace."
    return f"{ASK_FOR_LESS}, {instead}" if room else f"No pod that ends makes room for it: {instead}"


def _fitting_amounts(excesses: Sequence[QuotaExcess]) -> str:
    if len(excesses) == 1:
        return _remaining_text(excesses[0])
    return ", ".join(f"{_remaining_text(excess)} {excess.key}" for excess in excesses)


def _remaining_quantity(excess: QuotaExcess) -> Quantity:
    return add_quantities(excess.hard, negate_quantity(excess.used))


def _remaining_text(excess: QuotaExcess) -> str:
    room = _remaining_quantity(excess)
    return canonical_text(room) if room.unscaled > 0 else "0"


def _top_consumers(holding: Sequence[QuotaConsumer], after: str) -> str:
    """Who holds the most, the largest first."""
    if not holding:
        return ""
    named = ", ".join(f"{one.name} ({format_nano(one.amount)})" for one in holding[:MAX_CONSUMERS_SHOWN])
    more = f" and {len(holding) - MAX_CONSUMERS_SHOWN} more" if len(holding) > MAX_CONSUMERS_SHOWN else ""
    return f"{after} held by {named}{more}"
