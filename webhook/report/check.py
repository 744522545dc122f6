"""The report for people: a block for each finding, with its place, its reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from webhook.errors import SourceLocation
from webhook.model.decisions import OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path
from webhook.model.findings import Finding
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.offers import GpuOffer
from webhook.report.results import CheckResult, CheckSummary, CheckVerdict, LocatedFinding, summarize_results
from webhook.report.text import (
    LABELS,
    STYLES,
    Paint,
    TextStyle,
    align_columns,
    format_gpus,
    pluralize,
    sanitize,
    without_style,
)

Json = dict[str, Any]


WIDE_HEADER = ("VERDICT", "KIND", "NAMESPACE", "NAME", "GPUS", "AFTER", "CODES", "PLACE", "WHY")
MAX_PRODUCTS = 2


def check_lines(
    results: Iterable[CheckResult], paint: Paint = without_style, *, least: PolicyMode = PolicyMode.AUDIT
) -> Iterator[str]:
    """Write every finding, and every document that could not be judged.

    Args:
        results: What was checked.
        paint: Colours, or none.
        least: Findings of a milder mode are left out.

    Yields:
        Lines without their ends.
    """
    for result in results:
        if result.verdict is CheckVerdict.SKIPPED and not result.quiet:
            yield skip_line(result, paint)
        for found in result.findings:
            if found.finding.mode >= least:
                yield from finding_lines(found, result.title, paint)


def finding_lines(found: LocatedFinding, title: str, paint: Paint = without_style) -> Iterator[str]:
    """One finding: place, mode, code and object; then field and reason; then the fix and who says so."""
    finding = found.finding
    label = paint(LABELS[finding.mode], STYLES[finding.mode])
    yield f"{sanitize(str(found.place))}  {label}  {finding.code}  {sanitize(title)}"
    yield f"  {finding_sentence(finding)}"
    last = "  ".join(
        filter(None, (sanitize(finding.fix), paint(finding_source(finding, found.policy_place), TextStyle.FAINT)))
    )
    if last:
        yield f"  {last}"


def finding_sentence(finding: Finding) -> str:
    """The field, what must hold, and what was found."""
    path = f"{format_path(finding.path)}: " if finding.path else ""
    return sanitize(f"{path}{finding.message}")


def finding_source(finding: Finding, place: SourceLocation | None) -> str:
    """The policy that speaks and where its words stand."""
    if not finding.policy:
        return ""
    return sanitize(f"({finding.policy}, {place})" if place else f"({finding.policy})")


def skip_line(result: CheckResult, paint: Paint = without_style) -> str:
    """A document that was not judged, and why."""
    label = paint("error", TextStyle.BAD) if result.invalid else paint("skip", TextStyle.FAINT)
    about = f"{result.title}: " if result.title else ""
    return f"{sanitize(str(result.place))}  {label}  {sanitize(about + result.reason)}"


def check_summary_line(summary: CheckSummary) -> str:
    """The totals in one sentence, and the exemptions in use in another."""
    counts = summary.counts
    said = {
        "denied": counts[CheckVerdict.DENIED],
        "warned": counts[CheckVerdict.WARNED],
        "clean": counts[CheckVerdict.ALLOWED],
        "without GPUs": counts[CheckVerdict.NO_GPU],
        "skipped": counts[CheckVerdict.SKIPPED] - summary.invalid,
        "unreadable": summary.invalid,
    }
    parts = ", ".join(f"{number} {word}" for word, number in said.items() if number)
    line = f"{pluralize(summary.objects, 'object')}{': ' if parts else ''}{parts}."
    return f"{line}{_gpu_change_text(summary)}{_exemptions_text(summary)}"


def audit_findings_line(summary: CheckSummary) -> str:
    """How many findings policies on trial have; "" where there are none."""
    if not summary.audit_findings:
        return ""
    return f"{pluralize(summary.audit_findings, 'note')} of policies in mode audit; -v shows them."


def _gpu_change_text(summary: CheckSummary) -> str:
    before, after = summary.gpu_milli_before, summary.gpu_milli_after
    if before == after:
        return ""
    return f" GPUs asked {format_gpus(before)}, after {format_gpus(after)}, saved {format_gpus(before - after)}."


def _exemptions_text(summary: CheckSummary) -> str:
    if not summary.exemptions:
        return ""
    each = ", ".join(f"{taken.exemption}, ends {taken.expires[:10]}" for taken in summary.exemptions)
    return f" {pluralize(len(summary.exemptions), 'exemption')} in use ({sanitize(each)})."


def check_document(results: Iterable[CheckResult]) -> Json:
    """Write everything that was found."""
    parts = check_parts(tuple(results))
    return parts | {"objects": list(parts["objects"])}


def check_parts(results: Sequence[CheckResult]) -> Json:
    """The same, with an iterator of the objects: there may be a hundred thousand."""
    return {
        "objects": map(_check_object_document, results),
        "summary": _check_summary_document(summarize_results(results), results),
    }


def _check_object_document(result: CheckResult) -> Json:
    return {
        "file": result.place.file,
        "line": result.place.line,
        "apiVersion": result.api_version,
        "kind": result.kind,
        "namespace": result.namespace,
        "name": result.name,
        "verdict": result.verdict.value,
        "reason": result.decision.reason,
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
        "reason": found.finding.reason,
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


def wide_table(results: Iterable[CheckResult]) -> list[str]:
    """Every object with its verdict, its GPUs and its codes; "-" where there is nothing to say."""
    return align_columns([WIDE_HEADER, *map(_wide_row, results)])


def _wide_row(result: CheckResult) -> tuple[str, ...]:
    decision = result.decision
    codes = ",".join(dict.fromkeys(found.finding.code for found in result.findings))
    judged = result.verdict is not CheckVerdict.SKIPPED
    cells = (
        result.verdict.value,
        result.kind,
        result.namespace,
        result.name,
        format_gpus(decision.gpu_milli_before) if judged else "",
        format_gpus(decision.gpu_milli_after) if judged else "",
        codes,
        str(result.place),
        result_reason(result),
    )
    return tuple(sanitize(cell) or "-" for cell in cells)


def result_reason(result: CheckResult) -> str:
    """Why the object is left as it is, or what its GPUs became; "" for an object without GPUs."""
    if result.verdict is CheckVerdict.SKIPPED:
        return result.reason
    outcome = result.decision.outcome
    if isinstance(outcome, OfferChoice):
        return (
            f"{'now' if result.decision.applied else 'could be'} "
            f"{resource_with_meaning(outcome.resource, resource_meaning(outcome))}"
        )
    return str(outcome) if result.decision.involves_gpus else ""


def resource_with_meaning(resource: str, meant: str) -> str:
    """A resource, and what is meant by it where its name does not tell."""
    return f"{resource} ({meant})" if meant else resource


def resource_meaning(fit: OfferChoice) -> str:
    """What is given as `nvidia.com/gpu`, which is a whole card elsewhere; "" where the name of the resource tells."""
    if fit.resource != WHOLE_GPU:
        return ""
    kinds = tuple(dict.fromkeys(map(_offer_product, fit.offers)))
    return ", ".join(kinds[:MAX_PRODUCTS]) + (
        f" and {len(kinds) - MAX_PRODUCTS} more" if len(kinds) > MAX_PRODUCTS else ""
    )


def _offer_product(offer: GpuOffer) -> str:
    """The product, with the profile and the share where it does not say them.

    The label of an instance usually ends in its profile: NVIDIA-H100-80GB-HBM3-MIG-1g.10gb.
    """
    product = offer.product or "product not labelled"
    profile = f" {offer.profile}" if offer.profile and not offer.product.endswith(f"-{offer.profile}") else ""
    return f"{product}{profile}" + (f", 1 of {offer.replicas} shares" if offer.replicas > 1 else "")


def object_names(results: Iterable[CheckResult]) -> list[str]:
    """Kind and name of every object that was judged, in lower case, with the API group after a dot."""
    return [_object_name(result) for result in results if result.verdict is not CheckVerdict.SKIPPED]


def _object_name(result: CheckResult) -> str:
    group, slash, _ = result.api_version.partition("/")
    kind = f"{result.kind.lower()}.{group}" if slash else result.kind.lower()
    return sanitize(f"{kind}/{result.name}")
