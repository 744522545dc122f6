"""Compare what came out of a case with what was wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from webhook.model.modes import Mode
from webhook.model.resources import gpu_resource
from webhook.model.stored import as_stored
from webhook.policy.cases import Expect
from webhook.report.diff import apply, diff, without_records
from webhook.report.results import Checked, Verdict

Json = dict[str, Any]


def problems(result: Checked, expect: Expect, patched: Json | None) -> Iterator[str]:
    """Everything that came out otherwise, as "want …, got …".

    Args:
        patched: The object that is wanted after the patch; None: not compared.
    """
    if result.verdict is Verdict.SKIPPED:
        yield f"want a verdict, got none: {result.reason}"
        return
    yield from _verdict(result, expect)
    shaped = apply(result.stored, result.decision.patch)
    if expect.unchanged is not None and expect.unchanged == bool(result.decision.patch):
        changed = "; ".join(diff(result.stored, without_records(shaped, result.stored)))
        yield f"want {'no change' if expect.unchanged else 'a change'}, got {changed or 'none'}"
    yield from _limits(shaped, expect.limits or {})
    if patched is not None:
        wanted = as_stored(patched, result.namespace)
        yield from (f"patched: {line}" for line in diff(wanted, without_records(shaped, wanted)))


def _verdict(result: Checked, expect: Expect) -> Iterator[str]:
    decision = result.decision
    allowed = not decision.denials
    if allowed != expect.allowed:
        reasons = _said(found.code for found in decision.denials)
        by = ", ".join(f"{taken.finding.code} taken back by {taken.exemption}" for taken in decision.exempted)
        got = f"allowed{f' ({by})' if by else ''}" if allowed else f"denied {reasons}"
        yield f"want {'allowed' if expect.allowed else 'denied'}, got {got}"
    said = _said(found.code for found in decision.findings if found.mode is not Mode.AUDIT)
    noted = _said(found.code for found in decision.findings if found.mode is Mode.AUDIT)
    if expect.codes is not None and _said(expect.codes) != said:
        yield f"want codes {_said(expect.codes)}, got {said}"
    if expect.audited is not None and _said(expect.audited) != noted:
        yield f"want audited {_said(expect.audited)}, got {noted}"


def _said(codes: Iterable[str]) -> str:
    return ", ".join(sorted(set(codes))) or "none"


def _limits(shaped: Any, wanted: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """GPU resources must be exactly those wanted; of the others, those that are named."""
    containers = {each.get("name"): each for each in containers_of(shaped)}
    for name, limits in wanted.items():
        if name not in containers:
            yield f"want limits of container {name}, got containers {', '.join(map(str, containers)) or 'none'}"
            continue
        found = _map(_map(containers[name].get("resources")).get("limits"))
        counted = {key: str(value) for key, value in found.items() if key in limits or gpu_resource(key) is not None}
        if counted != dict(limits):
            yield f"want limits of {name} {_pairs(limits)}, got {_pairs(counted)}"


def containers_of(data: Any) -> Iterator[Json]:
    """The containers of a pod, init containers first."""
    spec = _map(_map(data).get("spec"))
    for key in ("initContainers", "containers"):
        found = spec.get(key)
        yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _pairs(limits: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(limits.items())) or "none"


def _map(value: Any) -> Json:
    return value if isinstance(value, dict) else {}
