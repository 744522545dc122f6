"""Lines of a diagnosis on the terminal, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from webhook.cli.console import CLEAN, FINDINGS
from webhook.installing.lines import DiagnosticResult, CheckState
from webhook.report.words import Paint, TextStyle, sanitize

_STATE_STYLES = {CheckState.OK: TextStyle.GOOD, CheckState.WARN: TextStyle.WARNING, CheckState.FAIL: TextStyle.BAD, CheckState.SKIP: TextStyle.FAINT}
CHECK_WIDTH = 46


def diagnosis_exit_code(lines: Sequence[DiagnosticResult]) -> int:
    """The exit code: is there something to act on?"""
    return FINDINGS if any(line.state in (CheckState.WARN, CheckState.FAIL) for line in lines) else CLEAN


def diagnosis_table(lines: Sequence[DiagnosticResult], paint: Paint) -> list[str]:
    """One line each, and the totals."""
    counts = Counter(line.state for line in lines)
    total = ", ".join(f"{counts[state]} {state}" for state in CheckState if counts[state])
    return [*(_diagnosis_row(line, paint) for line in lines), "", f"{len(lines)} checks: {total}"]


def _diagnosis_row(line: DiagnosticResult, paint: Paint) -> str:
    head = paint(f"{line.state:<6}", _STATE_STYLES[line.state])
    return f"{head}{sanitize(line.summary):<{CHECK_WIDTH}}  {sanitize(line.advice)}".rstrip()
