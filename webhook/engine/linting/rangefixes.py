"""LimitRanges without their traps. See `ranges`."""

from __future__ import annotations

from typing import Any

from webhook.engine.linting.objects import applied_anew, mapping
from webhook.engine.linting.ranges import RATIO, SIDES, gpus_in, items_of
from webhook.model.ranges import CONTAINER, POD

Json = dict[str, Any]


def fixed_range(data: Json) -> Json:
    """The LimitRange without its traps: bounds hold those who ask, and nobody is given a GPU."""
    items = [_read(item) for item in items_of(data)]
    for item in list(items):
        for name in gpus_in(item):
            if item.get("type") == CONTAINER:
                _free(item, name)
            elif item.get("type") == POD:
                _hold_those_who_ask(item, name, items)
    return applied_anew(data, {"limits": [left for item in items if len(left := _filled(item)) > 1]})


def _read(item: Json) -> Json:
    """A copy that may be changed; amounts that stand in no map are left out."""
    kept = {side: value for side, value in item.items() if side not in SIDES}
    return kept | {side: dict(item[side]) for side in SIDES if isinstance(item.get(side), dict)}


def _free(item: Json, name: str) -> None:
    """Keep the maximum, and give nothing to whoever names none. A minimum cannot stay beside a default of zero."""
    for side in ("min", "defaultRequest", RATIO):
        mapping(item.get(side)).pop(name, None)
    if name in mapping(item.get("max")) or name in mapping(item.get("default")):
        _give_none(item, name)


def _give_none(item: Json, name: str) -> None:
    item.setdefault("default", {})[name] = "0"


def _hold_those_who_ask(item: Json, name: str, items: list[Json]) -> None:
    """Keep the maximum of a pod: whoever names none is given zero, and passes. A minimum would refuse that."""
    for side in ("min", RATIO):
        mapping(item.get(side)).pop(name, None)
    if name in mapping(item.get("max")):
        container = _container_in(items)
        _free(container, name)
        _give_none(container, name)


def _container_in(items: list[Json]) -> Json:
    """The item about containers; there may be one only."""
    for item in items:
        if item.get("type") == CONTAINER:
            return item
    items.append({"type": CONTAINER})
    return items[-1]


def _filled(item: Json) -> Json:
    return {side: value for side, value in item.items() if value not in ({}, None)}
