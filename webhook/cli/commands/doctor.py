"""`doctor_command`: is this installation well?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.cluster_flags import call_api
from webhook.cli.output import CLEAN, FINDINGS, exit_with_error, paint_for, print_result
from webhook.installing.doctor import diagnose
from webhook.installing.facts import CheckState, DiagnosticResult, read_cluster_facts
from webhook.report.serialization import json_text
from webhook.report.text import Paint, TextStyle, sanitize

_STATE_STYLES = {
    CheckState.OK: TextStyle.GOOD,
    CheckState.WARN: TextStyle.WARNING,
    CheckState.FAIL: TextStyle.BAD,
    CheckState.SKIP: TextStyle.FAINT,
}
CHECK_WIDTH = 46


DoctorOutput = Annotated[
    str, typer.Option("-o", "--output", metavar="diagnosis_table|json", help="Default: diagnosis_table.")
]


def doctor_command(
    output: DoctorOutput = "table",
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Look at an installation: hooks, certificates, replicas, policies, nodes, quotas. Each line says what to do.

    Exit code: 0 nothing to act on, 1 something is, 2 a flag or the kubeconfig is wrong, 3 the cluster did not answer.
    """
    if output not in ("table", "json"):
        exit_with_error(f"-o: must be table or json, found {output!r}. Write -o table")
    lines = diagnose(call_api(kubeconfig, context, read_cluster_facts), datetime.now(UTC))
    print_result(
        json_text([line._asdict() for line in lines])
        if output == "json"
        else diagnosis_table(lines, paint_for(no_color=no_color))
    )
    raise typer.Exit(diagnosis_exit_code(lines))


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
