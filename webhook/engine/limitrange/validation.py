"""Predict how the API server validates a pod's amounts after all defaults: API rules (422), then LimitRanges (403).

ResourceQuota comes after both. Messages are the API server's.

Sources: `pkg/apis/core/validation`, validateResourceRequirements and validatePodResourceConsistency;
`plugin/pkg/admission/limitranger`, PodValidateLimitFunc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

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
from webhook.model.defaulting import apply_defaults
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import CONTAINER, NamespaceLimitRanges, ParsedLimitRange, RangeBound
from webhook.model.pod_amounts import (
    LIMITS,
    NO_CHANGES,
    REQUESTS,
    LimitsAndRequests,
    PodAmounts,
    ResourceChanges,
    named_resources,
    pod_total,
    sum_containers,
)
from webhook.model.pods import Pod
from webhook.model.resource_names import (
    HUGE_PAGES,
    allows_overcommit,
    is_container_resource,
    is_extended,
    is_huge_pages,
    is_pod_level_resource,
)


class InvalidAmount(NamedTuple):
    """An amount that breaks a rule of the API.

    Attributes:
        fields: The amounts that break it together.
    """

    path: FieldPath
    message: str
    fields: tuple[FieldPath, ...]


class _KnownNames(NamedTuple):
    """The resource names that an object may have, as a test and as a sentence."""

    is_known: Callable[[str], bool]
    must: str


_OF_CONTAINERS = _KnownNames(
    is_container_resource,
    "the name must be cpu, memory, ephemeral-storage, hugepages-<size>, or have a domain, such as nvidia.com/gpu",
)
_OF_PODS = _KnownNames(is_pod_level_resource, "the name must be cpu, memory or hugepages-<size>")


class LimitRangeRefusal(NamedTuple):
    """A bound of a LimitRange that a pod violates.

    Attributes:
        limit_range: Name of the LimitRange.
        path: The container, or ("spec",) for the pod's total.
        side: The amount that violates it: LIMITS or REQUESTS.
        message: The API server's message.
    """

    limit_range: str
    bound: RangeBound
    path: FieldPath
    side: str
    message: str


class PredictedAdmission(NamedTuple):
    """The API server's answer for a pod.

    Attributes:
        amounts: The pod's amounts after all defaults.
        invalid: Rules of the API that they break; LimitRanges are then not checked.
        refusals: Bounds of LimitRanges that they violate.
    """

    amounts: PodAmounts
    invalid: list[InvalidAmount]
    refusals: list[LimitRangeRefusal]

    @property
    def is_accepted(self) -> bool:
        """Return whether the API server accepts the pod, quotas apart."""
        return not self.invalid and not self.refusals


def predict_admission(
    pod: Pod,
    ranges: NamespaceLimitRanges,
    limits: ResourceChanges = NO_CHANGES,
    requests: ResourceChanges = NO_CHANGES,
) -> PredictedAdmission:
    """Predict the answer for a pod, some containers' amounts changed by a webhook.

    Args:
        pod: The pod as written, or as a webhook sees it.
        ranges: The namespace's LimitRanges, in the order in which LimitRanger applies them.
        limits: New limits of containers, by path; whole maps.
        requests: New requests of containers, by path; whole maps.

    Raises:
        QuantityError: an amount is not a quantity, so the API server cannot read the pod.
    """
    amounts = apply_defaults(pod, ranges, limits, requests)
    return PredictedAdmission(amounts, find_invalid_amounts(amounts), predict_limit_range_refusals(amounts, ranges))


def find_invalid_amounts(amounts: PodAmounts) -> list[InvalidAmount]:
    """Return every rule of the API that a pod's amounts break."""
    found: list[InvalidAmount] = []
    for holder in amounts.all_containers:
        found += _check_one_holder(holder, _OF_CONTAINERS)
    if amounts.pod_level is not None:
        found += _check_one_holder(amounts.pod_level, _OF_PODS)
        found += _check_pod_level(amounts, amounts.pod_level)
    return found


def predict_limit_range_refusals(amounts: PodAmounts, ranges: Iterable[ParsedLimitRange]) -> list[LimitRangeRefusal]:
    """Return every violated bound. The API server reports those of one LimitRange, in any order."""
    found: list[LimitRangeRefusal] = []
    for limit_range in ranges:
        for bound in limit_range.bounds:
            for path, limit, request in _bounded_amounts(amounts, bound):
                error = _bound_error(bound, limit, request)
                if error is not None:
                    found.append(LimitRangeRefusal(limit_range.name, bound, path, *error))
    return found


def _check_one_holder(holder: LimitsAndRequests, known: _KnownNames) -> Iterator[InvalidAmount]:
    for side in (LIMITS, REQUESTS):
        for name, amount in holder.amounts(side).items():
            message = _amount_error(name, amount, known)
            if message:
                field = (*holder.path, "resources", side, name)
                yield InvalidAmount(field, message, (field,))
    for name, request in holder.requests.items():
        limit = holder.limits.get(name)
        path, limit_path = ((*holder.path, "resources", side, name) for side in (REQUESTS, LIMITS))
        if limit is None:
            if not allows_overcommit(name):
                yield InvalidAmount(limit_path, "Limit must be set for non overcommitable resources", (path,))
            continue
        must = f"{canonical_text(request)} must be %s {name} limit of {canonical_text(limit)}"
        if compare_quantities(request, limit) and not allows_overcommit(name):
            yield InvalidAmount(path, must % "equal to", (path, limit_path))
        elif compare_quantities(request, limit) > 0:
            yield InvalidAmount(path, must % "less than or equal to", (path, limit_path))
    named = holder.limits.keys() | holder.requests.keys()
    pages = tuple(
        (*holder.path, "resources", side, name)
        for side in (LIMITS, REQUESTS)
        for name in filter(is_huge_pages, holder.amounts(side))
    )
    if pages and not named & {"cpu", "memory"}:
        yield InvalidAmount((*holder.path, "resources"), "HugePages require cpu or memory", pages)


