"""LimitRanges that no API server takes, though each of their amounts is one: in the API server's own words.

Source: `pkg/apis/core/validation`, ValidateLimitRange, after `SetDefaults_LimitRangeItem`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import parse_written_amounts
from webhook.engine.linting.ranges import RATIO, SIDES
from webhook.engine.linting.told import ObjectError, invalid_value
from webhook.model.apimachinery import MAX_MILLI, Quantity, canonical_text, compare_quantities, milli_value, whole_value
from webhook.model.paths import FieldPath
from webhook.model.ranges import CONTAINER, POD, ResourceList
from webhook.model.resource_names import is_container_resource, is_qualified_name, allows_overcommit

Json = dict[str, Any]
AmountsBySide = dict[str, ResourceList]

CLAIM_TYPE = "PersistentVolumeClaim"
ITEM_TYPES = (CONTAINER, POD, CLAIM_TYPE)
MIN, MAX, DEFAULT, REQUEST = "min", "max", "default", "defaultRequest"
ONE = Quantity(1)
NOT_A_CONTAINER_RESOURCE = "must be a standard resource for containers"

ORDER_RULES = (
    (MIN, MAX, MIN, MIN, "min value {} is greater than max value {}"),
    (MIN, REQUEST, REQUEST, REQUEST, "min value {} is greater than default request value {}"),
    (REQUEST, MAX, REQUEST, REQUEST, "default request value {} is greater than max value {}"),
    (REQUEST, DEFAULT, REQUEST, REQUEST, "default request value {} is greater than default limit value {}"),
    (MIN, DEFAULT, DEFAULT, MIN, "min value {} is greater than default value {}"),
    (DEFAULT, MAX, DEFAULT, MAX, "default value {} is greater than max value {}"),
)
"""Which amount may not be above which, whose place is told, whose value, and the words."""


def validate_limit_range(items: list[Json], path: FieldPath) -> Iterator[ObjectError]:
    """Every rule that the items of a LimitRange break."""
    seen: set[object] = set()
    for place, item in enumerate(items):
        here = (*path, place)
        kind = item.get("type")
        yield from _validate_item_type(kind, (*here, "type"))
        if isinstance(kind, str) and kind in seen:
            yield ObjectError((*here, "type"), f'Duplicate value: "{kind}"')
        seen |= {kind} if isinstance(kind, str) else set()
        yield from _validate_item(item, kind, here)


def _validate_item_type(kind: Any, path: FieldPath) -> Iterator[ObjectError]:
    known = kind in ITEM_TYPES if isinstance(kind, str) and "/" not in kind else is_qualified_name(str(kind))
    if not isinstance(kind, str) or not known:
        yield invalid_value(path, kind or "", "must be a standard limit type or fully qualified")


def _validate_item(item: Json, kind: Any, path: FieldPath) -> Iterator[ObjectError]:
    sides = {side: parse_written_amounts(item.get(side)) for side in SIDES}
    if kind == POD:
        for side in (DEFAULT, REQUEST):
            if sides.pop(side):
                yield ObjectError((*path, side), "Forbidden: may not be specified when `type` is 'Pod'")
    if kind == CLAIM_TYPE and "storage" not in sides[MIN] | sides[MAX]:
        words = "either minimum or maximum storage value is required, but neither was provided"
        yield ObjectError((*path, "limits"), f"Required value: {words}")
    if kind in (CONTAINER, POD):
        yield from _validate_item_names(sides, path)
    if kind == CONTAINER:
        _default_item_sides(sides)
    for name in dict.fromkeys(name for side in sides.values() for name in side):
        yield from _validate_item_order({side: held[name] for side, held in sides.items() if name in held}, name, path)


def _validate_item_names(sides: AmountsBySide, path: FieldPath) -> Iterator[ObjectError]:
    for side, held in sides.items():
        for name in held:
            if not is_container_resource(name):
                words = "doesn't follow extended resource name standard" if "/" in name else NOT_A_CONTAINER_RESOURCE
                yield invalid_value((*path, side, name), name, words)


def _default_item_sides(sides: AmountsBySide) -> None:
    """What is stored beside what was written: each side from the one that it defaults to."""
    sides[DEFAULT] = sides[MAX] | sides[DEFAULT]
    sides[REQUEST] = sides[MIN] | sides[DEFAULT] | sides[REQUEST]


def _validate_item_order(held: ResourceList, name: str, path: FieldPath) -> Iterator[ObjectError]:
    """The rules that the amounts of one resource break, by side."""
    for low, high, place, shown, words in ORDER_RULES:
        if low in held and high in held and compare_quantities(held[low], held[high]) > 0:
            told = words.format(canonical_text(held[low]), canonical_text(held[high]))
            yield invalid_value((*path, place, name), canonical_text(held[shown]), told)
    if RATIO in held:
        yield from _validate_item_ratio(held, (*path, RATIO, name))
    if not allows_overcommit(name) and {DEFAULT, REQUEST} <= held.keys() and compare_quantities(held[DEFAULT], held[REQUEST]):
        given, asked = canonical_text(held[DEFAULT]), canonical_text(held[REQUEST])
        words = f"default value {given} must equal to defaultRequest value {asked} in {name}"
        yield invalid_value((*path, REQUEST, name), asked, words)


def _validate_item_ratio(held: ResourceList, path: FieldPath) -> Iterator[ObjectError]:
    ratio = held[RATIO]
    said = canonical_text(ratio)
    if compare_quantities(ratio, ONE) < 0:
        yield invalid_value(path, said, f"ratio {said} is less than 1")
    if MIN not in held or MAX not in held:
        return
    bounds = held[MAX], held[MIN], ratio
    plain = max(map(whole_value, bounds)) < MAX_MILLI
    most, least, allowed = map(milli_value if plain else whole_value, bounds)
    if least and allowed / (1000 if plain else 1) > most / least:
        yield invalid_value(path, said, f"ratio {said} is greater than max/min = {most / least:f}")
