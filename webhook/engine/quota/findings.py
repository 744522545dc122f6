"""Word the rejections by quotas: the API server's message, what would fit, and the largest consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.quota.admission import (
    QuotaExcess,
    QuotaRefusal,
    find_refused_claim,
    predict_quota_refusals,
    predict_resize_refusals,
    predict_update_refusals,
)
from webhook.engine.quota.charges import NO_CLAIM_CHARGES, ClaimCharges
from webhook.errors import QuantityError
from webhook.model.apimachinery import Quantity, add_quantities, canonical_text, negate_quantity
from webhook.model.claims import NO_CLAIM, ClaimContext, ClaimSpec, claim_unit
from webhook.model.defaulting import apply_defaults
from webhook.model.enums import PolicyMode
from webhook.model.limit_ranges import NamespaceLimitRanges
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import PodAmounts
from webhook.model.pods import Pod
from webhook.model.quantity import format_nano
from webhook.model.quota_matching import CountedResource, resource_of_quota_key
from webhook.model.remaining_quota import QuotaConsumer

MAX_CONSUMERS_SHOWN = 3
REQUEST_LESS = "Request at most what would fit"

QuotaConsumerLookup = Callable[[ResourceQuota, CountedResource], Sequence[QuotaConsumer]]
"""Returns the pods that use a resource which a quota counts, the largest first."""

DefaultSourceText = Callable[[str, str], str]
"""Returns which LimitRanges set parts of a pod's total of a resource, limits or requests, as the end of a message."""

ClaimConsumerLookup = Callable[[str], Sequence[QuotaConsumer]]
"""Returns the pods whose claims count under a key, the largest first."""


def quota_violations(
    pod: Pod,
    amounts: PodAmounts,
    quotas: Sequence[ResourceQuota],
    lookup: QuotaConsumerLookup,
    sources: DefaultSourceText = lambda _resource, _side: "",
) -> Iterator[PolicyFinding]:
    """Yield the rejections of a new pod by its namespace's quotas; `amounts` are those after all defaults."""

    def origin(counted: CountedResource) -> str:
        return sources(*counted) + _overhead_text(pod, counted)

    yield from _refusal_findings(predict_quota_refusals(pod, amounts, quotas), quotas, lookup, origin)


def update_quota_violations(
    old: Pod,
    pod: Pod,
    sub_resource: str,
    quotas: Sequence[ResourceQuota],
    lookup: QuotaConsumerLookup,
    ranges: NamespaceLimitRanges,
) -> Iterator[PolicyFinding]:
    """Yield the rejections of an update or, with sub-resource "resize", of a resize. See `quota_violations`.

    LimitRanges set nothing then.
    """
    try:
        before, after = (apply_defaults(each, ranges.without_ranges()) for each in (old, pod))
    except QuantityError:
        return
    if sub_resource == "resize":
        yield from _refusal_findings(predict_resize_refusals(old, before, after, quotas), quotas, lookup)
    elif not sub_resource:
        yield from _refusal_findings(predict_update_refusals(old, pod, before, after, quotas), quotas, lookup)


def claim_quota_violations(
    pod: Pod,
    claiming: ClaimContext,
    quotas: Sequence[ResourceQuota],
    lookup: ClaimConsumerLookup,
    of_scheduler: ClaimSpec = NO_CLAIM,
    own: ClaimCharges = NO_CLAIM_CHARGES,
) -> Iterator[PolicyFinding]:
    """Yield the rejections of a claim created for the pod later: warnings, since quota may be released by then."""
    refusal = find_refused_claim(pod, claiming, quotas, of_scheduler, own)
    if refusal is None:
        return
    for one in refusal.quotas:
        # Figures first, the API server's message last, since its keys fill a line.
        figures = "; ".join(dict.fromkeys(_excess_figures(excess, lookup(excess.key)) for excess in one.excesses))
        message = (
            f"{refusal.claim} cannot be created, and the pod stays Pending: quota {one.quota}: {figures}; {one.message}"
        )
        yield PolicyFinding("GPU-Q306", refusal.path, message, _quota_fix(one), at_most=PolicyMode.WARN)


def _excess_figures(excess: QuotaExcess, consumers: Sequence[QuotaConsumer]) -> str:
    requested, used, hard = map(canonical_text, (excess.requested, excess.used, excess.hard))
    unit, remaining = claim_unit(excess.key), _remaining_text(excess)
    figures = f"{requested} {unit} requested, {used} of {hard} used, {remaining} would fit"
    return f"{figures}{_top_consumers(consumers, ',')}"


def _refusal_findings(
    refusals: Sequence[QuotaRefusal],
    quotas: Sequence[ResourceQuota],
    lookup: QuotaConsumerLookup,
    origin: Callable[[CountedResource], str] = lambda _counted: "",
) -> Iterator[PolicyFinding]:
    by_name = {quota.metadata.name: quota for quota in quotas}
    for refusal in refusals:
        if not refusal.excesses:
            message, fix = refusal.message, "Set the missing amounts, or ask the admin for a LimitRange."
        else:
            message, fix = _quota_message(refusal, by_name[refusal.quota], lookup, origin), _quota_fix(refusal)
        yield PolicyFinding("GPU-Q301", ("spec",), message, fix)


def _quota_message(
    refusal: QuotaRefusal, quota: ResourceQuota, lookup: QuotaConsumerLookup, origin: Callable[[CountedResource], str]
) -> str:
    several = len(refusal.excesses) > 1
    fitting = [_remaining_text(one) + (f" {one.key}" if several else "") for one in refusal.excesses]
    message = f"{refusal.message}; {', '.join(fitting)} would fit"
    for excess in refusal.excesses:
        if counted := resource_of_quota_key(excess.key):
            message += _top_consumers(lookup(quota, counted), f"; {excess.key}" if several else ";") + origin(counted)
    return message


def _overhead_text(pod: Pod, counted: CountedResource) -> str:
    """Return what the pod's RuntimeClass adds to a total, as the end of a message; "" if nothing."""
    amount, name = pod.spec.overhead.get(counted.resource), pod.spec.runtime_class_name
    return f"; RuntimeClass {name} adds {amount} {counted.resource}" if amount and name else ""


def _quota_fix(refusal: QuotaRefusal) -> str:
    some_left = any(_remaining_quantity(excess).unscaled > 0 for excess in refusal.excesses)
    if all(excess.fits_alone for excess in refusal.excesses):
        if some_left:
            return f"{REQUEST_LESS}, or wait until another pod ends."
        return "Wait until another pod of the namespace ends."
    instead = "ask for a higher quota, or use another namespace."
    return f"{REQUEST_LESS}, {instead}" if some_left else f"Ending other pods is not enough: {instead}"


def _remaining_quantity(excess: QuotaExcess) -> Quantity:
    return add_quantities(excess.hard, negate_quantity(excess.used))


def _remaining_text(excess: QuotaExcess) -> str:
    remaining = _remaining_quantity(excess)
    return canonical_text(remaining) if remaining.unscaled > 0 else "0"


def _top_consumers(consumers: Sequence[QuotaConsumer], prefix: str) -> str:
    if not consumers:
        return ""
    named = ", ".join(f"{one.name} ({format_nano(one.amount)})" for one in consumers[:MAX_CONSUMERS_SHOWN])
    more = f" and {len(consumers) - MAX_CONSUMERS_SHOWN} more" if len(consumers) > MAX_CONSUMERS_SHOWN else ""
    return f"{prefix} used by {named}{more}"
