"""The API's own rules for amounts, checked once all defaults are in.

Source: `pkg/apis/core/validation`, validateResourceRequirements and validatePodResourceConsistency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from webhook.engine.containers import ResourceChanges
from webhook.engine.limitrange.defaulting import apply_limit_range_defaults, apply_request_defaults
from webhook.engine.limitrange.pod_amounts import (
    LIMITS,
    REQUESTS,
    LimitsAndRequests,
    PodAmounts,
    named_resources,
    pod_total,
    read_pod_amounts,
    sum_containers,
)
from webhook.errors import QuantityError
from webhook.model.apimachinery import (
    MAX_MILLI,
    ZERO,
    Quantity,
    canonical_text,
    compare_quantities,
    milli_value,
    parse_quantity,
    whole_value,
)
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import CONTAINER, ParsedLimitRange, RangeBound
from webhook.model.pods import Pod
from webhook.model.resource_names import (
    HUGE_PAGES,
    allows_overcommit,
    is_container_resource,
    is_extended,
    is_huge_pages,
    is_pod_level_resource,
)


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


UNCHANGED: ResourceChanges = {}


class PredictedAdmission(NamedTuple):
    """What becomes of a pod.

    Attributes:
        holders: Its amounts once everything is in.
        broken: Rules of the API that they break (answered with 422, and LimitRanger is not asked).
        refused: What LimitRanger refuses (answered with 403).
    """

    amounts: PodAmounts
    invalid: list[InvalidAmount]
    refusals: list[LimitRangeRefusal]

    @property
    def is_accepted(self) -> bool:
        """Does the API server take it, quota apart?"""
        return not self.invalid and not self.refusals


class AdmissionComparison(NamedTuple):
    """One pod, twice: as it would be without us, and in our shape."""

    original: PredictedAdmission
    changed: PredictedAdmission


class InvalidAmount(NamedTuple):
    """One rule that an amount breaks: where, what it must be, and what it is."""

    path: FieldPath
    message: str


def find_invalid_amounts(holders: PodAmounts) -> list[InvalidAmount]:
    """Every rule that the pod's amounts break."""
    found: list[InvalidAmount] = []
    for holder in holders.all_containers:
        found += _check_one_holder(holder, is_container_resource)
    if holders.pod_level is not None:
        found += _check_one_holder(holders.pod_level, is_pod_level_resource)
        found += _check_pod_level(holders, holders.pod_level)
    return found


def _check_one_holder(holder: LimitsAndRequests, known: Callable[[str], bool]) -> Iterator[InvalidAmount]:
    for side in (LIMITS, REQUESTS):
        for name, amount in holder.amounts(side).items():
            words = _amount_error(name, amount, known)
            if words:
                yield InvalidAmount((*holder.path, "resources", side, name), words)
    for name, request in holder.requests.items():
        limit = holder.limits.get(name)
        path = (*holder.path, "resources", REQUESTS, name)
        if limit is None:
            if not allows_overcommit(name):
                missing = (*holder.path, "resources", LIMITS, name)
                yield InvalidAmount(missing, "Limit must be set for non overcommitable resources")
        elif compare_quantities(request, limit) and not allows_overcommit(name):
            yield InvalidAmount(
                path, f"{canonical_text(request)} must be equal to {name} limit of {canonical_text(limit)}"
            )
        elif compare_quantities(request, limit) > 0:
            yield InvalidAmount(
                path, f"{canonical_text(request)} must be less than or equal to {name} limit of {canonical_text(limit)}"
            )
    named = holder.limits.keys() | holder.requests.keys()
    if any(map(is_huge_pages, named)) and not named & {"cpu", "memory"}:
        yield InvalidAmount((*holder.path, "resources"), "HugePages require cpu or memory")


