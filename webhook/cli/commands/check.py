"""`check`: evaluate manifests against policies, without a cluster, for example in CI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from webhook import __version__
from webhook.audit.evaluate import evaluate_all
from webhook.audit.object_files import read_objects
from webhook.cli import flags
from webhook.cli.cluster_access import LIVE, ClusterFlags
from webhook.cli.inputs import EvaluationFlags, parse_labels, parse_now, read_evaluation_context, reject_unread_files
from webhook.cli.output import (
    DEFAULT_ROWS,
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    ReportRenderer,
    RowFlags,
    document_reports,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.selection import select_objects
from webhook.model.enums import PolicyMode
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.report.check import (
    OBJECTS,
    PoliciesUsed,
    check_document,
    check_lines,
    object_name,
    report_lines,
)
from webhook.report.ci_formats import (
    finding_annotations,
    finding_junit_cases,
    github_commands,
    junit_xml,
    sarif_document,
)
from webhook.report.results import CheckResult, CheckVerdict
from webhook.report.serialization import json_text
from webhook.report.text import Paint, sanitize, without_style

FORMATS = ("table", "wide", "json", "yaml", "name", "junit", "sarif", "github")
FORMATS_FOR_PEOPLE = ("table", "wide", "name")
"""In the others, a file that cannot be read is a finding."""
FORMATS_WITHOUT_ERRORS = ("name",)
"""Formats that do not show what cannot be read."""

CheckOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
CheckSelector = Annotated[str, flags.selector_option("objects")]
MINIMUM_MODE = {
    flags.FailOn.DENY: PolicyMode.ENFORCE,
    flags.FailOn.WARN: PolicyMode.WARN,
    flags.FailOn.SKIPPED: PolicyMode.ENFORCE,
}
"""The mildest mode of a finding that counts as a failure."""


def check_command(
    paths: flags.Paths = None,
    filename: flags.Filenames = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace: flags.NamespaceFlag = DEFAULT_NAMESPACE,
    all_namespaces: flags.AllNamespaces = False,
    selector: CheckSelector = "",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    scheduler_config: flags.SchedulerConfig = None,
    now: flags.Now = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: CheckOutput = None,
    fail_on: flags.FailOnFlag = flags.FailOn.DENY,
    no_color: flags.NoColor = False,
    quiet: flags.Quiet = False,
    verbose: flags.Verbose = False,
) -> None:
    """Evaluate manifests against policies. Needs no cluster, so it runs in CI.

    Exit code: 0 nothing to act on, 1 findings, 2 invalid input, 3 the cluster did not answer.
    """
    named, targets = flags.require_paths(paths, filename), parse_targets(output, FORMATS)
    given = EvaluationFlags(
        cluster=cluster,
        access=ClusterFlags(kubeconfig, context),
        policies=policies,
        policy_namespace=policy_namespace,
        labels=parse_labels(namespace_labels),
        usage=usage,
        now=parse_now(now),
        namespace=DEFAULT_NAMESPACE if all_namespaces else namespace,
        scheduler_config=scheduler_config,
        verbose=verbose,
    )
    evaluation = read_evaluation_context(given, given.read_usage())
    rows, selection = RowFlags(sort_by, no_headers), select_objects(selector=selector)
    documents = list(read_objects(named))
    if all(target.form in FORMATS_FOR_PEOPLE for target in targets):
        reject_unread_files(documents)
    selection.note_none_of(documents)
    results = rows.sort(OBJECTS, list(evaluate_all(selection.choose(documents), evaluation)))
    used = PoliciesUsed(evaluation.policies.names, policies_source_text(policies, cluster))
    paint = paint_for(no_color=no_color)
    if any(target.form in FORMATS_WITHOUT_ERRORS for target in targets):
        note_invalid_results(results)
    write_reports(targets, check_reports(results, used, paint, fail_on, rows, quiet=quiet, verbose=verbose))
    raise typer.Exit(exit_code_of_checks(results, fail_on))


def policies_source_text(policies: Sequence[str] | None, cluster: str | None) -> str:
    """Return where policies come from: the named files, else a live cluster, else the library."""
    return ", ".join(policies or ()) or ("the cluster" if cluster == LIVE else "the shipped library")


def check_reports(
    results: Sequence[CheckResult],
    used: PoliciesUsed,
    paint: Paint,
    fail_on: flags.FailOn,
    rows: RowFlags = DEFAULT_ROWS,
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> dict[str, ReportRenderer]:
    """Return the renderer of each format."""
    least = MINIMUM_MODE.get(fail_on, PolicyMode.ENFORCE)
    evaluated = [result for result in results if result.verdict is not CheckVerdict.SKIPPED]
    return {
        **rows.reports(OBJECTS, results, object_name, without_style),
        "table": lambda: join_lines(check_table_lines(results, used, paint, rows, quiet=quiet, verbose=verbose)),
        **document_reports(lambda: check_document(results, used.names)),
        "name": lambda: join_lines(map(object_name, evaluated)),
        "junit": lambda: junit_xml(finding_junit_cases(results, least=least), "rightslice"),
        "sarif": lambda: json_text(sarif_document(list(finding_annotations(results)), __version__)),
        "github": lambda: join_lines(github_commands(finding_annotations(results))),
    }


def check_table_lines(
    results: Sequence[CheckResult], used: PoliciesUsed, paint: Paint, rows: RowFlags, *, quiet: bool, verbose: bool
) -> list[str]:
    """Return the report for people, with the totals at its end, if they are wanted."""
    if quiet:
        problems = [each for each in results if each.invalid or each.findings]
        return list(check_lines(problems, paint, least=PolicyMode.WARN))
    least = PolicyMode.AUDIT if verbose else PolicyMode.WARN
    return list(
        check_lines(results, paint, least=least) if rows.no_headers else report_lines(results, used, paint, least)
    )


def note_invalid_results(results: Iterable[CheckResult]) -> None:
    """Print to stderr what cannot be read, and why, for reports that do not show it."""
    for each in results:
        if each.invalid:
            print_note(sanitize(f"error: {each.location}: {f'{each.title}: ' if each.title else ''}{each.reason}"))


def exit_code_of_checks(results: Sequence[CheckResult], fail_on: flags.FailOn) -> int:
    """Return 2 for invalid input, else 1 for what --fail-on names, else 0."""
    if any(result.invalid for result in results):
        return EXIT_INVALID_INPUT
    skipped = any(result.verdict is CheckVerdict.SKIPPED and not result.quiet for result in results)
    if skipped and fail_on is flags.FailOn.SKIPPED:
        return EXIT_FINDINGS
    least = MINIMUM_MODE.get(fail_on)
    modes = (located.finding.effective_mode for result in results for located in result.findings)
    return EXIT_FINDINGS if least is not None and any(mode >= least for mode in modes) else EXIT_OK
