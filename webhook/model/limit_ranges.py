"""Parse stored LimitRanges into the defaults that they set and the bounds that they check.

Source: `plugin/pkg/admission/limitranger`. See `defaulting.default_limit_range` for those of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from webhook.errors import QuantityError
from webhook.model.apimachinery import MAX_MILLI, Quantity, amount_text, parse_quantity, round_to_milli
from webhook.model.bounded_cache import request_cache
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.objects import LimitRange
from webhook.model.pods import QuantityText

ResourceList = dict[str, Quantity]
"""Quantities by resource name, like Kubernetes' ResourceList."""

CONTAINER = "Container"
POD = "Pod"
_DIGITS = 18


class RangeBound(NamedTuple):
    """One bound of one resource.

    Attributes:
        kind: "min", "max" or "maxLimitRequestRatio".
        type: "Container" bounds each container, "Pod" their total.
    """

    kind: str
    type: str
    resource: str
    amount: Quantity


class ParsedLimitRange(NamedTuple):
    """One LimitRange.

    Attributes:
        default_limits: Limits of containers that do not name the resource.
        default_requests: Requests of containers that do not name the resource.
        bounds: Its bounds of containers and pods.
        default_gpus: GPU resources with a default above zero.
    """

    name: str
    default_limits: ResourceList
    default_requests: ResourceList
    bounds: tuple[RangeBound, ...]
    default_gpus: tuple[str, ...]

    def defaults(self, side: str) -> ResourceList:
        """Return the default limits ("limits") or requests ("requests")."""
        return self.default_limits if side == "limits" else self.default_requests


class NamespaceLimitRanges(tuple[ParsedLimitRange, ...]):
    """The LimitRanges of a namespace in their order of application. A key of caches by identity.

    Attributes:
        gpu_defaults: Each GPU resource with a default above zero, and its LimitRange.
        default_names: Every resource with a default.
        before_pod_level: True if pod-level resources are completed after them, as Kubernetes does since 1.37.
    """

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __new__(cls, ranges: Iterable[ParsedLimitRange] = (), **_: bool) -> Self:
        """Keep the LimitRanges in this order."""
        return super().__new__(cls, ranges)

    def __init__(self, _: Iterable[ParsedLimitRange] = (), *, before_pod_level: bool = False) -> None:
        self.before_pod_level = before_pod_level
        self.gpu_defaults = tuple((name, each) for each in self for name in each.default_gpus)
        self.default_names = frozenset(name for each in self for name in (*each.default_limits, *each.default_requests))

    def without_ranges(self) -> NamespaceLimitRanges:
        """Return none, for what the same server does where no LimitRange applies."""
        return no_limit_ranges(before_pod_level=self.before_pod_level)


NO_LIMIT_RANGES = NamespaceLimitRanges()
_NONE_BEFORE_POD_LEVEL = NamespaceLimitRanges(before_pod_level=True)


def no_limit_ranges(*, before_pod_level: bool) -> NamespaceLimitRanges:
    """Return the LimitRanges of a namespace without any."""
    return _NONE_BEFORE_POD_LEVEL if before_pod_level else NO_LIMIT_RANGES


def exact_milli(amount: Quantity) -> int | None:
    """Return an amount in thousandths, if every comparison of the API server agrees with it; None otherwise.

    Parsed amounts are never finer than thousandths, and below MAX_MILLI the API server compares in thousandths.
    """
    if amount.wide or not -3 <= amount.exponent <= _DIGITS:
        return None
    milli = amount.unscaled * int(10 ** (amount.exponent + 3))
    return milli if 0 <= milli <= MAX_MILLI else None


def parse_limit_range(limit_range: LimitRange) -> ParsedLimitRange:
    """Parse a stored LimitRange. The API server stores no unreadable amounts, so they are left out."""
    limits, requests, bounds = ResourceList(), ResourceList(), list[RangeBound]()
    for item in limit_range.spec.limits:
        if item.type == CONTAINER:
            limits |= parse_resource_list(item.default)
            requests |= parse_resource_list(item.default_request)
        sides = {"min": item.min, "max": item.max, "maxLimitRequestRatio": item.max_limit_request_ratio}
        for kind, amounts in sides.items() if item.type in (CONTAINER, POD) else ():
            bounds += [RangeBound(kind, item.type, *parsed) for parsed in parse_resource_list(amounts).items()]
    positive = {name for side in (limits, requests) for name, amount in side.items() if amount.unscaled > 0}
    gpus = tuple(name for name in limits | requests if name in positive and parse_gpu_resource(name))
    return ParsedLimitRange(limit_range.metadata.name, limits, requests, tuple(bounds), gpus)


def parse_resource_list(amounts: Mapping[str, QuantityText]) -> ResourceList:
    """Parse amounts by resource name, unreadable ones left out."""
    found = ResourceList()
    for name, amount in amounts.items():
        try:
            found[name] = parse_api_quantity(amount)
        except QuantityError:
            continue
    return found


@request_cache(2048, typed=True)
def parse_api_quantity(amount: QuantityText) -> Quantity:
    """Parse an amount of a pod or a LimitRange as the API server does: rounded up to thousandths.

    Raises:
        QuantityError: it is not a quantity.
    """
    return round_to_milli(parse_unrounded_quantity(amount))


def parse_unrounded_quantity(amount: QuantityText) -> Quantity:
    """Parse an amount as the API server first reads it: it computes pod-level requests before it rounds.

    Raises:
        QuantityError: it is not a quantity.
    """
    return parse_quantity(amount_text(amount).strip(" "))
