"""The result of `check` as plain data, for JSON and YAML. `docs/check-output.md` is its contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from webhook.model.modes import Mode
from webhook.model.paths import dotted
from webhook.report.results import Checked, Located, Summary, Verdict, summary_of

Json = dict[str, Any]


def check_document(results: Iterable[Checked]) -> Json:
    """Write everything that was found."""
    parts = check_parts(tuple(results))
    return parts | {"objects": list(parts["objects"])}


def check_parts(results: Sequence[Checked]) -> Json:
    """The same, with an iterator of the objects: there may be a hundred thousand."""
    return {"objects": map(_object, results), "summary": _summary(summary_of(results), results)}


def _object(result: Checked) -> Json:
    return {
        "file": result.place.file,
        "line": result.place.line,
        "apiVersion": result.api_version,
        "kind": result.kind,
        "namespace": result.namespace,
        "name": result.name,
        "verdict": result.verdict.value,
        "findings": [finding_document(found) for found in result.findings],
        "patch": list(result.decision.patch),
        "gpuMilliBefore": result.decision.gpu_milli_before,
        "gpuMilliAfter": result.decision.gpu_milli_after,
    }


def finding_document(found: Located) -> Json:
    """One finding as plain data."""
    return {
        "code": found.finding.code,
        "mode": str(found.finding.mode),
        "path": dotted(found.finding.path),
        "line": found.place.line,
        "column": found.place.column,
        "message": found.finding.message,
        "fix": found.finding.fix,
        "policy": found.finding.policy,
        "refusesPods": found.finding.refuses_pods,
    }


def _summary(summary: Summary, results: Sequence[Checked]) -> Json:
    counts = summary.counts
    modes = [found.finding.mode for result in results for found in result.findings]
    return {
        "objects": summary.objects,
        "denied": counts[Verdict.DENIED],
        "warned": counts[Verdict.WARNED],
        "allowed": counts[Verdict.ALLOWED],
        "noGpu": counts[Verdict.NO_GPU],
        "skipped": counts[Verdict.SKIPPED],
        "broken": summary.broken,
        "findings": {str(mode): modes.count(mode) for mode in Mode},
        "gpuMilliBefore": summary.gpu_milli_before,
        "gpuMilliAfter": summary.gpu_milli_after,
        "exemptions": [{"name": taken.exemption, "expirationTime": taken.expires} for taken in summary.exempted],
        "skips": [_skip(result) for result in results if result.verdict is Verdict.SKIPPED],
    }


def _skip(result: Checked) -> Json:
    place = result.place
    return {"file": place.file, "line": place.line, "reason": result.reason, "broken": result.broken}
