"""Lint and fix LimitRanges and ResourceQuotas that the API server accepts but that do not do what they appear to."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from webhook.engine.linting.limit_ranges import fix_limit_range, lint_limit_range, written_default_limits
from webhook.engine.linting.objects import as_mapping
from webhook.engine.linting.quotas import QuotaScopes, fix_quota, lint_quota, scopes_covering_all_gpus
from webhook.model.findings import Finding
from webhook.model.limit_ranges import ResourceList
from webhook.well_known import Json

LIMIT_RANGE, QUOTA = "LimitRange", "ResourceQuota"
LINTED_KINDS = (LIMIT_RANGE, QUOTA)
NO_DEFAULT_LIMITS = ResourceList()


def lint_all_objects(objects: Sequence[Json], classes: Collection[str] = ()) -> list[list[Finding]]:
    """Return the findings of each object, in order; objects of one namespace are checked together."""
    covering: defaultdict[str, Counter[QuotaScopes]] = defaultdict(Counter)
    defaults: defaultdict[str, ResourceList] = defaultdict(ResourceList)
    for one in objects:
        covering[_object_namespace(one)].update(scopes_covering_all_gpus(one))
        defaults[_object_namespace(one)] |= written_default_limits(one)
    return [
        lint_object(one, covering[name] - Counter(scopes_covering_all_gpus(one)), classes, defaults[name])
        for one, name in zip(objects, map(_object_namespace, objects), strict=True)
    ]


def _object_namespace(data: Json) -> str:
    return str(as_mapping(data.get("metadata")).get("namespace", "default"))


def lint_object(
    data: Any,
    covering: Collection[QuotaScopes] = (),
    classes: Collection[str] = (),
    defaults: ResourceList = NO_DEFAULT_LIMITS,
) -> list[Finding]:
    """Return the findings of an object, none for another kind.

    Args:
        data: The object, as written or as stored.
        covering: The scopes of other quotas of its namespace that count every form of GPU.
        classes: The DeviceClasses of the cluster; empty if unknown.
        defaults: The default limits of its namespace's LimitRanges.
    """
    kind = as_mapping(data).get("kind")
    if kind == LIMIT_RANGE:
        return list(lint_limit_range(data, defaults))
    return list(lint_quota(data, covering, classes)) if kind == QUOTA else []


def fix_object(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """Return the corrected object, ready to be applied."""
    return fix_limit_range(data) if data["kind"] == LIMIT_RANGE else fix_quota(data, findings, classes)