def _amount_error(name: str, amount: Quantity, known: _KnownNames) -> str:
    if not known.is_known(name):
        return known.must
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
    size = whole_value(page)  # overflows to zero for pages beyond 64 bits, by which the API server cannot divide either
    return (
        compare_quantities(page, ZERO) > 0
        and milli_value(page) % 1000 == 0
        and size != 0
        and not whole_value(amount) % size
    )


def _check_pod_level(amounts: PodAmounts, whole: LimitsAndRequests) -> Iterator[InvalidAmount]:
    """Compare the pod level with the containers: it must cover them."""
    for name in named_resources(amounts, REQUESTS):
        yield from _check_pod_covers_containers(amounts, whole, name, REQUESTS)
    for name in named_resources(amounts, LIMITS):
        if is_huge_pages(name):
            yield from _check_pod_covers_containers(amounts, whole, name, LIMITS)
    for holder in amounts.containers:
        for name, limit in holder.limits.items():
            most = whole.limits.get(name)
            if most is not None and compare_quantities(limit, most) > 0:
                path = (*holder.path, "resources", LIMITS, name)
                message = f"{canonical_text(limit)} must be less than or equal to pod limits of {canonical_text(most)}"
                yield InvalidAmount(path, message, (path, (*whole.path, "resources", LIMITS, name)))


def _check_pod_covers_containers(
    amounts: PodAmounts, whole: LimitsAndRequests, name: str, side: str
) -> Iterator[InvalidAmount]:
    have, need = whole.amounts(side).get(name), sum_containers(amounts, name, side)
    if have is not None and need is not None and compare_quantities(need, have) > 0:
        message = (
            f"{canonical_text(have)} must be greater than or equal to aggregate "
            f"container {side} of {canonical_text(need)}"
        )
        path = (*whole.path, "resources", side, name)
        yield InvalidAmount(path, message, (path, *amounts.fields_of(name, side)))


def _bounded_amounts(
    amounts: PodAmounts, bound: RangeBound
) -> Iterator[tuple[FieldPath, Quantity | None, Quantity | None]]:
    name = bound.resource
    if bound.type != CONTAINER:
        yield ("spec",), pod_total(amounts, name, LIMITS), pod_total(amounts, name, REQUESTS)
        return
    for holder in amounts.all_containers:
        yield holder.path, holder.limits.get(name), holder.requests.get(name)


def _bound_error(bound: RangeBound, limit: Quantity | None, request: Quantity | None) -> tuple[str, str] | None:
    """Return the side that violates a bound, and the API server's message; None if the bound holds."""
    if bound.kind == "maxLimitRequestRatio":
        return _ratio_error(bound, limit, request)
    request_value, limit_value, bound_value = _to_common_unit(request or ZERO, limit or ZERO, bound.amount)
    if bound.kind == "min":
        head = f"minimum {bound.resource} usage per {bound.type} is {canonical_text(bound.amount)}"
        if request is None:
            return REQUESTS, f"{head}.  No request is specified"
        if request_value < bound_value:
            return REQUESTS, f"{head}, but request is {canonical_text(request)}"
        if limit is not None and limit_value < bound_value:
            return LIMITS, f"{head}, but limit is {canonical_text(limit)}"
        return None
    head = f"maximum {bound.resource} usage per {bound.type} is {canonical_text(bound.amount)}"
    if limit is None:
        return LIMITS, f"{head}.  No limit is specified"
    if limit_value > bound_value:
        return LIMITS, f"{head}, but limit is {canonical_text(limit)}"
    if request is not None and request_value > bound_value:
        return REQUESTS, f"{head}, but request is {canonical_text(request)}"
    return None


def _ratio_error(bound: RangeBound, limit: Quantity | None, request: Quantity | None) -> tuple[str, str] | None:
    head = f"{bound.resource} max limit to request ratio per {bound.type} is {canonical_text(bound.amount)}"
    request_value, limit_value, _ = _to_common_unit(request or ZERO, limit or ZERO, bound.amount)
    if request is None or not request_value:
        return REQUESTS, f"{head}, but no request is specified or request is 0"
    if limit is None or not limit_value:
        return LIMITS, f"{head}, but no limit is specified or limit is 0"
    # In floats, as the API server computes it, to give the same answer.
    ratio = float(limit_value) / float(request_value)
    if whole_value(bound.amount) <= MAX_MILLI:
        exceeded = ratio * 1000 > float(milli_value(bound.amount))
    else:
        exceeded = ratio > float(whole_value(bound.amount))
    return (LIMITS, f"{head}, but provided ratio is {ratio:f}") if exceeded else None


def _to_common_unit(request: Quantity, limit: Quantity, enforced: Quantity) -> tuple[int, int, int]:
    """Return all three in thousandths if they fit, else in whole units rounded up."""
    values = whole_value(request), whole_value(limit), whole_value(enforced)
    if max(values) <= MAX_MILLI:
        return milli_value(request), milli_value(limit), milli_value(enforced)
    return values
