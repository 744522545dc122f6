"""The API's own rules for amounts, checked once all defaults are in.

Source: `pkg/apis/core/validation`, validateResourceRequirements and validatePodResourceConsistency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from webhook.engine.limitrange.holding import LIMITS, REQUESTS, Holder, Holders, in_containers, names_in
from webhook.errors import QuantityError
from webhook.model.apimachinery import ZERO, Quantity, canonical, compare, milli_value_of, parse, value_of
from webhook.model.paths import Path
from webhook.model.resource_names import (
    HUGE_PAGES,
    is_extended,
    is_for_containers,
    is_for_pods,
    is_huge_pages,
    may_be_overcommitted,
)


class Broken(NamedTuple):
    """One rule that an amount breaks: where, what it must be, and what it is."""

    path: Path
    words: str


def broken_rules(holders: Holders) -> list[Broken]:
    """Every rule that the pod's amounts break."""
    found: list[Broken] = []
    for holder in holders.each:
        found += _in_one(holder, is_for_containers)
    if holders.whole is not None:
        found += _in_one(holders.whole, is_for_pods)
        found += _apart(holders, holders.whole)
    return found


def _in_one(holder: Holder, known: Callable[[str], bool]) -> Iterator[Broken]:
    for side in (LIMITS, REQUESTS):
        for name, amount in holder.side(side).items():
            words = _wrong(name, amount, known)
            if words:
                yield Broken((*holder.path, "resources", side, name), words)
    for name, request in holder.requests.items():
        limit = holder.limits.get(name)
        path = (*holder.path, "resources", REQUESTS, name)
        if limit is None:
            if not may_be_overcommitted(name):
                missing = (*holder.path, "resources", LIMITS, name)
                yield Broken(missing, "Limit must be set for non overcommitable resources")
        elif compare(request, limit) and not may_be_overcommitted(name):
            yield Broken(path, f"{canonical(request)} must be equal to {name} limit of {canonical(limit)}")
        elif compare(request, limit) > 0:
            yield Broken(path, f"{canonical(request)} must be less than or equal to {name} limit of {canonical(limit)}")
    named = holder.limits.keys() | holder.requests.keys()
    if any(map(is_huge_pages, named)) and not named & {"cpu", "memory"}:
        yield Broken((*holder.path, "resources"), "HugePages require cpu or memory")


def _wrong(name: str, amount: Quantity, known: Callable[[str], bool]) -> str:
    """What is wrong with one name and its amount, "" if nothing."""
    if not known(name):
        return "is no resource that may be named here"
    if compare(amount, ZERO) < 0:
        return f"{canonical(amount)} must be greater than or equal to 0"
    if is_extended(name) and milli_value_of(amount) % 1000:
        return f"{canonical(amount)} must be an integer"
    if is_huge_pages(name) and not _divides(name, amount):
        return f"{canonical(amount)} is not positive integer multiple of {name}"
    return ""


def _divides(name: str, amount: Quantity) -> bool:
    try:
        page = parse(name.removeprefix(HUGE_PAGES))
    except QuantityError:
        return False
    return compare(page, ZERO) > 0 and milli_value_of(page) % 1000 == 0 and value_of(amount) % value_of(page) == 0


def _apart(holders: Holders, whole: Holder) -> Iterator[Broken]:
    """Where the pod as a whole asks for less than its containers do."""
    for name in names_in(holders, REQUESTS):
        yield from _less(holders, whole, name, REQUESTS)
    for name in names_in(holders, LIMITS):
        if is_huge_pages(name):
            yield from _less(holders, whole, name, LIMITS)
    for holder in holders.containers:
        for name, limit in holder.limits.items():
            most = whole.limits.get(name)
            if most is not None and compare(limit, most) > 0:
                path = (*holder.path, "resources", LIMITS, name)
                yield Broken(path, f"{canonical(limit)} must be less than or equal to pod limits of {canonical(most)}")


def _less(holders: Holders, whole: Holder, name: str, side: str) -> Iterator[Broken]:
    have, need = whole.side(side).get(name), in_containers(holders, name, side)
    if have is not None and need is not None and compare(need, have) > 0:
        words = f"{canonical(have)} must be greater than or equal to aggregate container {side} of {canonical(need)}"
        yield Broken((*whole.path, "resources", side, name), words)
