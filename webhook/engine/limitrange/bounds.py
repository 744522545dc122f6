"""LimitRanger's validating step, to the letter.

Source: `plugin/pkg/admission/limitranger`, PodValidateLimitFunc. Every container is held to the bounds of type
Container, the pod's total to those of type Pod; bounds for claims are not about pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, PodAmounts, pod_total
from webhook.model.apimachinery import MAX_MILLI, ZERO, Quantity, canonical_text, milli_value, whole_value
from webhook.model.paths import FieldPath
from webhook.model.ranges import CONTAINER, RangeBound, ParsedLimitRange


class LimitRangeRefusal(NamedTuple):
    """One reason why LimitRanger refuses a pod.

    Attributes:
        range: Name of the LimitRange.
        path: The container, or ("spec",) for the pod as a whole.
        words: The API server's own words.
    """

    limit_range: str
    bound: RangeBound
    path: FieldPath
    message: str


def predict_limit_range_refusals(holders: PodAmounts, ranges: Iterable[ParsedLimitRange]) -> list[LimitRangeRefusal]:
    """Everything that LimitRanger finds; the API server tells what the first LimitRange finds, in any order."""
    found: list[LimitRangeRefusal] = []
    for limit_range in ranges:
        for bound in limit_range.bounds:
            for path, limit, request in _bounded_amounts(holders, bound):
                words = _bound_error(bound, limit, request)
                if words is not None:
                    found.append(LimitRangeRefusal(limit_range.name, bound, path, words))
    return found


def messages_of_limit_range(found: Iterable[LimitRangeRefusal], name: str) -> list[str]:
    """What one LimitRange says, each sentence once."""
    return list(dict.fromkeys(refusal.message for refusal in found if refusal.limit_range == name))


def _bounded_amounts(holders: PodAmounts, bound: RangeBound) -> Iterator[tuple[FieldPath, Quantity | None, Quantity | None]]:
    """What a bound is about: place, limit and request."""
    name = bound.resource
    if bound.type != CONTAINER:
        yield ("spec",), pod_total(holders, name, LIMITS), pod_total(holders, name, REQUESTS)
        return
    for holder in holders.all_containers:
        yield holder.path, holder.limits.get(name), holder.requests.get(name)


def _bound_error(bound: RangeBound, limit: Quantity | None, request: Quantity | None) -> str | None:
    """What the API server says about a bound that does not hold; None where it holds."""
    if bound.kind == "maxLimitRequestRatio":
        return _ratio_error(bound, limit, request)
    asked, most, enforced = _to_common_unit(request or ZERO, limit or ZERO, bound.amount)
    if bound.kind == "min":
        head = f"minimum {bound.resource} usage per {bound.type} is {canonical_text(bound.amount)}"
        if request is None:
            return f"{head}.  No request is specified"
        if asked < enforced:
            return f"{head}, but request is {canonical_text(request)}"
        return f"{head}, but limit is {canonical_text(limit)}" if limit is not None and most < enforced else None
    head = f"maximum {bound.resource} usage per {bound.type} is {canonical_text(bound.amount)}"
    if limit is None:
        return f"{head}.  No limit is specified"
    if most > enforced:
        return f"{head}, but limit is {canonical_text(limit)}"
    return f"{head}, but request is {canonical_text(request)}" if request is not None and asked > enforced else None


def _ratio_error(bound: RangeBound, limit: Quantity | None, request: Quantity | None) -> str | None:
    head = f"{bound.resource} max limit to request ratio per {bound.type} is {canonical_text(bound.amount)}"
    asked, most, _ = _to_common_unit(request or ZERO, limit or ZERO, bound.amount)
    if request is None or not asked:
        return f"{head}, but no request is specified or request is 0"
    if limit is None or not most:
        return f"{head}, but no limit is specified or limit is 0"
    # The API server reckons this one in floats; so that the answer is its answer, so do we.
    ratio = float(most) / float(asked)
    exact = whole_value(bound.amount) <= MAX_MILLI
    held, shown = (
        (float(milli_value(bound.amount)), ratio * 1000) if exact else (float(whole_value(bound.amount)), ratio)
    )
    return f"{head}, but provided ratio is {ratio:f}" if shown > held else None


def _to_common_unit(request: Quantity, limit: Quantity, enforced: Quantity) -> tuple[int, int, int]:
    """Thousandths where all three fit, else whole units rounded up."""
    values = whole_value(request), whole_value(limit), whole_value(enforced)
    if max(values) <= MAX_MILLI:
        return milli_value(request), milli_value(limit), milli_value(enforced)
    return values
