"""LimitRanger's validating step, to the letter.

Source: `plugin/pkg/admission/limitranger`, PodValidateLimitFunc. Every container is held to the bounds of type
Container, the pod's total to those of type Pod; bounds for claims are not about pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, Holders, total
from webhook.model.apimachinery import MAX_MILLI, ZERO, Quantity, canonical, milli_value_of, value_of
from webhook.model.paths import Path
from webhook.model.ranges import CONTAINER, Bound, Range


class Refusal(NamedTuple):
    """One reason why LimitRanger refuses a pod.

    Attributes:
        range: Name of the LimitRange.
        path: The container, or ("spec",) for the pod as a whole.
        words: The API server's own words.
    """

    range: str
    bound: Bound
    path: Path
    words: str


def refusals(holders: Holders, ranges: Iterable[Range]) -> list[Refusal]:
    """Everything that LimitRanger finds; the API server tells what the first LimitRange finds, in any order."""
    found: list[Refusal] = []
    for limit_range in ranges:
        for bound in limit_range.bounds:
            for path, limit, request in _held_to(holders, bound):
                words = _broken(bound, limit, request)
                if words is not None:
                    found.append(Refusal(limit_range.name, bound, path, words))
    return found


def said_by(found: Iterable[Refusal], name: str) -> list[str]:
    """What one LimitRange says, each sentence once."""
    return list(dict.fromkeys(refusal.words for refusal in found if refusal.range == name))


def _held_to(holders: Holders, bound: Bound) -> Iterator[tuple[Path, Quantity | None, Quantity | None]]:
    """What a bound is about: place, limit and request."""
    name = bound.resource
    if bound.type != CONTAINER:
        yield ("spec",), total(holders, name, LIMITS), total(holders, name, REQUESTS)
        return
    for holder in holders.each:
        yield holder.path, holder.limits.get(name), holder.requests.get(name)


def _broken(bound: Bound, limit: Quantity | None, request: Quantity | None) -> str | None:
    """What the API server says about a bound that does not hold; None where it holds."""
    if bound.kind == "maxLimitRequestRatio":
        return _ratio(bound, limit, request)
    asked, most, enforced = _in_one_unit(request or ZERO, limit or ZERO, bound.amount)
    if bound.kind == "min":
        head = f"minimum {bound.resource} usage per {bound.type} is {canonical(bound.amount)}"
        if request is None:
            return f"{head}.  No request is specified"
        if asked < enforced:
            return f"{head}, but request is {canonical(request)}"
        return f"{head}, but limit is {canonical(limit)}" if limit is not None and most < enforced else None
    head = f"maximum {bound.resource} usage per {bound.type} is {canonical(bound.amount)}"
    if limit is None:
        return f"{head}.  No limit is specified"
    if most > enforced:
        return f"{head}, but limit is {canonical(limit)}"
    return f"{head}, but request is {canonical(request)}" if request is not None and asked > enforced else None


def _ratio(bound: Bound, limit: Quantity | None, request: Quantity | None) -> str | None:
    head = f"{bound.resource} max limit to request ratio per {bound.type} is {canonical(bound.amount)}"
    asked, most, _ = _in_one_unit(request or ZERO, limit or ZERO, bound.amount)
    if request is None or not asked:
        return f"{head}, but no request is specified or request is 0"
    if limit is None or not most:
        return f"{head}, but no limit is specified or limit is 0"
    # The API server reckons this one in floats; so that the answer is its answer, so do we.
    ratio = float(most) / float(asked)
    exact = value_of(bound.amount) <= MAX_MILLI
    held, shown = (
        (float(milli_value_of(bound.amount)), ratio * 1000) if exact else (float(value_of(bound.amount)), ratio)
    )
    return f"{head}, but provided ratio is {ratio:f}" if shown > held else None


def _in_one_unit(request: Quantity, limit: Quantity, enforced: Quantity) -> tuple[int, int, int]:
    """Thousandths where all three fit, else whole units rounded up."""
    values = value_of(request), value_of(limit), value_of(enforced)
    if max(values) <= MAX_MILLI:
        return milli_value_of(request), milli_value_of(limit), milli_value_of(enforced)
    return values
