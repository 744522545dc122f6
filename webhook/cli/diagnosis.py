"""Lines of a diagnosis on the terminal, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from webhook.cli.console import CLEAN, FINDINGS
from webhook.installing.lines import Line, State
from webhook.report.words import Paint, Style, shown

_STYLES = {State.OK: Style.GOOD, State.WARN: Style.WARNING, State.FAIL: Style.BAD, State.SKIP: Style.FAINT}
WIDTH = 46


def code_of(lines: Sequence[Line]) -> int:
    """The exit code: is there something to act on?"""
    return FINDINGS if any(line.state in (State.WARN, State.FAIL) for line in lines) else CLEAN


def table(lines: Sequence[Line], paint: Paint) -> list[str]:
    """One line each, and the totals."""
    counts = Counter(line.state for line in lines)
    total = ", ".join(f"{counts[state]} {state}" for state in State if counts[state])
    return [*(_row(line, paint) for line in lines), "", f"{len(lines)} checks: {total}"]


def _row(line: Line, paint: Paint) -> str:
    head = paint(f"{line.state:<6}", _STYLES[line.state])
    return f"{head}{shown(line.what):<{WIDTH}}  {shown(line.advice)}".rstrip()
