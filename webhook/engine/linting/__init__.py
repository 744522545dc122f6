"""Traps in LimitRanges and ResourceQuotas themselves, and the same objects without them.

All of them are accepted by the API server and do something else than their author meant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from webhook.engine.linting.objects import mapping
from webhook.engine.linting.quotas import Scopes, fixed_quota, of_every_form, quota_findings
from webhook.engine.linting.rangefixes import fixed_range
from webhook.engine.linting.ranges import given_limits, range_findings
from webhook.engine.linting.shapes import misshapen
from webhook.engine.linting.told import Misshapen
from webhook.model.findings import Finding
from webhook.model.ranges import Amounts

Json = dict[str, Any]
LIMIT_RANGE, QUOTA = "LimitRange", "ResourceQuota"
LINTED = (LIMIT_RANGE, QUOTA)
NOTHING = Amounts()

__all__ = ["LIMIT_RANGE", "LINTED", "QUOTA", "Misshapen", "fixed", "lint", "lint_all", "misshapen", "of_every_form"]


def lint_all(objects: Sequence[Json], classes: Collection[str] = ()) -> list[list[Finding]]:
    """Every trap in each of many objects, in their order. Those of one namespace are seen together. See `lint`."""
    counting: defaultdict[str, Counter[Scopes]] = defaultdict(Counter)
    given: defaultdict[str, Amounts] = defaultdict(Amounts)
    for one in objects:
        counting[_namespace(one)].update(of_every_form(one))
        given[_namespace(one)] |= given_limits(one)
    return [
        lint(one, counting[space] - Counter(of_every_form(one)), classes, given[space])
        for one, space in zip(objects, map(_namespace, objects), strict=True)
    ]


def _namespace(data: Json) -> str:
    return str(mapping(data.get("metadata")).get("namespace", "default"))


def lint(
    data: Any, counting: Collection[Scopes] = (), classes: Collection[str] = (), given: Amounts = NOTHING
) -> list[Finding]:
    """Every trap in an object, none for an object of another kind.

    Args:
        data: The object, as written or as stored.
        counting: The scopes of other quotas of its namespace that count every form of GPU. See `of_every_form`.
        classes: The DeviceClasses of the cluster; none where they are not known.
        given: The limits that LimitRanges of its namespace give to containers that name none; its own come first.
    """
    match mapping(data).get("kind"):
        case "LimitRange":
            return list(range_findings(data, given))
        case "ResourceQuota":
            return list(quota_findings(data, counting, classes))
        case _:
            return []


def fixed(data: Json, findings: Iterable[Finding], classes: Collection[str] = ()) -> Json:
    """The object without the traps that were found in it, ready to be applied. See `lint`."""
    return fixed_range(data) if data["kind"] == LIMIT_RANGE else fixed_quota(data, findings, classes)
