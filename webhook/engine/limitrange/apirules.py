"""The API's own rules for amounts, checked once all defaults are in.

Source: `pkg/apis/core/validation`, validateResourceRequirements and validatePodResourceConsistency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, LimitsAndRequests, PodAmounts, sum_containers, named_resources
from webhook.errors import QuantityError
from webhook.model.apimachinery import ZERO, Quantity, canonical_text, compare_quantities, milli_value, parse_quantity, whole_value
from webhook.model.paths import FieldPath
from webhook.model.resource_names import (
    HUGE_PAGES,
    is_extended,
    is_container_resource,
    is_pod_level_resource,
    is_huge_pages,
    allows_overcommit,
)


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
            yield InvalidAmount(path, f"{canonical_text(request)} must be equal to {name} limit of {canonical_text(limit)}")
        elif compare_quantities(request, limit) > 0:
            yield InvalidAmount(path, f"{canonical_text(request)} must be less than or equal to {name} limit of {canonical_text(limit)}")
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
    return compare_quantities(page, ZERO) > 0 and milli_value(page) % 1000 == 0 and whole_value(amount) % whole_value(page) == 0


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
                yield InvalidAmount(path, f"{canonical_text(limit)} must be less than or equal to pod limits of {canonical_text(most)}")


def _check_pod_covers_containers(holders: PodAmounts, whole: LimitsAndRequests, name: str, side: str) -> Iterator[InvalidAmount]:
    have, need = whole.amounts(side).get(name), sum_containers(holders, name, side)
    if have is not None and need is not None and compare_quantities(need, have) > 0:
        words = f"{canonical_text(have)} must be greater than or equal to aggregate container {side} of {canonical_text(need)}"
        yield InvalidAmount((*whole.path, "resources", side, name), words)
