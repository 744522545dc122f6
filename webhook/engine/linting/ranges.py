"""Traps in LimitRanges.

A LimitRange is stored with more than was written: `max` becomes the default, the default the default request, `min` the
default request where there is no default. And a bound of type Pod refuses whoever does not name the resource at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import applied_anew, found, mapping, more_than_none
from webhook.model.findings import Finding
from webhook.model.paths import Path
from webhook.model.resources import gpu_resource

Json = dict[str, Any]
RATIO = "maxLimitRequestRatio"
SIDES = ("max", "min", "default", "defaultRequest", RATIO)


def range_findings(data: Json) -> Iterator[Finding]:
    """Every trap in a LimitRange."""
    for place, item in enumerate(_items(data)):
        path: Path = ("spec", "limits", place)
        for name in _gpus(item):
            if item.get("type") == "Container":
                yield from _container(item, name, path)
            elif item.get("type") == "Pod":
                yield from _pod(item, name, path)
            if name in mapping(item.get(RATIO)):
                yield _ratio(name, path)


def _items(data: Json) -> list[Json]:
    items = mapping(data.get("spec")).get("limits")
    return [mapping(item) for item in items] if isinstance(items, list) else []


def _gpus(item: Json) -> list[str]:
    names = dict.fromkeys(name for side in SIDES for name in mapping(item.get(side)))
    return [name for name in names if gpu_resource(name) is not None]


def _container(item: Json, name: str, path: Path) -> Iterator[Finding]:
    most, least = mapping(item.get("max")).get(name), mapping(item.get("min")).get(name)
    given = mapping(item.get("default")).get(name, most)
    if given is None:
        if least is not None or name in mapping(item.get("defaultRequest")):
            yield _no_limit(name, (*path, "min" if least is not None else "defaultRequest", name))
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


def _no_limit(name: str, path: Path) -> Finding:
    return found(
        "GPU-L302",
        path,
        f"it is the default request of {name}, without a limit: every pod with a container that does not name it is "
        "refused as invalid",
        "Remove it; limits.perContainer of a policy holds only containers that ask.",
    )


def _pod(item: Json, name: str, path: Path) -> Iterator[Finding]:
    for side in ("max", "min"):
        if name in mapping(item.get(side)):
            yield found(
                "GPU-L304",
                (*path, side, name),
                f"a bound of type Pod refuses every pod that does not name {name}, pods without GPUs included",
                'Hold containers instead, with default: "0"; limits.perPod of a policy holds the total.',
            )


def _ratio(name: str, path: Path) -> Finding:
    return found(
        "GPU-L305",
        (*path, RATIO, name),
        f"limit and request of {name} are always equal, so a ratio only refuses whoever asks for none",
        "Remove it.",
    )


def fixed_range(data: Json) -> Json:
    """The LimitRange without its traps: bounds hold those who ask, and nobody is given a GPU."""
    items = [
        {side: dict(value) if isinstance(value, dict) else value for side, value in i.items()} for i in _items(data)
    ]
    for item in items:
        for name in _gpus(item):
            if item.get("type") == "Container":
                _free(item, name)
            elif item.get("type") == "Pod":
                _move(item, name, _container_in(items))
    return applied_anew(data, {"limits": [left for item in items if len(left := _filled(item)) > 1]})


def _free(item: Json, name: str) -> None:
    """Keep the maximum, and give nothing to whoever names none. A minimum cannot stay beside a default of zero."""
    for side in ("min", "defaultRequest", RATIO):
        mapping(item.get(side)).pop(name, None)
    if name in mapping(item.get("max")):
        item.setdefault("default", {})[name] = "0"
    else:
        mapping(item.get("default")).pop(name, None)


def _move(item: Json, name: str, container: Json) -> None:
    most = mapping(item.get("max")).pop(name, None)
    for side in ("min", RATIO):
        mapping(item.get(side)).pop(name, None)
    if most is not None:
        container.setdefault("max", {}).setdefault(name, most)
        container.setdefault("default", {})[name] = "0"


def _container_in(items: list[Json]) -> Json:
    """The item about containers; there may be one only."""
    for item in items:
        if item.get("type") == "Container":
            return item
    items.append({"type": "Container"})
    return items[-1]


def _filled(item: Json) -> Json:
    return {side: value for side, value in item.items() if value not in ({}, None)}
