"""Traps in LimitRanges and ResourceQuotas themselves, and the same objects without them.

All of them are accepted by the API server and do something else than their author meant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from webhook.engine.linting.limit_ranges import fix_limit_range, lint_limit_range, written_default_limits
from webhook.engine.linting.objects import ObjectError, as_mapping
from webhook.engine.linting.quotas import QuotaScopes, fix_quota, lint_quota, scopes_covering_all_gpus
from webhook.engine.linting.validation import find_object_errors
from webhook.model.findings import Finding
from webhook.model.limit_ranges import ResourceList

Json = dict[str, Any]
LIMIT_RANGE, QUOTA = "LimitRange", "ResourceQuota"
LINTED_KINDS = (LIMIT_RANGE, QUOTA)
NO_DEFAULT_LIMITS = ResourceList()

__all__ = [
    "LIMIT_RANGE",
    "LINTED_KINDS",
    "QUOTA",
    "ObjectError",
    "find_object_errors",
    "fix_object",
    "lint_all_objects",
    "lint_object",
    "scopes_covering_all_gpus",
]


def lint_all_objects(objects: Sequence[Json], classes: Collection[str] = ()) -> list[list[Finding]]:
    """Every trap in each of many objects, in their order. Those of one namespace are seen together. See
    `lint_object`.
    """
    counting: defaultdict[str, Counter[QuotaScopes]] = defaultdict(Counter)
    given: defaultdict[str, ResourceList] = defaultdict(ResourceList)
    for one in objects:
        counting[_object_namespace(one)].update(scopes_covering_all_gpus(one))
        given[_object_namespace(one)] |= written_default_limits(one)
    return [
        lint_object(one, counting[space] - Counter(scopes_covering_all_gpus(one)), classes, given[space])
        for one, space in zip(objects, map(_object_namespace, objects), strict=True)
    ]


def _object_namespace(data: Json) -> str:
    return str(as_mapping(data.get("metadata")).get("namespace", "default"))


def lint_object(
    data: Any,
    counting: Collection[QuotaScopes] = (),
    classes: Collection[str] = (),
    given: ResourceList = NO_DEFAULT_LIMITS,
) -> list[Finding]:
    """Every trap in an object, none for an object of another kind.

    Args:
        data: The object, as written or as stored.
        counting: The scopes of other quotas of its namespace that count every form of GPU. See
        `scopes_covering_all_gpus`.
        classes: The DeviceClasses of the cluster; none where they are not known.
        given: The limits that LimitRanges of its namespace give to containers that name none; its own come first.
    """
    match as_mapping(data).get("kind"):
        case "LimitRange":
            return list(lint_limit_range(data, given))
        case "ResourceQuota":
            return list(lint_quota(data, counting, classes))
        case _:
            return []


def fix_object(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """The object without the traps that were found in it, ready to be applied. See `lint_object`."""
    return fix_limit_range(data) if data["kind"] == LIMIT_RANGE else fix_quota(data, findings, classes)
