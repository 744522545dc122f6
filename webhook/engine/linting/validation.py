"""Find errors in LimitRanges and ResourceQuotas: what the API server rejects, in its own words, or has no effect.

Sources: `pkg/apis/core/validation`, ValidateResourceQuotaSpec and, after defaults, ValidateLimitRange.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from typing import Any

from webhook.engine.linting.limit_ranges import RATIO, SIDES
from webhook.engine.linting.objects import ObjectError, as_list, as_mapping, invalid_value, parse_written_amounts
from webhook.model.apimachinery import MAX_MILLI, Quantity, canonical_text, compare_quantities, milli_value, whole_value
from webhook.model.defaulting import limit_range_item_defaults
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import CONTAINER, POD, ResourceList
from webhook.model.pods import QuantityText
from webhook.model.quantity import parse_nano_or_none
from webhook.model.resource_names import (
    REQUESTS,
    allows_overcommit,
    is_container_resource,
    is_extended,
    is_huge_pages,
    is_qualified_name,
)
from webhook.well_known import Json

OBJECT_KEYS = frozenset(
    (
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "persistentvolumeclaims",
        "configmaps",
        "services.nodeports",
        "services.loadbalancers",
    )
)
COMPUTE_KEYS = frozenset(f"{side}{name}" for side in ("", REQUESTS, "limits.") for name in ("cpu", "memory"))
STANDARD_KEYS = (
    OBJECT_KEYS
    | COMPUTE_KEYS
    | {f"{side}ephemeral-storage" for side in ("", REQUESTS, "limits.")}
    | {"requests.storage"}
)

VOLUME_ATTRIBUTES_CLASS, BEST_EFFORT = "VolumeAttributesClass", "BestEffort"
POD_KEYS = frozenset({"pods"}) | COMPUTE_KEYS
KEYS_BY_SCOPE = {
    **dict.fromkeys(("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass"), POD_KEYS),
    "CrossNamespacePodAffinity": POD_KEYS,
    BEST_EFFORT: frozenset({"pods"}),
    VOLUME_ATTRIBUTES_CLASS: frozenset({"persistentvolumeclaims", "requests.storage"}),
}
"""The standard keys that each scope allows."""

CONFLICTING_SCOPES = ({BEST_EFFORT, "NotBestEffort"}, {"Terminating", "NotTerminating"})
VALUE_OPERATORS, VALUELESS_OPERATORS = ("In", "NotIn"), ("Exists", "DoesNotExist")
ANY_OPERATOR_SCOPES = ("PriorityClass", VOLUME_ATTRIBUTES_CLASS)
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
"""The smaller amount, the larger one, the field and the value in the error, and its text."""


TYPE_NAMES = {dict: "a map", list: "a list", type(None): "nothing", str: "a text", bool: "a boolean"}


def find_object_errors(data: Json) -> Iterator[ObjectError]:
    """Yield every error of a LimitRange or a ResourceQuota."""
    spec = data.get("spec")
    if spec is None:
        yield ObjectError(("spec",), "skipped: the object has no spec and no effect", rejected=False)
    elif not isinstance(spec, dict):
        yield _wrong_type("a map", ("spec",), spec)
    elif data["kind"] == "LimitRange":
        yield from _validate_range_spec(spec)
    else:
        yield from _validate_amounts(spec.get("hard"), ("spec", "hard"), least=0)
        yield from validate_quota(spec)


def find_rejections(data: Json) -> Iterator[ObjectError]:
    """Yield the errors for which the API server rejects an object, or an object of a list."""
    for each in data["items"] if data["kind"] == "List" else [data]:
        yield from (error for error in find_object_errors(each) if error.rejected)


def _validate_range_spec(spec: Json) -> Iterator[ObjectError]:
    path: FieldPath = ("spec", "limits")
    items = spec.get("limits")
    if items is None:
        yield ObjectError(path, "skipped: the object has no limits and no effect", rejected=False)
    elif not isinstance(items, list):
        yield _wrong_type("a list", path, items)
    else:
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                yield _wrong_type("a map", (*path, index), item)
            for side in SIDES:
                yield from _validate_amounts(as_mapping(item).get(side), (*path, index, side))
        yield from validate_limit_range([as_mapping(item) for item in items], path)


def _validate_amounts(amounts: Any, path: FieldPath, least: float = -inf) -> Iterator[ObjectError]:
    if amounts is not None and not isinstance(amounts, dict):
        yield _wrong_type("a map", path, amounts)
    for name, amount in as_mapping(amounts).items():
        readable = isinstance(amount, QuantityText) and not isinstance(amount, bool)
        value = parse_nano_or_none(amount) if readable else None
        if amount is None:
            yield ObjectError((*path, name), "null, which the API server reads as 0", rejected=False)
        elif value is None or value < least:
            yield _wrong_type("an amount", (*path, name), amount)


def _wrong_type(must: str, path: FieldPath, found: Any) -> ObjectError:
    text = repr(found)[:60] if must == "an amount" else TYPE_NAMES.get(type(found), "a number")
    return ObjectError(path, f"must be {must}, found {text}; the API server rejects it")


def validate_quota(spec: Json) -> Iterator[ObjectError]:
    """Yield every rule that a quota breaks."""
    hard = as_mapping(spec.get("hard"))
    for key in hard:
        yield from _validate_quota_key(key, ("spec", "hard", key))
    for key, amount in parse_written_amounts(hard).items():
        if (key in OBJECT_KEYS or is_extended(key)) and milli_value(amount) % 1000:
            yield invalid_value(("spec", "hard", key), canonical_text(amount), "must be an integer")
    scopes = [one for one in as_list(spec.get("scopes")) if isinstance(one, str)]
    yield from (invalid_value(("spec", "scopes"), scopes, error) for error in _scope_errors(scopes, hard))
    requirements = [as_mapping(one) for one in as_list(as_mapping(spec.get("scopeSelector")).get("matchExpressions"))]
    path: FieldPath = ("spec", "scopeSelector", "matchExpressions")
    names = [str(one.get("scopeName", "")) for one in requirements]
    yield from (invalid_value(path, names, error) for error in _scope_errors(names, hard))
    for index, one in enumerate(requirements):
        yield from _validate_scope_operator(one, (*path, index))


def _validate_quota_key(key: str, path: FieldPath) -> Iterator[ObjectError]:
    if "/" not in key:
        if not _is_standard_quota_key(key):
            yield invalid_value(path, key, "must be a standard resource for quota")
    elif not is_qualified_name(key):
        yield invalid_value(path, key, "must be a name with a DNS name before its slash")


def _is_standard_quota_key(key: str) -> bool:
    return key in STANDARD_KEYS or is_huge_pages(key.removeprefix(REQUESTS))


def _scope_errors(scopes: list[str], hard: Iterable[str]) -> Iterator[str]:
    if not KEYS_BY_SCOPE.keys() >= set(scopes):
        yield "unsupported scope"
    standard = set(filter(_is_standard_quota_key, hard))
    if any(scope in KEYS_BY_SCOPE and not standard <= KEYS_BY_SCOPE[scope] for scope in scopes):
        yield "unsupported scope applied to resource"
    if any(pair <= set(scopes) for pair in CONFLICTING_SCOPES):
        yield "conflicting scopes"


def _validate_scope_operator(requirement: Json, path: FieldPath) -> Iterator[ObjectError]:
    scope, operator, values = requirement.get("scopeName"), requirement.get("operator"), requirement.get("values")
    if operator not in VALUE_OPERATORS + VALUELESS_OPERATORS:
        yield invalid_value((*path, "operator"), operator or "", "not a valid selector operator")
    elif scope in KEYS_BY_SCOPE and scope not in ANY_OPERATOR_SCOPES and operator != "Exists":
        yield invalid_value((*path, "operator"), operator, f"must be 'Exists' when scope is {scope}")
    if operator in VALUE_OPERATORS and not values:
        message = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        yield ObjectError((*path, "values"), f"Required value: {message}")
    if operator in VALUELESS_OPERATORS and values:
        message = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        yield invalid_value((*path, "values"), values, message)


def validate_limit_range(items: list[Json], path: FieldPath) -> Iterator[ObjectError]:
    """Yield every rule that the items of a LimitRange break."""
    types: set[str] = set()
    for index, item in enumerate(items):
        item_path = (*path, index)
        kind = item.get("type")
        if not isinstance(kind, str) or not (is_qualified_name(kind) if "/" in kind else kind in ITEM_TYPES):
            yield invalid_value((*item_path, "type"), kind or "", "must be a standard limit type or fully qualified")
        if isinstance(kind, str):
            if kind in types:
                yield ObjectError((*item_path, "type"), f'Duplicate value: "{kind}"')
            types.add(kind)
        yield from _validate_item(item, kind, item_path)


def _validate_item(item: Json, kind: Any, path: FieldPath) -> Iterator[ObjectError]:
    sides = {side: parse_written_amounts(item.get(side)) for side in SIDES}
    if kind == POD:
        for side in (DEFAULT, REQUEST):
            if sides.pop(side):
                yield ObjectError((*path, side), "Forbidden: may not be specified when `type` is 'Pod'")
    if kind == CLAIM_TYPE and "storage" not in sides[MIN] | sides[MAX]:
        message = "either minimum or maximum storage value is required, but neither was provided"
        yield ObjectError((*path, "limits"), f"Required value: {message}")
    if kind in (CONTAINER, POD):
        yield from _validate_item_names(sides, path)
    if kind == CONTAINER:
        sides[DEFAULT], sides[REQUEST] = limit_range_item_defaults(
            sides[MAX], sides[MIN], sides[DEFAULT], sides[REQUEST]
        )
    for name in dict.fromkeys(name for side in sides.values() for name in side):
        yield from _validate_item_order({side: some[name] for side, some in sides.items() if name in some}, name, path)


def _validate_item_names(sides: AmountsBySide, path: FieldPath) -> Iterator[ObjectError]:
    for side, amounts in sides.items():
        for name in amounts:
            if not is_container_resource(name):
                message = "doesn't follow extended resource name standard" if "/" in name else NOT_A_CONTAINER_RESOURCE
                yield invalid_value((*path, side, name), name, message)


def _validate_item_order(amounts: ResourceList, name: str, path: FieldPath) -> Iterator[ObjectError]:
    for low, high, field, shown, message in ORDER_RULES:
        if low in amounts and high in amounts and compare_quantities(amounts[low], amounts[high]) > 0:
            text = message.format(canonical_text(amounts[low]), canonical_text(amounts[high]))
            yield invalid_value((*path, field, name), canonical_text(amounts[shown]), text)
    if RATIO in amounts:
        yield from _validate_item_ratio(amounts, (*path, RATIO, name))
    if (
        not allows_overcommit(name)
        and {DEFAULT, REQUEST} <= amounts.keys()
        and compare_quantities(amounts[DEFAULT], amounts[REQUEST])
    ):
        default, request = canonical_text(amounts[DEFAULT]), canonical_text(amounts[REQUEST])
        message = f"default value {default} must equal to defaultRequest value {request} in {name}"
        yield invalid_value((*path, REQUEST, name), request, message)


def _validate_item_ratio(amounts: ResourceList, path: FieldPath) -> Iterator[ObjectError]:
    ratio = amounts[RATIO]
    text = canonical_text(ratio)
    if compare_quantities(ratio, ONE) < 0:
        yield invalid_value(path, text, f"ratio {text} is less than 1")
    if MIN not in amounts or MAX not in amounts:
        return
    bounds = amounts[MAX], amounts[MIN], ratio
    plain = max(map(whole_value, bounds)) < MAX_MILLI
    most, least, allowed = map(milli_value if plain else whole_value, bounds)
    if least and allowed / (1000 if plain else 1) > most / least:
        yield invalid_value(path, text, f"ratio {text} is greater than max/min = {most / least:f}")
