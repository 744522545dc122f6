"""Traps in LimitRanges.

A LimitRange is stored with more than was written: `max` becomes the default, the default the default request, `min` the
default request where there is no default. And a bound of type Pod refuses whoever does not name the resource at all,
unless a LimitRange of the namespace gives containers an amount that is within it, as a default of zero is. A default
of more than zero is a trap itself: what would refuse pods once it is gone is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import (
    as_mapping,
    counts_gpus,
    is_positive_amount,
    lint_finding,
    nulls_as_zero,
    parse_written_amounts,
    rebuild_object,
)
from webhook.model.apimachinery import ZERO, Quantity, canonical_text, compare_quantities
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.limit_ranges import CONTAINER, POD, ResourceList
from webhook.model.resource_names import allows_overcommit

Json = dict[str, Any]
RATIO = "maxLimitRequestRatio"
SIDES = ("max", "min", "default", "defaultRequest", RATIO)


def lint_limit_range(data: Json, others: ResourceList) -> Iterator[Finding]:
    """Every trap in a LimitRange.

    Args:
        others: The limits that other LimitRanges of its namespace give. See `written_default_limits`.
    """
    given = others | written_default_limits(data)
    for place, item in enumerate(read_items(data)):
        path: FieldPath = ("spec", "limits", place)
        for name in gpu_resources_of_item(item):
            if item.get("type") == CONTAINER:
                yield from _lint_container_item(item, name, path)
            elif item.get("type") == POD:
                yield from _lint_pod_item(item, name, path, given)
            if name in as_mapping(item.get(RATIO)):
                yield _ratio_finding(name, path)


def written_default_limits(data: Json) -> ResourceList:
    """The limits that a LimitRange gives to containers that name none."""
    given = ResourceList()
    for item in read_items(data):
        if item.get("type") == CONTAINER:
            given |= parse_written_amounts(item.get("max")) | parse_written_amounts(item.get("default"))
    return given


def read_items(data: Json) -> list[Json]:
    """What a LimitRange says, by type."""
    items = as_mapping(data.get("spec")).get("limits")
    return [_nulls_as_zero_in_item(as_mapping(item)) for item in items] if isinstance(items, list) else []


def _nulls_as_zero_in_item(item: Json) -> Json:
    return item | {side: nulls_as_zero(item[side]) for side in SIDES if isinstance(item.get(side), dict)}


def gpu_resources_of_item(item: Json) -> list[str]:
    """The resources by which an item holds or gives GPUs, in any form."""
    names = dict.fromkeys(name for side in SIDES for name in as_mapping(item.get(side)))
    return [name for name in names if counts_gpus(name) or name.startswith(DEVICE_CLASS_PREFIX)]


def _lint_container_item(item: Json, name: str, path: FieldPath) -> Iterator[Finding]:
    most, least = as_mapping(item.get("max")).get(name), as_mapping(item.get("min")).get(name)
    given = as_mapping(item.get("default")).get(name, most)
    if given is None:
        yield from _lint_request_default(item, name, path)
        return
    if not is_positive_amount(given):
        return
    without = f" Remove min: a default of zero is below {least}." if least is not None else ""
    if given == most:
        yield lint_finding(
            "GPU-L301",
            (*path, "max", name),
            f"max is also the default: every container that does not name {name} is given {given}, "
            "those of pods without GPUs and of pods that ask for MIG slices included",
            f'Write default: {{{name}: "0"}} beside it.{without}',
        )
    else:
        yield lint_finding(
            "GPU-L303",
            (*path, "default", name),
            f"every container that does not name {name} is given {given}, "
            "those of pods without GPUs and of pods that ask for MIG slices included",
            f'Write "0".{without}',
        )


def _lint_request_default(item: Json, name: str, path: FieldPath) -> Iterator[Finding]:
    """What comes of a default request, written or from the minimum, where there is no default."""
    for side in ("min", "defaultRequest"):
        asked = as_mapping(item.get(side)).get(name)
        if asked is None:
            continue
        if not allows_overcommit(name):
            yield _missing_limit_finding(name, (*path, side, name))
        elif is_positive_amount(asked):
            yield lint_finding(
                "GPU-L303",
                (*path, side, name),
                f"it is the default request: every container that does not name {name} asks for {asked}, "
                "those of pods without GPUs included",
                "Remove it.",
            )
        return


def _missing_limit_finding(name: str, path: FieldPath) -> Finding:
    return lint_finding(
        "GPU-L302",
        path,
        f"it is the default request of {name}, without a limit: every pod with a container that does not name it is "
        "refused as invalid",
        "Remove it; limits.perContainer of a policy holds only containers that ask.",
    )


def _lint_pod_item(item: Json, name: str, path: FieldPath, given: ResourceList) -> Iterator[Finding]:
    fixes = {
        "max": f'Write default: {{{name}: "0"}} in an item of type Container beside it: then it holds those who ask.',
        "min": "Remove it; limits.perPod of a policy holds only pods that ask.",
    }
    for side, fix in fixes.items():
        bound = parse_written_amounts(item.get(side)).get(name)
        when = None if bound is None else _rejection_condition(side, bound, given.get(name))
        if when is not None:
            yield lint_finding(
                "GPU-L304",
                (*path, side, name),
                f"{when}a bound of type Pod refuses every pod that does not name {name}, pods without GPUs included",
                fix,
            )


def _rejection_condition(side: str, bound: Quantity, given: Quantity | None) -> str | None:
    """When a bound on pods refuses those that name nothing: "" for now, None for never."""
    if given is None or _is_outside_bound(side, bound, given):
        return ""
    if _is_outside_bound(side, bound, ZERO):
        return f"once no container is given {canonical_text(given)} any more, "
    return None


def _is_outside_bound(side: str, bound: Quantity, given: Quantity) -> bool:
    return compare_quantities(given, bound) > 0 if side == "max" else compare_quantities(given, bound) < 0


def _ratio_finding(name: str, path: FieldPath) -> Finding:
    return lint_finding(
        "GPU-L305",
        (*path, RATIO, name),
        f"a ratio refuses whoever asks for none of {name}, pods without GPUs included",
        "Remove it.",
    )


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
