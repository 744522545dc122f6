"""The report for people: a block for each finding, with its place, its reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webhook.errors import SourceLocation
from webhook.model.findings import Finding
from webhook.model.modes import PolicyMode
from webhook.model.paths import format_path
from webhook.report.results import CheckResult, LocatedFinding, CheckSummary, CheckVerdict
from webhook.report.words import LABELS, STYLES, Paint, TextStyle, pluralize, format_gpus, without_style, sanitize


def check_lines(results: Iterable[CheckResult], paint: Paint = without_style, *, least: PolicyMode = PolicyMode.AUDIT) -> Iterator[str]:
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
    last = "  ".join(filter(None, (sanitize(finding.fix), paint(finding_source(finding, found.policy_place), TextStyle.FAINT))))
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
