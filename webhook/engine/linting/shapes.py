"""LimitRanges and ResourceQuotas that an API server would not take, or that hold nothing: nothing is found in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from webhook.engine.linting.objects import as_mapping
from webhook.engine.linting.quotarules import validate_quota
from webhook.engine.linting.rangerules import validate_limit_range
from webhook.engine.linting.ranges import SIDES
from webhook.engine.linting.told import ObjectError
from webhook.model.paths import FieldPath
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_nano_or_none

Json = dict[str, Any]
TYPE_NAMES = {dict: "a map", list: "a list", type(None): "nothing", str: "a text", bool: "a boolean"}


def find_object_errors(data: Json) -> Iterator[ObjectError]:
    """Everything that is not as it should be in a LimitRange or a ResourceQuota."""
    spec = data.get("spec")
    if spec is None:
        yield ObjectError(("spec",), "skipped: there is none, so nobody is held", rejected=False)
    elif not isinstance(spec, dict):
        yield _wrong_type("a map", ("spec",), spec)
    elif data["kind"] == "LimitRange":
        yield from _validate_range_spec(spec)
    else:
        yield from _validate_amounts(spec.get("hard"), ("spec", "hard"), least=0)
        yield from validate_quota(spec)


def _validate_range_spec(spec: Json) -> Iterator[ObjectError]:
    path: FieldPath = ("spec", "limits")
    items = spec.get("limits")
    if items is None:
        yield ObjectError(path, "skipped: there are none, so nobody is held", rejected=False)
    elif not isinstance(items, list):
        yield _wrong_type("a list", path, items)
    else:
        yield from _validate_range_items(items, path)
        yield from validate_limit_range([as_mapping(item) for item in items], path)


def _validate_range_items(items: list[Any], path: FieldPath) -> Iterator[ObjectError]:
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            yield _wrong_type("a map", (*path, place), item)
        for side in SIDES:
            yield from _validate_amounts(as_mapping(item).get(side), (*path, place, side))


def _validate_amounts(amounts: Any, path: FieldPath, least: float = -inf) -> Iterable[ObjectError]:
    if amounts is not None and not isinstance(amounts, dict):
        return [_wrong_type("a map", path, amounts)]
    told = (_validate_amount(amount, (*path, name), least) for name, amount in as_mapping(amounts).items())
    return [one for one in told if one is not None]


def _validate_amount(amount: Any, path: FieldPath, least: float) -> ObjectError | None:
    if amount is None:
        return ObjectError(path, "nothing is written for it, which the API server takes for 0", rejected=False)
    value = parse_nano_or_none(amount) if isinstance(amount, QuantityText) and not isinstance(amount, bool) else None
    return _wrong_type("an amount", path, amount) if value is None or value < least else None


def _wrong_type(must: str, path: FieldPath, found: Any) -> ObjectError:
    said = repr(found)[:60] if must == "an amount" else TYPE_NAMES.get(type(found), "a number")
    return ObjectError(path, f"must be {must}, found {said}; the API server refuses it")
