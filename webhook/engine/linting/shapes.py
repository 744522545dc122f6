"""LimitRanges and ResourceQuotas that an API server would not take, or that hold nothing: nothing is found in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from webhook.engine.linting.objects import mapping
from webhook.engine.linting.quotarules import broken_quota
from webhook.engine.linting.rangerules import broken_range
from webhook.engine.linting.ranges import SIDES
from webhook.engine.linting.told import Misshapen
from webhook.model.paths import Path
from webhook.model.pods import Amount
from webhook.model.quantity import readable

Json = dict[str, Any]
NAMES = {dict: "a map", list: "a list", type(None): "nothing", str: "a text", bool: "a boolean"}


def misshapen(data: Json) -> Iterator[Misshapen]:
    """Everything that is not as it should be in a LimitRange or a ResourceQuota."""
    spec = data.get("spec")
    if spec is None:
        yield Misshapen(("spec",), "skipped: there is none, so nobody is held", refused=False)
    elif not isinstance(spec, dict):
        yield _is_no("a map", ("spec",), spec)
    elif data["kind"] == "LimitRange":
        yield from _range(spec)
    else:
        yield from _amounts(spec.get("hard"), ("spec", "hard"), least=0)
        yield from broken_quota(spec)


def _range(spec: Json) -> Iterator[Misshapen]:
    path: Path = ("spec", "limits")
    items = spec.get("limits")
    if items is None:
        yield Misshapen(path, "skipped: there are none, so nobody is held", refused=False)
    elif not isinstance(items, list):
        yield _is_no("a list", path, items)
    else:
        yield from _items(items, path)
        yield from broken_range([mapping(item) for item in items], path)


def _items(items: list[Any], path: Path) -> Iterator[Misshapen]:
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            yield _is_no("a map", (*path, place), item)
        for side in SIDES:
            yield from _amounts(mapping(item).get(side), (*path, place, side))


def _amounts(amounts: Any, path: Path, least: float = -inf) -> Iterable[Misshapen]:
    if amounts is not None and not isinstance(amounts, dict):
        return [_is_no("a map", path, amounts)]
    told = (_amount(amount, (*path, name), least) for name, amount in mapping(amounts).items())
    return [one for one in told if one is not None]


def _amount(amount: Any, path: Path, least: float) -> Misshapen | None:
    if amount is None:
        return Misshapen(path, "nothing is written for it, which the API server takes for 0", refused=False)
    value = readable(amount) if isinstance(amount, Amount) and not isinstance(amount, bool) else None
    return _is_no("an amount", path, amount) if value is None or value < least else None


def _is_no(must: str, path: Path, found: Any) -> Misshapen:
    said = repr(found)[:60] if must == "an amount" else NAMES.get(type(found), "a number")
    return Misshapen(path, f"must be {must}, found {said}; the API server refuses it")
