"""Lint and fix LimitRanges.

A LimitRange is stored with defaults that were not written (`model.defaulting`). A bound of type Pod rejects pods that
do not name the resource, unless a LimitRange of the namespace sets a default within it, such as zero. A default above
zero is a finding itself; a bound that would reject pods once it is removed is reported too.
"""

from __future__ import annotations

from collections.abc import Iterator

from webhook.engine.linting.objects import (
    as_list,
    as_mapping,
    counts_gpus,
    is_positive_amount,
    lint_finding,
    parse_written_amounts,
    rebuild_object,
)
from webhook.model.apimachinery import ZERO, Quantity, canonical_text, compare_quantities
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.limit_ranges import CONTAINER, POD, ResourceList
from webhook.model.pods import nulls_as_zero
from webhook.model.resource_names import allows_overcommit
from webhook.well_known import Json

RATIO = "maxLimitRequestRatio"
SIDES = ("max", "min", "default", "defaultRequest", RATIO)


def lint_limit_range(data: Json, others: ResourceList) -> Iterator[Finding]:
    """Yield the findings of a LimitRange; `others` are the default limits of other LimitRanges of its namespace."""
    defaults = others | written_default_limits(data)
    for index, item in enumerate(read_items(data)):
        path: FieldPath = ("spec", "limits", index)
        for name in gpu_resources_of_item(item):
            if item.get("type") == CONTAINER:
                yield from _lint_container_item(item, name, path)
            elif item.get("type") == POD:
                yield from _lint_pod_item(item, name, path, defaults)
            if name in as_mapping(item.get(RATIO)):
                message = f"a ratio rejects every pod that does not request {name}, including pods without GPUs"
                yield lint_finding("GPU-L305", (*path, RATIO, name), message, "Remove it.")


def written_default_limits(data: Json) -> ResourceList:
    """Return the default limits that a LimitRange sets in containers."""
    defaults = ResourceList()
    for item in read_items(data):
        if item.get("type") == CONTAINER:
            defaults |= parse_written_amounts(item.get("max")) | parse_written_amounts(item.get("default"))
    return defaults


def read_items(data: Json) -> list[Json]:
    """Return the items of a LimitRange."""
    items = as_mapping(data.get("spec")).get("limits")
    return [
        item | {side: nulls_as_zero(item[side]) for side in SIDES if isinstance(item.get(side), dict)}
        for item in map(as_mapping, as_list(items))
    ]


def gpu_resources_of_item(item: Json) -> list[str]:
    """Return the GPU resources, in any form, that an item names."""
    names = dict.fromkeys(name for side in SIDES for name in as_mapping(item.get(side)))
    return [name for name in names if counts_gpus(name) or name.startswith(DEVICE_CLASS_PREFIX)]


def fix_limit_range(data: Json) -> Json:
    """Return the LimitRange with bounds for containers that request GPUs, and no GPU defaults."""
    items = [_copy_item(item) for item in read_items(data)]
    for item in list(items):
        for name in gpu_resources_of_item(item):
            if item.get("type") == CONTAINER:
                _remove_gpu_defaults(item, name)
            elif item.get("type") == POD:
                _fix_pod_item(item, name, items)
    filled = [{side: value for side, value in item.items() if value not in ({}, None)} for item in items]
    return rebuild_object(data, {"limits": [item for item in filled if len(item) > 1]})


def _lint_container_item(item: Json, name: str, path: FieldPath) -> Iterator[Finding]:
    most, least = as_mapping(item.get("max")).get(name), as_mapping(item.get("min")).get(name)
    default = as_mapping(item.get("default")).get(name, most)
    if default is None:
        yield from _lint_request_default(item, name, path)
        return
    if not is_positive_amount(default):
        return
    without = f" Remove min: a default of zero is below {least}." if least is not None else ""
    if default == most:
        yield lint_finding(
            "GPU-L301",
            (*path, "max", name),
            f"max also sets the default: every container that does not set {name} gets {default}, "
            "including pods without GPUs and pods that request MIG slices",
            f'Add default: {{{name}: "0"}}.{without}',
        )
    else:
        yield lint_finding(
            "GPU-L303",
            (*path, "default", name),
            f"every container that does not set {name} gets {default}, "
            "including pods without GPUs and pods that request MIG slices",
            f'Write "0".{without}',
        )


