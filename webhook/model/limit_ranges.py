"""LimitRanges read once: what each gives to containers, and every bound it checks.

Source: `plugin/pkg/admission/limitranger`. Expects LimitRanges as stored, with the defaults of `max` and `min`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from webhook.errors import QuantityError
from webhook.model.apimachinery import MAX_MILLI, Quantity, parse_quantity, round_to_milli
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.objects import LimitRange, LimitRangeItem
from webhook.model.pods import QuantityText

ResourceList = dict[str, Quantity]
"""Amounts by resource name."""

CONTAINER = "Container"
POD = "Pod"
_DIGITS = 18


class RangeBound(NamedTuple):
    """One bound of one resource.

    Attributes:
        kind: "min", "max" or "maxLimitRequestRatio".
        type: "Container": each container is held to it; "Pod": their total is.
    """

    kind: str
    type: str
    resource: str
    amount: Quantity


class ParsedLimitRange(NamedTuple):
    """One LimitRange.

    Attributes:
        limits: Limits that it gives to a container that names none.
        requests: Requests that it gives, likewise.
        bounds: Everything it checks, Container and Pod.
        gpus: GPU resources that it gives to a container that names none, more than zero of them.
    """

    name: str
    default_limits: ResourceList
    default_requests: ResourceList
    bounds: tuple[RangeBound, ...]
    default_gpus: tuple[str, ...]


class NamespaceLimitRanges(tuple[ParsedLimitRange, ...]):
    """The LimitRanges of a namespace, in the order in which they are taken; a key for what is remembered of them.

    Attributes:
        giving: Each GPU resource that one of them gives, with it.
        of_pods: Every bound on a pod's total.
    """

    def __init__(self, _: Iterable[ParsedLimitRange] = ()) -> None:
        self._text = repr([tuple(each) for each in self])
        self._hash = hash(self._text)
        self.gpu_defaults = tuple((name, each) for each in self for name in each.default_gpus)
        self.pod_bounds = tuple(bound for each in self for bound in each.bounds if bound.type == POD)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, NamespaceLimitRanges) and self._text == other._text)


NO_LIMIT_RANGES = NamespaceLimitRanges()


def exact_milli(amount: Quantity) -> int | None:
    """Thousandths of an amount of zero or more that every way of reckoning agrees on; None for any other.

    Exact: amounts are held in thousandths at the finest, and below this bound the API server compares them so.
    """
    if amount.wide or not -3 <= amount.exponent <= _DIGITS:
        return None
    milli = amount.unscaled * int(10 ** (amount.exponent + 3))
    return milli if 0 <= milli <= MAX_MILLI else None


def parse_limit_range(limit_range: LimitRange) -> ParsedLimitRange:
    """Read a stored LimitRange. An amount that cannot be read is one that no API server stored: it is left out."""
    limits, requests, bounds = ResourceList(), ResourceList(), list[RangeBound]()
    for item in limit_range.spec.limits:
        if item.type == CONTAINER:
            limits |= parse_resource_list(item.default)
            requests |= parse_resource_list(item.default_request)
        bounds += _parse_bounds(item)
    gpus = tuple(
        name for name in limits | requests if parse_gpu_resource(name) and _has_positive(name, limits, requests)
    )
    return ParsedLimitRange(limit_range.metadata.name, limits, requests, tuple(bounds), gpus)


def _has_positive(name: str, *sides: ResourceList) -> bool:
    return any(name in side and side[name].unscaled > 0 for side in sides)


def _parse_bounds(item: LimitRangeItem) -> Iterator[RangeBound]:
    if item.type not in (CONTAINER, POD):
        return
    for kind, amounts in (("min", item.min), ("max", item.max), ("maxLimitRequestRatio", item.max_limit_request_ratio)):
        for resource, amount in parse_resource_list(amounts).items():
            yield RangeBound(kind, item.type, resource, amount)


def parse_resource_list(written: Mapping[str, QuantityText]) -> ResourceList:
    """Amounts as the API server holds them, without those that it cannot read."""
    found = ResourceList()
    for name, amount in written.items():
        try:
            found[name] = parse_api_quantity(amount)
        except QuantityError:
            continue
    return found


@lru_cache(maxsize=2048, typed=True)
def parse_api_quantity(amount: QuantityText) -> Quantity:
    """An amount of a pod or a LimitRange as the API server holds it: rounded up to thousandths.

    Raises:
        QuantityError: it is no quantity.
    """
    return round_to_milli(parse_quantity(amount.strip(" ") if isinstance(amount, str) else str(amount)))
