"""Traps in LimitRanges.

A LimitRange is stored with more than was written: `max` becomes the default, the default the default request, `min` the
default request where there is no default. And a bound of type Pod refuses whoever does not name the resource at all,
unless a LimitRange of the namespace gives containers an amount that is within it, as a default of zero is. A default
of more than zero is a trap itself: what would refuse pods once it is gone is told beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import amounts, found, is_gpus, mapping, more_than_none, stored
from webhook.model.apimachinery import ZERO, Quantity, canonical, compare
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.ranges import CONTAINER, POD, Amounts
from webhook.model.resource_names import may_be_overcommitted
from webhook.model.resources import DEVICE_CLASS_PREFIX

Json = dict[str, Any]
RATIO = "maxLimitRequestRatio"
SIDES = ("max", "min", "default", "defaultRequest", RATIO)


def range_findings(data: Json, others: Amounts) -> Iterator[Finding]:
    """Every trap in a LimitRange.

    Args:
        others: The limits that other LimitRanges of its namespace give. See `given_limits`.
    """
    given = others | given_limits(data)
    for place, item in enumerate(items_of(data)):
        path: Path = ("spec", "limits", place)
        for name in gpus_in(item):
            if item.get("type") == CONTAINER:
                yield from _container(item, name, path)
            elif item.get("type") == POD:
                yield from _pod(item, name, path, given)
            if name in mapping(item.get(RATIO)):
                yield _ratio(name, path)


def given_limits(data: Json) -> Amounts:
    """The limits that a LimitRange gives to containers that name none."""
    given = Amounts()
    for item in items_of(data):
        if item.get("type") == CONTAINER:
            given |= amounts(item.get("max")) | amounts(item.get("default"))
    return given


def items_of(data: Json) -> list[Json]:
    """What a LimitRange says, by type."""
    items = mapping(data.get("spec")).get("limits")
    return [_stored(mapping(item)) for item in items] if isinstance(items, list) else []


def _stored(item: Json) -> Json:
    return item | {side: stored(item[side]) for side in SIDES if isinstance(item.get(side), dict)}


def gpus_in(item: Json) -> list[str]:
    """The resources by which an item holds or gives GPUs, in any form."""
    names = dict.fromkeys(name for side in SIDES for name in mapping(item.get(side)))
    return [name for name in names if is_gpus(name) or name.startswith(DEVICE_CLASS_PREFIX)]


def _container(item: Json, name: str, path: Path) -> Iterator[Finding]:
    most, least = mapping(item.get("max")).get(name), mapping(item.get("min")).get(name)
    given = mapping(item.get("default")).get(name, most)
    if given is None:
        yield from _request_alone(item, name, path)
        return
    if not more_than_none(given):
        return
    without = f" Remove min: a default of zero is below {least}." if least is not None else ""
    if given == most:
        yield found(
            "GPU-L301",
            (*path, "max", name),
            f"max is also the default: every container that does not name {name} is given {given}, "
            "those of pods without GPUs and of pods that ask for MIG slices included",
            f'Write default: {{{name}: "0"}} beside it.{without}',
        )
    else:
        yield found(
            "GPU-L303",
            (*path, "default", name),
            f"every container that does not name {name} is given {given}, "
            "those of pods without GPUs and of pods that ask for MIG slices included",
            f'Write "0".{without}',
        )


def _request_alone(item: Json, name: str, path: Path) -> Iterator[Finding]:
    """What comes of a default request, written or from the minimum, where there is no default."""
    for side in ("min", "defaultRequest"):
        asked = mapping(item.get(side)).get(name)
        if asked is None:
            continue
        if not may_be_overcommitted(name):
            yield _no_limit(name, (*path, side, name))
        elif more_than_none(asked):
            yield found(
                "GPU-L303",
                (*path, side, name),
                f"it is the default request: every container that does not name {name} asks for {asked}, "
                "those of pods without GPUs included",
                "Remove it.",
            )
        return


def _no_limit(name: str, path: Path) -> Finding:
    return found(
        "GPU-L302",
        path,
        f"it is the default request of {name}, without a limit: every pod with a container that does not name it is "
        "refused as invalid",
        "Remove it; limits.perContainer of a policy holds only containers that ask.",
    )


def _pod(item: Json, name: str, path: Path, given: Amounts) -> Iterator[Finding]:
    fixes = {
        "max": f'Write default: {{{name}: "0"}} in an item of type Container beside it: then it holds those who ask.',
        "min": "Remove it; limits.perPod of a policy holds only pods that ask.",
    }
    for side, fix in fixes.items():
        bound = amounts(item.get(side)).get(name)
        when = None if bound is None else _when(side, bound, given.get(name))
        if when is not None:
            yield found(
                "GPU-L304",
                (*path, side, name),
                f"{when}a bound of type Pod refuses every pod that does not name {name}, pods without GPUs included",
                fix,
            )


def _when(side: str, bound: Quantity, given: Quantity | None) -> str | None:
    """When a bound on pods refuses those that name nothing: "" for now, None for never."""
    if given is None or _is_outside(side, bound, given):
        return ""
    if _is_outside(side, bound, ZERO):
        return f"once no container is given {canonical(given)} any more, "
    return None


def _is_outside(side: str, bound: Quantity, given: Quantity) -> bool:
    return compare(given, bound) > 0 if side == "max" else compare(given, bound) < 0


def _ratio(name: str, path: Path) -> Finding:
    return found(
        "GPU-L305",
        (*path, RATIO, name),
        f"a ratio refuses whoever asks for none of {name}, pods without GPUs included",
        "Remove it.",
    )
