"""`doctor`: check the installation in a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, call_api
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_OK,
    ReportRenderer,
    RowFlags,
    document_reports,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.installing import cluster_health, scheduling_health, webhook_health
from webhook.installing.facts import CheckState, ClusterFacts, DiagnosticResult, read_cluster_facts
from webhook.policy.policy_set import PolicySet
from webhook.report.tables import Column, Table
from webhook.report.text import Paint, TextStyle, sanitize

FORMATS = ("table", "wide", "name", "json", "yaml")
DoctorOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]

CHECK_WIDTH = 46
PROBLEMS = (CheckState.WARN, CheckState.FAIL)

_STATE_STYLES = {
    CheckState.OK: TextStyle.GOOD,
    CheckState.WARN: TextStyle.WARNING,
    CheckState.FAIL: TextStyle.BAD,
    CheckState.SKIP: TextStyle.FAINT,
}


def doctor_command(
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: DoctorOutput = None,
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Check the installation in a cluster.

    Checks webhooks, certificates, replicas, policies, nodes, layouts and quotas. Each problem comes with advice.

    -o wide also shows the names of the checks, and -o name prints those with problems.

    Exit code: 0 nothing to act on, 1 problems, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    results = diagnose(call_api(ClusterFlags(kubeconfig, context), read_cluster_facts), datetime.now(UTC))
    write_reports(targets, diagnosis_reports(results, paint_for(no_color=no_color), RowFlags(sort_by, no_headers)))
    raise typer.Exit(diagnosis_exit_code(results))


def diagnose(facts: ClusterFacts, now: datetime) -> list[DiagnosticResult]:
    """Return the results of all checks, in the order of the output."""
    loaded = cluster_health.load_installed_policies(facts)
    policies = (loaded.policies or PolicySet()).policies
    results = {
        "version": webhook_health.check_version(facts),
        "registration": webhook_health.check_registration(facts),
        "certificates": webhook_health.check_certificates(facts, now),
        "answers": webhook_health.check_answers(facts),
        "backstop": webhook_health.check_backstop(facts),
        "replicas": webhook_health.check_replicas(facts),
        "replica-status": webhook_health.check_replica_status(facts),
        "callers": webhook_health.check_callers(facts),
        "policies": cluster_health.check_policies(facts, loaded),
        "nodes": cluster_health.check_nodes(facts),
        "devices": cluster_health.check_devices(facts),
        "sent-classes": cluster_health.check_sent_classes(facts),
        "gpu-forms": cluster_health.check_gpu_forms(facts, policies),
        "node-groups": cluster_health.check_node_groups(facts, policies),
        "layouts": scheduling_health.check_layouts(facts),
        "accounting": scheduling_health.check_accounting_resource(facts, policies),
        "extender": scheduling_health.check_extender(facts),
        "agents": scheduling_health.check_agents(facts, now),
        "limits": cluster_health.check_limits_and_quotas(facts),
        "charges": scheduling_health.check_charges(facts),
        "fail-open": webhook_health.check_fail_open(facts),
    }
    return [each._replace(check=name) for name, found in results.items() for each in found]


def diagnosis_exit_code(results: Sequence[DiagnosticResult]) -> int:
    """Return the exit code of check results: 1 for any warning or failure."""
    return EXIT_FINDINGS if any(result.state in PROBLEMS for result in results) else EXIT_OK


def diagnosis_reports(results: Sequence[DiagnosticResult], paint: Paint, rows: RowFlags) -> dict[str, ReportRenderer]:
    """Return the renderer of each format; the names are those of checks with problems."""
    ordered = rows.sort(DIAGNOSES, results)
    names = dict.fromkeys(f"check/{each.check}" for each in ordered if each.state in PROBLEMS)

    def text(width: int) -> str:
        lines = [_diagnosis_line(each, paint, width) for each in ordered]
        return join_lines(lines if rows.no_headers else [*lines, "", _totals(results)])

    check_width = max((len(each.check) for each in results), default=0)
    return {
        "table": lambda: text(0),
        "wide": lambda: text(check_width + 2),
        "name": lambda: join_lines(names),
        **document_reports(lambda: [result._asdict() for result in ordered]),
    }


DIAGNOSES = Table[DiagnosticResult](
    (
        Column("state", lambda result: result.state, "State"),
        Column("check", lambda result: result.check, "Check"),
        Column("summary", lambda result: result.summary, "Summary"),
        Column("advice", lambda result: result.advice, "Advice"),
    )
)
"""The columns to sort by."""


def _totals(results: Sequence[DiagnosticResult]) -> str:
    counts = Counter(result.state for result in results)
    total = ", ".join(f"{counts[state]} {state}" for state in CheckState if counts[state])
    return f"{len(results)} checks: {total}"


def _diagnosis_line(result: DiagnosticResult, paint: Paint, check_width: int) -> str:
    """Return one line; with a width also the name of the check."""
    state, name = paint(f"{result.state:<6}", _STATE_STYLES[result.state]), result.check if check_width else ""
    summary = f"{sanitize(result.summary):<{CHECK_WIDTH}}"
    return f"{state}{name:<{check_width}}{summary}  {sanitize(result.advice)}".rstrip()
