"""LimitRanges that no API server takes, though each of their amounts is one: in the API server's own words.

Source: `pkg/apis/core/validation`, ValidateLimitRange, after `SetDefaults_LimitRangeItem`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from webhook.engine.linting.objects import amounts
from webhook.engine.linting.ranges import RATIO, SIDES
from webhook.engine.linting.told import Misshapen, invalid
from webhook.model.apimachinery import MAX_MILLI, Quantity, canonical, compare, milli_value_of, value_of
from webhook.model.paths import Path
from webhook.model.ranges import CONTAINER, POD, Amounts
from webhook.model.resource_names import is_for_containers, is_qualified, may_be_overcommitted

Json = dict[str, Any]
Sides = dict[str, Amounts]

CLAIM = "PersistentVolumeClaim"
TYPES = (CONTAINER, POD, CLAIM)
MIN, MAX, DEFAULT, REQUEST = "min", "max", "default", "defaultRequest"
ONE = Quantity(1)
OF_CONTAINERS = "must be a standard resource for containers"

ORDERED = (
    (MIN, MAX, MIN, MIN, "min value {} is greater than max value {}"),
    (MIN, REQUEST, REQUEST, REQUEST, "min value {} is greater than default request value {}"),
    (REQUEST, MAX, REQUEST, REQUEST, "default request value {} is greater than max value {}"),
    (REQUEST, DEFAULT, REQUEST, REQUEST, "default request value {} is greater than default limit value {}"),
    (MIN, DEFAULT, DEFAULT, MIN, "min value {} is greater than default value {}"),
    (DEFAULT, MAX, DEFAULT, MAX, "default value {} is greater than max value {}"),
)
"""Which amount may not be above which, whose place is told, whose value, and the words."""


def broken_range(items: list[Json], path: Path) -> Iterator[Misshapen]:
    """Every rule that the items of a LimitRange break."""
    seen: set[object] = set()
    for place, item in enumerate(items):
        here = (*path, place)
        kind = item.get("type")
        yield from _type(kind, (*here, "type"))
        if isinstance(kind, str) and kind in seen:
            yield Misshapen((*here, "type"), f'Duplicate value: "{kind}"')
        seen |= {kind} if isinstance(kind, str) else set()
        yield from _item(item, kind, here)


def _type(kind: Any, path: Path) -> Iterator[Misshapen]:
    known = kind in TYPES if isinstance(kind, str) and "/" not in kind else is_qualified(str(kind))
    if not isinstance(kind, str) or not known:
        yield invalid(path, kind or "", "must be a standard limit type or fully qualified")


def _item(item: Json, kind: Any, path: Path) -> Iterator[Misshapen]:
    sides = {side: amounts(item.get(side)) for side in SIDES}
    if kind == POD:
        for side in (DEFAULT, REQUEST):
            if sides.pop(side):
                yield Misshapen((*path, side), "Forbidden: may not be specified when `type` is 'Pod'")
    if kind == CLAIM and "storage" not in sides[MIN] | sides[MAX]:
        words = "either minimum or maximum storage value is required, but neither was provided"
        yield Misshapen((*path, "limits"), f"Required value: {words}")
    if kind in (CONTAINER, POD):
        yield from _names(sides, path)
    if kind == CONTAINER:
        _fill(sides)
    for name in dict.fromkeys(name for side in sides.values() for name in side):
        yield from _order({side: held[name] for side, held in sides.items() if name in held}, name, path)


def _names(sides: Sides, path: Path) -> Iterator[Misshapen]:
    for side, held in sides.items():
        for name in held:
            if not is_for_containers(name):
                words = "doesn't follow extended resource name standard" if "/" in name else OF_CONTAINERS
                yield invalid((*path, side, name), name, words)


def _fill(sides: Sides) -> None:
    """What is stored beside what was written: each side from the one that it defaults to."""
    sides[DEFAULT] = sides[MAX] | sides[DEFAULT]
    sides[REQUEST] = sides[MIN] | sides[DEFAULT] | sides[REQUEST]


def _order(held: Amounts, name: str, path: Path) -> Iterator[Misshapen]:
    """The rules that the amounts of one resource break, by side."""
    for low, high, place, shown, words in ORDERED:
        if low in held and high in held and compare(held[low], held[high]) > 0:
            told = words.format(canonical(held[low]), canonical(held[high]))
            yield invalid((*path, place, name), canonical(held[shown]), told)
    if RATIO in held:
        yield from _ratio(held, (*path, RATIO, name))
    if not may_be_overcommitted(name) and {DEFAULT, REQUEST} <= held.keys() and compare(held[DEFAULT], held[REQUEST]):
        given, asked = canonical(held[DEFAULT]), canonical(held[REQUEST])
        words = f"default value {given} must equal to defaultRequest value {asked} in {name}"
        yield invalid((*path, REQUEST, name), asked, words)


def _ratio(held: Amounts, path: Path) -> Iterator[Misshapen]:
    ratio = held[RATIO]
    said = canonical(ratio)
    if compare(ratio, ONE) < 0:
        yield invalid(path, said, f"ratio {said} is less than 1")
    if MIN not in held or MAX not in held:
        return
    bounds = held[MAX], held[MIN], ratio
    plain = max(map(value_of, bounds)) < MAX_MILLI
    most, least, allowed = map(milli_value_of if plain else value_of, bounds)
    if least and allowed / (1000 if plain else 1) > most / least:
        yield invalid(path, said, f"ratio {said} is greater than max/min = {most / least:f}")
