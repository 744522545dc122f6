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
    document_reports,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.installing import cluster_health, scheduling_health, webhook_health
from webhook.installing.facts import CheckState, ClusterFacts, DiagnosticResult, read_cluster_facts
from webhook.policy.policy_set import PolicySet
from webhook.report.text import Paint, TextStyle, sanitize

FORMATS = ("table", "json", "yaml")
DoctorOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]

CHECK_WIDTH = 46

_STATE_STYLES = {
    CheckState.OK: TextStyle.GOOD,
    CheckState.WARN: TextStyle.WARNING,
    CheckState.FAIL: TextStyle.BAD,
    CheckState.SKIP: TextStyle.FAINT,
}


def doctor_command(
    output: DoctorOutput = None,
    no_color: flags.NoColor = False,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Check the installation in a cluster.

    Checks webhooks, certificates, replicas, policies, nodes, layouts and quotas. Each problem comes with advice.

    Exit code: 0 nothing to act on, 1 problems, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    results = diagnose(call_api(ClusterFlags(kubeconfig, context), read_cluster_facts), datetime.now(UTC))
    write_reports(targets, diagnosis_reports(results, paint_for(no_color=no_color)))
    raise typer.Exit(diagnosis_exit_code(results))


def diagnose(facts: ClusterFacts, now: datetime) -> list[DiagnosticResult]:
    """Return the results of all checks, in the order of the output."""
    loaded = cluster_health.load_installed_policies(facts)
    policies = (loaded.policies or PolicySet()).policies
    return [
        *webhook_health.check_version(facts),
        *webhook_health.check_registration(facts),
        *webhook_health.check_certificates(facts, now),
        *webhook_health.check_answers(facts),
        *webhook_health.check_backstop(facts),
        *webhook_health.check_replicas(facts),
        *webhook_health.check_replica_status(facts),
        *webhook_health.check_callers(facts),
        *cluster_health.check_policies(facts, loaded),
        *cluster_health.check_nodes(facts),
        *cluster_health.check_devices(facts),
        *cluster_health.check_gpu_forms(facts, policies),
        *cluster_health.check_node_groups(facts, policies),
        *scheduling_health.check_layouts(facts),
        *scheduling_health.check_accounting_resource(facts, policies),
        *scheduling_health.check_extender(facts),
        *scheduling_health.check_agents(facts, now),
        *cluster_health.check_limits_and_quotas(facts),
        *scheduling_health.check_charges(facts),
        *webhook_health.check_fail_open(facts),
    ]


def diagnosis_exit_code(results: Sequence[DiagnosticResult]) -> int:
    """Return the exit code of check results: 1 for any warning or failure."""
    problems = (CheckState.WARN, CheckState.FAIL)
    return EXIT_FINDINGS if any(result.state in problems for result in results) else EXIT_OK


def diagnosis_reports(results: Sequence[DiagnosticResult], paint: Paint) -> dict[str, ReportRenderer]:
    """Return the renderer of each format."""
    table = {"table": lambda: join_lines(diagnosis_table(results, paint))}
    return table | document_reports(lambda: [result._asdict() for result in results])


def diagnosis_table(results: Sequence[DiagnosticResult], paint: Paint) -> list[str]:
    """Return a line for each check, and the totals."""
    counts = Counter(result.state for result in results)
    total = ", ".join(f"{counts[state]} {state}" for state in CheckState if counts[state])
    rows = []
    for result in results:
        state = paint(f"{result.state:<6}", _STATE_STYLES[result.state])
        rows.append(f"{state}{sanitize(result.summary):<{CHECK_WIDTH}}  {sanitize(result.advice)}".rstrip())
    return [*rows, "", f"{len(results)} checks: {total}"]