def _amount_error(name: str, amount: Quantity, known: Callable[[str], bool]) -> str:
    """What is wrong with one name and its amount, "" if nothing."""
    if not known(name):
        return "is no resource that may be named here"
    if compare_quantities(amount, ZERO) < 0:
        return f"{canonical_text(amount)} must be greater than or equal to 0"
    if is_extended(name) and milli_value(amount) % 1000:
        return f"{canonical_text(amount)} must be an integer"
    if is_huge_pages(name) and not _is_page_multiple(name, amount):
        return f"{canonical_text(amount)} is not positive integer multiple of {name}"
    return ""


def _is_page_multiple(name: str, amount: Quantity) -> bool:
    try:
        page = parse_quantity(name.removeprefix(HUGE_PAGES))
    except QuantityError:
        return False
    return (
        compare_quantities(page, ZERO) > 0
        and milli_value(page) % 1000 == 0
        and whole_value(amount) % whole_value(page) == 0
    )


def _check_pod_level(holders: PodAmounts, whole: LimitsAndRequests) -> Iterator[InvalidAmount]:
    """Where the pod as a whole asks for less than its containers do."""
    for name in named_resources(holders, REQUESTS):
        yield from _check_pod_covers_containers(holders, whole, name, REQUESTS)
    for name in named_resources(holders, LIMITS):
        if is_huge_pages(name):
            yield from _check_pod_covers_containers(holders, whole, name, LIMITS)
    for holder in holders.containers:
        for name, limit in holder.limits.items():
            most = whole.limits.get(name)
            if most is not None and compare_quantities(limit, most) > 0:
                path = (*holder.path, "resources", LIMITS, name)
                yield InvalidAmount(
                    path, f"{canonical_text(limit)} must be less than or equal to pod limits of {canonical_text(most)}"
                )


def _check_pod_covers_containers(
    holders: PodAmounts, whole: LimitsAndRequests, name: str, side: str
) -> Iterator[InvalidAmount]:
    have, need = whole.amounts(side).get(name), sum_containers(holders, name, side)
    if have is not None and need is not None and compare_quantities(need, have) > 0:
        words = (
            f"{canonical_text(have)} must be greater than or equal to aggregate "
            f"container {side} of {canonical_text(need)}"
        )
        yield InvalidAmount((*whole.path, "resources", side, name), words)


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


def _bounded_amounts(
    holders: PodAmounts, bound: RangeBound
) -> Iterator[tuple[FieldPath, Quantity | None, Quantity | None]]:
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


def compare_admission(
    pod: Pod, limits: ResourceChanges, requests: ResourceChanges, ranges: Sequence[ParsedLimitRange]
) -> AdmissionComparison:
    """Follow a pod and its shape to their verdicts.

    Args:
        pod: The pod as written, or as a webhook sees it: defaults that are in already are not put in twice.
        limits: Our new limits of containers, by path; whole maps.
        requests: Our new requests, likewise.
        ranges: The namespace's LimitRanges, in the order in which LimitRanger takes them.

    Raises:
        QuantityError: an amount is no quantity: the API server refuses to read it.
    """
    original = predict_admission(pod, ranges)
    return AdmissionComparison(
        original, predict_admission(pod, ranges, limits, requests) if limits or requests else original
    )


def predict_admission(
    pod: Pod,
    ranges: Sequence[ParsedLimitRange],
    limits: ResourceChanges = UNCHANGED,
    requests: ResourceChanges = UNCHANGED,
) -> PredictedAdmission:
    """What becomes of a pod, some containers' amounts changed by a webhook. See `compare_admission`."""
    holders = apply_defaults(pod, ranges, limits, requests)
    return PredictedAdmission(holders, find_invalid_amounts(holders), predict_limit_range_refusals(holders, ranges))


def apply_defaults(
    pod: Pod,
    ranges: Sequence[ParsedLimitRange],
    limits: ResourceChanges = UNCHANGED,
    requests: ResourceChanges = UNCHANGED,
) -> PodAmounts:
    """The amounts once the API's defaults and LimitRanger's are in: what a webhook sees of a pod."""
    return apply_limit_range_defaults(apply_request_defaults(read_pod_amounts(pod, limits, requests)), ranges)
