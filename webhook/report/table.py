"""The report for people: a block for each finding, with its place, its reason and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from webhook.errors import Place
from webhook.model.findings import Finding
from webhook.model.modes import Mode
from webhook.model.paths import dotted
from webhook.report.results import Checked, Located, Summary, Verdict
from webhook.report.words import LABELS, STYLES, Paint, Style, count, gpus, plain, shown


def table(results: Iterable[Checked], paint: Paint = plain, *, least: Mode = Mode.AUDIT) -> Iterator[str]:
    """Write every finding, and every document that could not be judged.

    Args:
        results: What was checked.
        paint: Colours, or none.
        least: Findings of a milder mode are left out.

    Yields:
        Lines without their ends.
    """
    for result in results:
        if result.verdict is Verdict.SKIPPED and not result.quiet:
            yield skip_line(result, paint)
        for found in result.findings:
            if found.finding.mode >= least:
                yield from block(found, result.title, paint)


def block(found: Located, title: str, paint: Paint = plain) -> Iterator[str]:
    """One finding: place, mode, code and object; then field and reason; then the fix and who says so."""
    finding = found.finding
    label = paint(LABELS[finding.mode], STYLES[finding.mode])
    yield f"{shown(str(found.place))}  {label}  {finding.code}  {shown(title)}"
    yield f"  {sentence(finding)}"
    last = "  ".join(filter(None, (shown(finding.fix), paint(speaker(finding, found.policy_place), Style.FAINT))))
    if last:
        yield f"  {last}"


def sentence(finding: Finding) -> str:
    """The field, what must hold, and what was found."""
    path = f"{dotted(finding.path)}: " if finding.path else ""
    return shown(f"{path}{finding.message}")


def speaker(finding: Finding, place: Place | None) -> str:
    """The policy that speaks and where its words stand."""
    if not finding.policy:
        return ""
    return shown(f"({finding.policy}, {place})" if place else f"({finding.policy})")


def skip_line(result: Checked, paint: Paint = plain) -> str:
    """A document that was not judged, and why."""
    label = paint("error", Style.BAD) if result.broken else paint("skip", Style.FAINT)
    about = f"{result.title}: " if result.title else ""
    return f"{shown(str(result.place))}  {label}  {shown(about + result.reason)}"


def summary_line(summary: Summary) -> str:
    """The totals in one sentence, and the exemptions in use in another."""
    counts = summary.counts
    said = {
        "denied": counts[Verdict.DENIED],
        "warned": counts[Verdict.WARNED],
        "clean": counts[Verdict.ALLOWED],
        "without GPUs": counts[Verdict.NO_GPU],
        "skipped": counts[Verdict.SKIPPED] - summary.broken,
        "unreadable": summary.broken,
    }
    parts = ", ".join(f"{number} {word}" for word, number in said.items() if number)
    line = f"{count(summary.objects, 'object')}{': ' if parts else ''}{parts}."
    return f"{line}{_gpus(summary)}{_exemptions(summary)}"


def notes_line(summary: Summary) -> str:
    """How many findings policies on trial have; "" where there are none."""
    if not summary.notes:
        return ""
    return f"{count(summary.notes, 'note')} of policies in mode audit; -v shows them."


def _gpus(summary: Summary) -> str:
    before, after = summary.gpu_milli_before, summary.gpu_milli_after
    if before == after:
        return ""
    return f" GPUs asked {gpus(before)}, after {gpus(after)}, saved {gpus(before - after)}."


def _exemptions(summary: Summary) -> str:
    if not summary.exempted:
        return ""
    each = ", ".join(f"{taken.exemption}, ends {taken.expires[:10]}" for taken in summary.exempted)
    return f" {count(len(summary.exempted), 'exemption')} in use ({shown(each)})."
