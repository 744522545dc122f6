"""ResourceQuotas that no API server takes, though each of their amounts is one: in the API server's own words.

Source: `pkg/apis/core/validation`, ValidateResourceQuotaSpec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from webhook.engine.linting.objects import parse_written_amounts, as_mapping, as_list
from webhook.engine.linting.told import ObjectError, invalid_value
from webhook.model.apimachinery import canonical_text, milli_value
from webhook.model.paths import FieldPath
from webhook.model.resource_names import REQUESTS, is_extended, is_huge_pages, is_qualified_name

Json = dict[str, Any]

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
STANDARD_KEYS = OBJECT_KEYS | COMPUTE_KEYS | {f"{side}ephemeral-storage" for side in ("", REQUESTS, "limits.")} | {"requests.storage"}

OF_VOLUMES, BEST_EFFORT = "VolumeAttributesClass", "BestEffort"
POD_KEYS = frozenset({"pods"}) | COMPUTE_KEYS
KEYS_BY_SCOPE = {
    **dict.fromkeys(("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass"), POD_KEYS),
    "CrossNamespacePodAffinity": POD_KEYS,
    BEST_EFFORT: frozenset({"pods"}),
    OF_VOLUMES: frozenset({"persistentvolumeclaims", "requests.storage"}),
}
"""Each scope, and the standard resources that it goes together with."""

CONFLICTING_SCOPES = ({BEST_EFFORT, "NotBestEffort"}, {"Terminating", "NotTerminating"})
WITH_VALUES, WITHOUT = ("In", "NotIn"), ("Exists", "DoesNotExist")
ANY_OPERATOR_SCOPES = ("PriorityClass", OF_VOLUMES)


def validate_quota(spec: Json) -> Iterator[ObjectError]:
    """Every rule that a quota breaks."""
    hard = as_mapping(spec.get("hard"))
    for key in hard:
        yield from _validate_quota_key(key, ("spec", "hard", key))
    for key, amount in parse_written_amounts(hard).items():
        if (key in OBJECT_KEYS or is_extended(key)) and milli_value(amount) % 1000:
            yield invalid_value(("spec", "hard", key), canonical_text(amount), "must be an integer")
    scopes = [one for one in as_list(spec.get("scopes")) if isinstance(one, str)]
    yield from (invalid_value(("spec", "scopes"), scopes, words) for words in _scope_errors(scopes, hard))
    asked = [as_mapping(one) for one in as_list(as_mapping(spec.get("scopeSelector")).get("matchExpressions"))]
    path: FieldPath = ("spec", "scopeSelector", "matchExpressions")
    names = [str(one.get("scopeName", "")) for one in asked]
    yield from (invalid_value(path, names, words) for words in _scope_errors(names, hard))
    for place, one in enumerate(asked):
        yield from _validate_scope_operator(one, (*path, place))


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


def _validate_scope_operator(asked: Json, path: FieldPath) -> Iterator[ObjectError]:
    scope, operator, values = asked.get("scopeName"), asked.get("operator"), asked.get("values")
    if operator not in WITH_VALUES + WITHOUT:
        yield invalid_value((*path, "operator"), operator or "", "not a valid selector operator")
    elif scope in KEYS_BY_SCOPE and scope not in ANY_OPERATOR_SCOPES and operator != "Exists":
        yield invalid_value((*path, "operator"), operator, f"must be 'Exists' when scope is {scope}")
    if operator in WITH_VALUES and not values:
        words = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        yield ObjectError((*path, "values"), f"Required value: {words}")
    if operator in WITHOUT and values:
        words = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        yield invalid_value((*path, "values"), values, words)
