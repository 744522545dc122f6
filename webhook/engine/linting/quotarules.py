"""ResourceQuotas that no API server takes, though each of their amounts is one: in the API server's own words.

Source: `pkg/apis/core/validation`, ValidateResourceQuotaSpec.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from webhook.engine.linting.objects import amounts, mapping, sequence
from webhook.engine.linting.told import Misshapen, invalid
from webhook.model.apimachinery import canonical, milli_value_of
from webhook.model.paths import Path
from webhook.model.resource_names import REQUESTS, is_extended, is_huge_pages, is_qualified

Json = dict[str, Any]

OBJECTS = frozenset(
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
COMPUTE = frozenset(f"{side}{name}" for side in ("", REQUESTS, "limits.") for name in ("cpu", "memory"))
STANDARD = OBJECTS | COMPUTE | {f"{side}ephemeral-storage" for side in ("", REQUESTS, "limits.")} | {"requests.storage"}

OF_VOLUMES, BEST_EFFORT = "VolumeAttributesClass", "BestEffort"
OF_PODS = frozenset({"pods"}) | COMPUTE
SCOPES = {
    **dict.fromkeys(("Terminating", "NotTerminating", "NotBestEffort", "PriorityClass"), OF_PODS),
    "CrossNamespacePodAffinity": OF_PODS,
    BEST_EFFORT: frozenset({"pods"}),
    OF_VOLUMES: frozenset({"persistentvolumeclaims", "requests.storage"}),
}
"""Each scope, and the standard resources that it goes together with."""

APART = ({BEST_EFFORT, "NotBestEffort"}, {"Terminating", "NotTerminating"})
WITH_VALUES, WITHOUT = ("In", "NotIn"), ("Exists", "DoesNotExist")
ANY_OPERATOR = ("PriorityClass", OF_VOLUMES)


def broken_quota(spec: Json) -> Iterator[Misshapen]:
    """Every rule that a quota breaks."""
    hard = mapping(spec.get("hard"))
    for key in hard:
        yield from _key(key, ("spec", "hard", key))
    for key, amount in amounts(hard).items():
        if (key in OBJECTS or is_extended(key)) and milli_value_of(amount) % 1000:
            yield invalid(("spec", "hard", key), canonical(amount), "must be an integer")
    scopes = [one for one in sequence(spec.get("scopes")) if isinstance(one, str)]
    yield from (invalid(("spec", "scopes"), scopes, words) for words in _scopes(scopes, hard))
    asked = [mapping(one) for one in sequence(mapping(spec.get("scopeSelector")).get("matchExpressions"))]
    path: Path = ("spec", "scopeSelector", "matchExpressions")
    names = [str(one.get("scopeName", "")) for one in asked]
    yield from (invalid(path, names, words) for words in _scopes(names, hard))
    for place, one in enumerate(asked):
        yield from _operator(one, (*path, place))


def _key(key: str, path: Path) -> Iterator[Misshapen]:
    if "/" not in key:
        if not _is_standard(key):
            yield invalid(path, key, "must be a standard resource for quota")
    elif not is_qualified(key):
        yield invalid(path, key, "must be a name with a DNS name before its slash")


def _is_standard(key: str) -> bool:
    return key in STANDARD or is_huge_pages(key.removeprefix(REQUESTS))


def _scopes(scopes: list[str], hard: Iterable[str]) -> Iterator[str]:
    if not SCOPES.keys() >= set(scopes):
        yield "unsupported scope"
    standard = set(filter(_is_standard, hard))
    if any(scope in SCOPES and not standard <= SCOPES[scope] for scope in scopes):
        yield "unsupported scope applied to resource"
    if any(pair <= set(scopes) for pair in APART):
        yield "conflicting scopes"


def _operator(asked: Json, path: Path) -> Iterator[Misshapen]:
    scope, operator, values = asked.get("scopeName"), asked.get("operator"), asked.get("values")
    if operator not in WITH_VALUES + WITHOUT:
        yield invalid((*path, "operator"), operator or "", "not a valid selector operator")
    elif scope in SCOPES and scope not in ANY_OPERATOR and operator != "Exists":
        yield invalid((*path, "operator"), operator, f"must be 'Exists' when scope is {scope}")
    if operator in WITH_VALUES and not values:
        words = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
        yield Misshapen((*path, "values"), f"Required value: {words}")
    if operator in WITHOUT and values:
        words = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
        yield invalid((*path, "values"), values, words)
