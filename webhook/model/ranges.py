"""LimitRanges read once: what each gives to containers, and every bound it checks.

Source: `plugin/pkg/admission/limitranger`. Expects LimitRanges as stored, with the defaults of `max` and `min`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.apimachinery import MAX_MILLI, Quantity, parse, rounded
from webhook.model.objects import LimitRange, LimitRangeItem
from webhook.model.pods import Amount
from webhook.model.resources import gpu_resource

Amounts = dict[str, Quantity]
"""Amounts by resource name."""

CONTAINER = "Container"
POD = "Pod"
_DIGITS = 18


class Bound(NamedTuple):
    """One bound of one resource.

    Attributes:
        kind: "min", "max" or "maxLimitRequestRatio".
        type: "Container": each container is held to it; "Pod": their total is.
    """

    kind: str
    type: str
    resource: str
    amount: Quantity


class Range(NamedTuple):
    """One LimitRange.

    Attributes:
        limits: Limits that it gives to a container that names none.
        requests: Requests that it gives, likewise.
        bounds: Everything it checks, Container and Pod.
        gpus: GPU resources that it gives to a container that names none, more than zero of them.
    """

    name: str
    limits: Amounts
    requests: Amounts
    bounds: tuple[Bound, ...]
    gpus: tuple[str, ...]


class Ranges(tuple[Range, ...]):
    """The LimitRanges of a namespace, in the order in which they are taken; a key for what is remembered of them.

    Attributes:
        giving: Each GPU resource that one of them gives, with it.
        of_pods: Every bound on a pod's total.
    """

    def __init__(self, _: Iterable[Range] = ()) -> None:
        self._text = repr([tuple(each) for each in self])
        self._hash = hash(self._text)
        self.giving = tuple((name, each) for each in self for name in each.gpus)
        self.of_pods = tuple(bound for each in self for bound in each.bounds if bound.type == POD)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Ranges) and self._text == other._text)


NO_RANGES = Ranges()


def plain_milli(amount: Quantity) -> int | None:
    """Thousandths of an amount of zero or more that every way of reckoning agrees on; None for any other.

    Exact: amounts are held in thousandths at the finest, and below this bound the API server compares them so.
    """
    if amount.wide or not -3 <= amount.exponent <= _DIGITS:
        return None
    milli = amount.unscaled * int(10 ** (amount.exponent + 3))
    return milli if 0 <= milli <= MAX_MILLI else None


def range_of(limit_range: LimitRange) -> Range:
    """Read a stored LimitRange. An amount that cannot be read is one that no API server stored: it is left out."""
    limits, requests, bounds = Amounts(), Amounts(), list[Bound]()
    for item in limit_range.spec.limits:
        if item.type == CONTAINER:
            limits |= amounts_in(item.default)
            requests |= amounts_in(item.default_request)
        bounds += _bounds(item)
    gpus = tuple(name for name in limits | requests if gpu_resource(name) and _gives(name, limits, requests))
    return Range(limit_range.metadata.name, limits, requests, tuple(bounds), gpus)


def _gives(name: str, *sides: Amounts) -> bool:
    return any(name in side and side[name].unscaled > 0 for side in sides)


def _bounds(item: LimitRangeItem) -> Iterator[Bound]:
    if item.type not in (CONTAINER, POD):
        return
    for kind, amounts in (("min", item.min), ("max", item.max), ("maxLimitRequestRatio", item.max_limit_request_ratio)):
        for resource, amount in amounts_in(amounts).items():
            yield Bound(kind, item.type, resource, amount)


def amounts_in(written: Mapping[str, Amount]) -> Amounts:
    """Amounts as the API server holds them, without those that it cannot read."""
    found = Amounts()
    for name, amount in written.items():
        try:
            found[name] = held(amount)
        except QuantityError:
            continue
    return found


@lru_cache(maxsize=2048, typed=True)
def held(amount: Amount) -> Quantity:
    """An amount of a pod or a LimitRange as the API server holds it: rounded up to thousandths.

    Raises:
        QuantityError: it is no quantity.
    """
    return rounded(parse(amount.strip(" ") if isinstance(amount, str) else str(amount)))
