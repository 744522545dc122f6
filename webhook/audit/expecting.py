"""Compare what came out of a case with what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from webhook.model.modes import PolicyMode
from webhook.model.resources import parse_gpu_resource
from webhook.model.stored import default_object
from webhook.policy.cases import ExpectedDecision
from webhook.report.diff import apply_json_patch, diff_lines, object_without_records
from webhook.report.results import CheckResult, CheckVerdict

Json = dict[str, Any]


def case_problems(result: CheckResult, expect: ExpectedDecision, patched: Json | None) -> Iterator[str]:
    """Everything that came out otherwise, as "want …, got …".

    Args:
        patched: The object that is wanted after the patch; None: not compared.
    """
    if result.verdict is CheckVerdict.SKIPPED:
        yield f"want a verdict, got none: {result.reason}"
        return
    yield from _verdict_problems(result, expect)
    shaped = apply_json_patch(result.stored, result.decision.patch)
    if expect.unchanged is not None and expect.unchanged == bool(result.decision.patch):
        changed = "; ".join(diff_lines(result.stored, object_without_records(shaped, result.stored)))
        yield f"want {'no change' if expect.unchanged else 'a change'}, got {changed or 'none'}"
    yield from _limits_problems(shaped, expect.limits or {})
    if patched is not None:
        wanted = default_object(patched, result.namespace)
        yield from (f"patched: {line}" for line in diff_lines(wanted, object_without_records(shaped, wanted)))


def _verdict_problems(result: CheckResult, expect: ExpectedDecision) -> Iterator[str]:
    decision = result.decision
    allowed = not decision.denials
    if allowed != expect.allowed:
        reasons = _format_codes(found.code for found in decision.denials)
        by = ", ".join(f"{taken.finding.code} taken back by {taken.exemption}" for taken in decision.exempted)
        got = f"allowed{f' ({by})' if by else ''}" if allowed else f"denied {reasons}"
        yield f"want {'allowed' if expect.allowed else 'denied'}, got {got}"
    said = _format_codes(found.code for found in decision.findings if found.mode is not PolicyMode.AUDIT)
    noted = _format_codes(found.code for found in decision.findings if found.mode is PolicyMode.AUDIT)
    if expect.codes is not None and _format_codes(expect.codes) != said:
        yield f"want codes {_format_codes(expect.codes)}, got {said}"
    if expect.audited is not None and _format_codes(expect.audited) != noted:
        yield f"want audited {_format_codes(expect.audited)}, got {noted}"


def _format_codes(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "none"


def _limits_problems(shaped: Any, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """GPU resources must be exactly those wanted; of the others, those that are named."""
    containers = {each.get("name"): each for each in all_containers(shaped)}
    for name, limits in wanted.items():
        if name not in containers:
            yield f"want limits of container {name}, got containers {', '.join(map(str, containers)) or 'none'}"
            continue
        found = _map_or_empty(_map_or_empty(containers[name].get("resources")).get("limits"))
        counted = {key: str(value) for key, value in found.items() if key in limits or parse_gpu_resource(key) is not None}
        if counted != dict(limits):
            yield f"want limits of {name} {_format_limits(limits)}, got {_format_limits(counted)}"


def all_containers(data: Any) -> Iterator[Json]:
    """The containers of a pod, init containers first."""
    spec = _map_or_empty(_map_or_empty(data).get("spec"))
    for key in ("initContainers", "containers"):
        found = spec.get(key)
        yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _format_limits(limits: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(limits.items())) or "none"


def _map_or_empty(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