def _lint_request_default(item: Json, name: str, path: FieldPath) -> Iterator[Finding]:
    for side in ("min", "defaultRequest"):
        request = as_mapping(item.get(side)).get(name)
        if request is None:
            continue
        if not allows_overcommit(name):
            yield _missing_limit_finding(name, (*path, side, name))
        elif is_positive_amount(request):
            yield lint_finding(
                "GPU-L303",
                (*path, side, name),
                f"it is the default request: every container that does not set {name} requests {request}, "
                "including pods without GPUs",
                "Remove it.",
            )
        return


def _missing_limit_finding(name: str, path: FieldPath) -> Finding:
    return lint_finding(
        "GPU-L302",
        path,
        f"it is the default request of {name}, without a limit: every pod with a container that does not set it is "
        "rejected as invalid",
        "Remove it; limits.perContainer of a policy applies only to containers that request the resource.",
    )


def _lint_pod_item(item: Json, name: str, path: FieldPath, defaults: ResourceList) -> Iterator[Finding]:
    fixes = {
        "max": f'Add default: {{{name}: "0"}} in an item of type Container: then it applies only to pods that set it.',
        "min": "Remove it; limits.perPod of a policy applies only to pods that request the resource.",
    }
    for side, fix in fixes.items():
        bound = parse_written_amounts(item.get(side)).get(name)
        when = None if bound is None else _rejection_condition(side, bound, defaults.get(name))
        if when is not None:
            yield lint_finding(
                "GPU-L304",
                (*path, side, name),
                f"{when}a bound of type Pod rejects every pod that does not set {name}, including pods without GPUs",
                fix,
            )


def _rejection_condition(side: str, bound: Quantity, default: Quantity | None) -> str | None:
    """Return when a bound rejects pods that do not set the resource: "" for always, None for never."""
    if default is None or _is_outside_bound(side, bound, default):
        return ""
    if _is_outside_bound(side, bound, ZERO):
        return f"without the default of {canonical_text(default)}, "
    return None


def _is_outside_bound(side: str, bound: Quantity, amount: Quantity) -> bool:
    return compare_quantities(amount, bound) > 0 if side == "max" else compare_quantities(amount, bound) < 0


def _copy_item(item: Json) -> Json:
    """Return a copy to change; sides that are not maps are left out."""
    kept = {side: value for side, value in item.items() if side not in SIDES}
    return kept | {side: dict(item[side]) for side in SIDES if isinstance(item.get(side), dict)}


def _remove_gpu_defaults(item: Json, name: str) -> None:
    """Keep the maximum, with a default of zero, which a minimum would contradict."""
    for side in ("min", "defaultRequest", RATIO):
        as_mapping(item.get(side)).pop(name, None)
    if name in as_mapping(item.get("max")) or name in as_mapping(item.get("default")):
        item.setdefault("default", {})[name] = "0"


def _fix_pod_item(item: Json, name: str, items: list[Json]) -> None:
    """Keep the maximum, with a default of zero for containers, which a minimum would reject."""
    for side in ("min", RATIO):
        as_mapping(item.get(side)).pop(name, None)
    if name in as_mapping(item.get("max")):
        # There can be only one item of type Container.
        container = next((one for one in items if one.get("type") == CONTAINER), None)
        if container is None:
            container = {"type": CONTAINER}
            items.append(container)
        _remove_gpu_defaults(container, name)
        container.setdefault("default", {})[name] = "0"
