"""LimitRanges without their traps. See `ranges`."""

from __future__ import annotations

from typing import Any

from webhook.engine.linting.objects import rebuild_object, as_mapping
from webhook.engine.linting.ranges import RATIO, SIDES, gpu_resources_of_item, read_items
from webhook.model.ranges import CONTAINER, POD

Json = dict[str, Any]


def fix_limit_range(data: Json) -> Json:
    """The LimitRange without its traps: bounds hold those who ask, and nobody is given a GPU."""
    items = [_copy_item(item) for item in read_items(data)]
    for item in list(items):
        for name in gpu_resources_of_item(item):
            if item.get("type") == CONTAINER:
                _remove_gpu_defaults(item, name)
            elif item.get("type") == POD:
                _fix_pod_item(item, name, items)
    return rebuild_object(data, {"limits": [left for item in items if len(left := _without_empty_sides(item)) > 1]})


def _copy_item(item: Json) -> Json:
    """A copy that may be changed; amounts that stand in no map are left out."""
    kept = {side: value for side, value in item.items() if side not in SIDES}
    return kept | {side: dict(item[side]) for side in SIDES if isinstance(item.get(side), dict)}


def _remove_gpu_defaults(item: Json, name: str) -> None:
    """Keep the maximum, and give nothing to whoever names none. A minimum cannot stay beside a default of zero."""
    for side in ("min", "defaultRequest", RATIO):
        as_mapping(item.get(side)).pop(name, None)
    if name in as_mapping(item.get("max")) or name in as_mapping(item.get("default")):
        _set_zero_default(item, name)


def _set_zero_default(item: Json, name: str) -> None:
    item.setdefault("default", {})[name] = "0"


def _fix_pod_item(item: Json, name: str, items: list[Json]) -> None:
    """Keep the maximum of a pod: whoever names none is given zero, and passes. A minimum would refuse that."""
    for side in ("min", RATIO):
        as_mapping(item.get(side)).pop(name, None)
    if name in as_mapping(item.get("max")):
        container = _ensure_container_item(items)
        _remove_gpu_defaults(container, name)
        _set_zero_default(container, name)


def _ensure_container_item(items: list[Json]) -> Json:
    """The item about containers; there may be one only."""
    for item in items:
        if item.get("type") == CONTAINER:
            return item
    items.append({"type": CONTAINER})
    return items[-1]


def _without_empty_sides(item: Json) -> Json:
    return {side: value for side, value in item.items() if value not in ({}, None)}
