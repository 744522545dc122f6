"""`check_command`: judge manifests against policies, with no cluster. The gate for CI."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from webhook.audit.evaluate import EvaluationContext, evaluate_all
from webhook.audit.object_files import read_objects
from webhook.cli import flags
from webhook.cli.commands.version import rightslice_version
from webhook.cli.inputs import ClusterFlags, parse_labels, parse_now, read_policies_and_view, read_usage_view
from webhook.cli.output import (
    CLEAN,
    FINDINGS,
    WRONG_INPUT,
    ReportRenderer,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.model.enums import PolicyMode
from webhook.report.check import (
    audit_findings_line,
    check_document,
    check_lines,
    check_summary_line,
    object_names,
    wide_table,
)
from webhook.report.code_annotations import finding_annotations, github_commands, sarif_document
from webhook.report.junit import finding_junit_cases, junit_xml
from webhook.report.results import CheckResult, summarize_results
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import Paint
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "wide", "json", "yaml", "name", "junit", "sarif", "github")
MINIMUM_MODE = {flags.FailOn.DENY: PolicyMode.ENFORCE, flags.FailOn.WARN: PolicyMode.WARN}
"""The mildest mode that counts as a failure."""


def check_command(
    paths: flags.Paths,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    namespace: flags.NamespaceFlag = "default",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    now: flags.Now = "",
    output: flags.Output = None,
    fail_on: flags.FailOnFlag = flags.FailOn.DENY,
    no_color: flags.NoColor = False,
    quiet: flags.Quiet = False,
    verbose: flags.Verbose = False,
) -> None:
    """Judge manifests against policies, with no cluster: the gate for CI.

    Exit code: 0 nothing to act on, 1 findings, 2 a file, flag or policy is wrong, 3 the cluster did not answer.
    """
    wanted = parse_targets(output, FORMATS)
    labels, reach = parse_labels(namespace_labels), ClusterFlags(kubeconfig, context)
    by = read_policies_and_view(cluster, policies, labels, reach, policy_namespace, verbose=verbose)
    moment = parse_now(now)
    world = EvaluationContext(by.policies, by.view, moment, read_usage_view(usage, moment, verbose=verbose), namespace)
    results = list(evaluate_all(read_objects(paths), world))
    write_reports(wanted, check_reports(results, paint_for(no_color=no_color), fail_on, quiet=quiet, verbose=verbose))
    raise typer.Exit(exit_code_of_checks(results, fail_on))


def check_reports(
    results: Sequence[CheckResult], paint: Paint, fail_on: flags.FailOn, *, quiet: bool = False, verbose: bool = False
) -> dict[str, ReportRenderer]:
    """Every report that can be asked for."""
    return {
        "table": lambda: join_lines(check_table_lines(results, paint, quiet=quiet, verbose=verbose)),
        "wide": lambda: join_lines(wide_table(results)),
        "json": lambda: json_text(check_document(results)),
        "yaml": lambda: yaml_text(check_document(results)),
        "name": lambda: join_lines(object_names(results)),
        "junit": lambda: junit_xml(
            finding_junit_cases(results, least=MINIMUM_MODE.get(fail_on, PolicyMode.ENFORCE)), "rightslice"
        ),
        "sarif": lambda: json_text(sarif_document(list(finding_annotations(results)), rightslice_version())),
        "github": lambda: join_lines(github_commands(finding_annotations(results))),
    }


def check_table_lines(results: Sequence[CheckResult], paint: Paint, *, quiet: bool, verbose: bool) -> list[str]:
    """The report for people; its last lines have the totals."""
    if quiet:
        return list(
            check_lines([each for each in results if each.invalid or each.findings], paint, least=PolicyMode.WARN)
        )
    found = list(check_lines(results, paint, least=PolicyMode.AUDIT if verbose else PolicyMode.WARN))
    summary = summarize_results(results)
    notes = audit_findings_line(summary) if not verbose else ""
    return [*found, *([""] if found else []), check_summary_line(summary), *([notes] if notes else [])]


def exit_code_of_checks(results: Sequence[CheckResult], fail_on: flags.FailOn) -> int:
    """Faults in files before findings, and findings as far as they are to count."""
    if any(result.invalid for result in results):
        return WRONG_INPUT
    least = MINIMUM_MODE.get(fail_on)
    found = [found.finding.effective_mode for result in results for found in result.findings]
    return FINDINGS if least is not None and any(mode >= least for mode in found) else CLEAN
