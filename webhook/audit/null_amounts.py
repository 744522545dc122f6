"""Amounts that a file writes as null, which Kubernetes reads unlike all other nulls: as zero.

Nothing else here shows them: the API server stores "0", and so does everything that reads a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from webhook.audit.object_files import SourceObject
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath, format_path
from webhook.model.findings import Finding
from webhook.report.results import CheckResult, CheckVerdict, LocatedFinding, decision_verdict

NULL_IS_ZERO = "null, which the API server reads as 0"
_LISTS = ("containers", "initContainers")
_SIDES = ("limits", "requests")


def find_null_amounts(spec: Any) -> Iterator[FieldPath]:
    """Yield the path from the pod's root of each null amount in a pod's specification."""
    spec = spec if isinstance(spec, dict) else {}
    holders: list[tuple[FieldPath, Any]] = [(("spec",), spec)]
    for kind in _LISTS:
        members = spec.get(kind)
        holders += [(("spec", kind, i), each) for i, each in enumerate(members if isinstance(members, list) else ())]
    for path, holder in holders:
        for side in _SIDES:
            amounts = _value_of(_value_of(holder, "resources"), side)
            yield from ((*path, "resources", side, name) for name in _null_names(amounts))
    yield from (("spec", "overhead", name) for name in _null_names(spec.get("overhead")))


def _value_of(data: Any, key: str) -> Any:
    return data.get(key) if isinstance(data, dict) else None


def _null_names(amounts: Any) -> list[str]:
    return [name for name, amount in amounts.items() if amount is None] if isinstance(amounts, dict) else []


def with_null_amounts(result: CheckResult, nulls: Iterable[FieldPath], source: SourceObject) -> CheckResult:
    """Return a result that names the null amounts of its object: in a finding about the amount, else in one of its own.

    Args:
        nulls: Their paths in the object.
    """
    nulls = list(nulls)
    if result.verdict is CheckVerdict.SKIPPED:
        notes = "".join(f"; {format_path(path)} is {NULL_IS_ZERO}" for path in nulls)
        return replace(result, reason=result.reason + notes) if result.invalid else result
    noted = {path for each in result.findings for path in _nulls_beside(each.finding.path, nulls)}
    findings = [_with_note(each, nulls) for each in result.findings]
    findings += [_null_finding(path, source) for path in nulls if path not in noted]
    decision = replace(result.decision, findings=tuple(each.finding for each in findings))
    return replace(result, findings=tuple(findings), decision=decision, verdict=decision_verdict(decision))


def _with_note(located: LocatedFinding, nulls: Iterable[FieldPath]) -> LocatedFinding:
    finding = located.finding
    notes = "".join(f"; {path[-2]} are {NULL_IS_ZERO}" for path in _nulls_beside(finding.path, nulls))
    return replace(located, finding=replace(finding, message=finding.message + notes)) if notes else located


def _nulls_beside(path: FieldPath, nulls: Iterable[FieldPath]) -> list[FieldPath]:
    """Return the null limit and request of the resource at a path."""
    return [each for each in nulls if each[:-2] == path[:-2] and each[-1:] == path[-1:]]


def _null_finding(path: FieldPath, source: SourceObject) -> LocatedFinding:
    fix = 'Write the amount, or "0"; remove the line to leave the amount out.'
    return LocatedFinding(Finding("GPU-L107", PolicyMode.WARN, path, NULL_IS_ZERO, fix), source.locate(path), None)
