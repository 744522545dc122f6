"""`check`: judge manifests against policies, with no cluster. The gate for CI."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from webhook.audit.checking import World, check_all
from webhook.audit.manifests import objects_in
from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, paint_for
from webhook.cli.inputs import Reach, judged_by, labels_of, moment_of, usage_of
from webhook.cli.output import Render, lines, targets, write
from webhook.cli.version import rightslice_version
from webhook.model.modes import Mode
from webhook.report.checks import check_document
from webhook.report.data import as_json, as_yaml
from webhook.report.github import github
from webhook.report.junit import cases_of, junit
from webhook.report.notes import notes_of
from webhook.report.results import Checked, summary_of
from webhook.report.sarif import sarif
from webhook.report.table import notes_line, summary_line, table
from webhook.report.wide import names, wide
from webhook.report.words import Paint

FORMATS = ("table", "wide", "json", "yaml", "name", "junit", "sarif", "github")
LEAST = {flags.FailOn.DENY: Mode.ENFORCE, flags.FailOn.WARN: Mode.WARN}
"""The mildest mode that counts as a failure."""


def check(
    paths: flags.Paths,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.Cluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
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
    wanted = targets(output, FORMATS)
    labels, reach = labels_of(namespace_labels), Reach(kubeconfig, context)
    by = judged_by(cluster, policies, labels, reach, policy_namespace, verbose=verbose)
    moment = moment_of(now)
    world = World(by.policies, by.view, moment, usage_of(usage, moment, verbose=verbose), namespace)
    results = list(check_all(objects_in(paths), world))
    write(wanted, renders(results, paint_for(no_color=no_color), fail_on, quiet=quiet, verbose=verbose))
    raise typer.Exit(exit_code(results, fail_on))


def renders(
    results: Sequence[Checked], paint: Paint, fail_on: flags.FailOn, *, quiet: bool = False, verbose: bool = False
) -> dict[str, Render]:
    """Every report that can be asked for."""
    return {
        "table": lambda: lines(people(results, paint, quiet=quiet, verbose=verbose)),
        "wide": lambda: lines(wide(results)),
        "json": lambda: as_json(check_document(results)),
        "yaml": lambda: as_yaml(check_document(results)),
        "name": lambda: lines(names(results)),
        "junit": lambda: junit(cases_of(results, least=LEAST.get(fail_on, Mode.ENFORCE)), "rightslice"),
        "sarif": lambda: as_json(sarif(list(notes_of(results)), rightslice_version())),
        "github": lambda: lines(github(notes_of(results))),
    }


def people(results: Sequence[Checked], paint: Paint, *, quiet: bool, verbose: bool) -> list[str]:
    """The report for people; its last lines have the totals."""
    if quiet:
        return list(table([each for each in results if each.broken or each.findings], paint, least=Mode.WARN))
    found = list(table(results, paint, least=Mode.AUDIT if verbose else Mode.WARN))
    summary = summary_of(results)
    notes = notes_line(summary) if not verbose else ""
    return [*found, *([""] if found else []), summary_line(summary), *([notes] if notes else [])]


def exit_code(results: Sequence[Checked], fail_on: flags.FailOn) -> int:
    """Faults in files before findings, and findings as far as they are to count."""
    if any(result.broken for result in results):
        return WRONG_INPUT
    least = LEAST.get(fail_on)
    found = [found.finding.effect for result in results for found in result.findings]
    return FINDINGS if least is not None and any(mode >= least for mode in found) else CLEAN
