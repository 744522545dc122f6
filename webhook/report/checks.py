"""The result of `check` as plain data, for JSON and YAML. `docs/check-output.md` is its contract."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from webhook.model.modes import PolicyMode
from webhook.model.paths import format_path
from webhook.report.results import CheckResult, LocatedFinding, CheckSummary, CheckVerdict, summarize_results

Json = dict[str, Any]


def check_document(results: Iterable[CheckResult]) -> Json:
    """Write everything that was found."""
    parts = check_parts(tuple(results))
    return parts | {"objects": list(parts["objects"])}


def check_parts(results: Sequence[CheckResult]) -> Json:
    """The same, with an iterator of the objects: there may be a hundred thousand."""
    return {"objects": map(_check_object_document, results), "summary": _check_summary_document(summarize_results(results), results)}


def _check_object_document(result: CheckResult) -> Json:
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


def finding_document(found: LocatedFinding) -> Json:
    """One finding as plain data."""
    return {
        "code": found.finding.code,
        "mode": str(found.finding.mode),
        "path": format_path(found.finding.path),
        "line": found.place.line,
        "column": found.place.column,
        "message": found.finding.message,
        "fix": found.finding.fix,
        "policy": found.finding.policy,
        "refusesPods": found.finding.denies_pods,
    }


def _check_summary_document(summary: CheckSummary, results: Sequence[CheckResult]) -> Json:
    counts = summary.counts
    modes = [found.finding.mode for result in results for found in result.findings]
    return {
        "objects": summary.objects,
        "denied": counts[CheckVerdict.DENIED],
        "warned": counts[CheckVerdict.WARNED],
        "allowed": counts[CheckVerdict.ALLOWED],
        "noGpu": counts[CheckVerdict.NO_GPU],
        "skipped": counts[CheckVerdict.SKIPPED],
        "broken": summary.invalid,
        "findings": {str(mode): modes.count(mode) for mode in PolicyMode},
        "gpuMilliBefore": summary.gpu_milli_before,
        "gpuMilliAfter": summary.gpu_milli_after,
        "exemptions": [{"name": taken.exemption, "expirationTime": taken.expires} for taken in summary.exemptions],
        "skips": [_skip_entry(result) for result in results if result.verdict is CheckVerdict.SKIPPED],
    }


def _skip_entry(result: CheckResult) -> Json:
    place = result.place
    return {"file": place.file, "line": place.line, "reason": result.reason, "broken": result.invalid}
