"""The functions of lists and maps at run time.

Source: `ext/lists.go` and `ext/sets.go` of cel-go, `pkg/cel/library/lists.go` of `k8s.io/apiserver`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cmp_to_key
from itertools import pairwise
from typing import Final

from webhook.model.cel.cel_errors import CelError
from webhook.model.cel.declarations import COMPARABLE
from webhook.model.cel.operators import Implementation, add_values, compare_values, no_overload
from webhook.model.cel.values import (
    NO_VALUE,
    CelMap,
    CelValue,
    OptionalValue,
    UnsignedInteger,
    is_list,
    list_contains,
    type_name,
)

CelList = tuple[CelValue, ...]


def _is_same(one: CelValue, other: CelValue) -> bool:
    return list_contains((other,), one)


def _is_sorted(values: CelList) -> bool:
    _check_comparable(values[:1])
    return all(_compare_or_equal(one, other) <= 0 for one, other in pairwise(values))


def _compare_or_equal(one: CelValue, other: CelValue) -> int:
    """Compare two values; those that cannot be compared are equal, but must be of types with an order."""
    _check_comparable((one, other))
    try:
        return compare_values(one, other)
    except CelError:
        return 0


def _check_comparable(values: CelList) -> None:
    for value in values:
        if not isinstance(value, (bool, int, float, str, bytes)):
            raise no_overload(value)


def _extreme_of(name: str, sign: int) -> Implementation:
    def choose(values: CelList) -> CelValue:
        if not values:
            raise CelError(f"{name} called on empty list")
        _check_comparable(values)
        best = values[0]
        for value in values[1:]:
            if _compare_or_equal(best, value) * sign < 0:
                best = value
        return best

    return choose


def _sum_from(zero: CelValue) -> Implementation:
    def add_all(values: CelList) -> CelValue:
        total = zero
        for value in values:
            total = add_values(total, value)
        return total

    return add_all


def _index_in_list(values: CelList, element: CelValue) -> int:
    return next((index for index, value in enumerate(values) if _is_same(value, element)), -1)


def _last_index_in_list(values: CelList, element: CelValue) -> int:
    return next((index for index in reversed(range(len(values))) if _is_same(values[index], element)), -1)


def _contains_all(values: CelList, others: CelList) -> bool:
    return all(list_contains(values, other) for other in others)


def _are_equivalent_sets(one: CelList, other: CelList) -> bool:
    return _contains_all(one, other) and _contains_all(other, one)


def _intersect(one: CelList, other: CelList) -> bool:
    return any(list_contains(other, value) for value in one)


def _slice(values: CelList, start: int, end: int) -> CelList:
    if start < 0 or end < 0 or start > end or len(values) < end:
        raise CelError(f"cannot slice({start}, {end}) of a list of length {len(values)}")
    return values[start:end]


def _flatten(values: CelValue, depth: int = 1) -> CelList:
    if not is_list(values):
        raise no_overload(values)
    if depth < 0:
        raise CelError("level must be non-negative")
    flat: list[CelValue] = []
    for value in values:
        flat.extend(_flatten(value, depth - 1) if is_list(value) and depth else (value,))
    return tuple(flat)


def _distinct(values: CelList) -> CelList:
    unique: list[CelValue] = []
    for value in values:
        if not any(_is_same(value, other) for other in unique):
            unique.append(value)
    return tuple(unique)


def _sort(values: CelList) -> CelList:
    return _sort_by_keys(values, values)


def _sort_by_keys(values: CelList, keys: CelList) -> CelList:
    if len(values) != len(keys):
        raise CelError("sort: there must be one key for each element")
    if not values:
        return values
    _check_comparable(keys[:1])
    if len(keys) > 1 and any(type_name(key) != type_name(keys[0]) for key in keys):
        raise CelError("list elements must have the same type")
    key_of = cmp_to_key(_compare_or_equal)
    return tuple(values[index] for index in sorted(range(len(keys)), key=lambda index: key_of(keys[index])))


def _first(values: CelList) -> OptionalValue:
    return OptionalValue(True, values[0]) if values else NO_VALUE


def _last(values: CelList) -> OptionalValue:
    return OptionalValue(True, values[-1]) if values else NO_VALUE


def _unwrap_all(values: CelList) -> CelList:
    for value in values:
        if not isinstance(value, OptionalValue):
            raise CelError("value is not optional")
    return tuple(value.value for value in values if value.present)


def _insert_all(target: CelMap, update: CelMap) -> CelMap:
    for key, value in update.items():
        target = target.with_entry(key, value)
    return target


_ZEROS: Mapping[str, CelValue] = {"int": 0, "uint": UnsignedInteger(0), "double": 0.0}

LIST_OVERLOADS: Final[Mapping[str, Implementation]] = {
    "list_a_index_of_int": _index_in_list, "list_a_last_index_of_int": _last_index_in_list,
    "list_sets_contains_list": _contains_all, "list_sets_equivalent_list": _are_equivalent_sets,
    "list_sets_intersects_list": _intersect, "list_slice": _slice, "list_flatten": _flatten,
    "list_flatten_int": _flatten, "lists_range": lambda count: tuple(range(count)),
    "list_reverse": lambda values: values[::-1], "list_distinct": _distinct, "list_first": _first, "list_last": _last,
    "optional_unwrap": _unwrap_all, "optional_unwrapOpt": _unwrap_all, "@mapInsert_map_key_value": CelMap.with_entry,
    "@mapInsert_map_map": _insert_all, **{f"list_{one}_sum_{one}": _sum_from(zero) for one, zero in _ZEROS.items()},
    **{f"list_{one}_is_sorted_bool": _is_sorted for one in COMPARABLE},
    **{f"list_{one}_max_{one}": _extreme_of("max", 1) for one in COMPARABLE},
    **{f"list_{one}_min_{one}": _extreme_of("min", -1) for one in COMPARABLE},
    **{f"list_{one}_sort": _sort for one in COMPARABLE},
    **{f"list_{one}_sortByAssociatedKeys": _sort_by_keys for one in COMPARABLE},
}  # fmt: skip
"""Implementations of overloads on lists and maps, by name."""
