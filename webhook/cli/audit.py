"""`audit`: what every pod of a cluster would become, by workload, and what that would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.auditing import AuditPaths, PriceFile, Run, Since, Wanted, run, say_if_nodeless, since_of
from webhook.cli.check import FORMATS as CHECKED
from webhook.cli.check import exit_code, renders
from webhook.cli.console import paint_for
from webhook.cli.inputs import Reach, labels_of, moment_of
from webhook.cli.output import lines, targets, write
from webhook.cli.reportobjects import DryRun, Write, publish_reports, refuse_writing, report_objects
from webhook.cli.version import rightslice_version
from webhook.model.modes import Mode
from webhook.policy.compiled import Exemption
from webhook.report.audits import audit_document, audit_line, audit_parts, by_namespace, shares, trials_line
from webhook.report.data import as_yaml, json_pieces
from webhook.report.figures import Figures, figures_lines, figures_of
from webhook.report.page import Exempting, Page
from webhook.report.results import Verdict, summary_of
from webhook.report.table import notes_line, skip_line
from webhook.report.words import Paint
from webhook.report.workload_tables import missed_lines, workload_csv, workload_findings, workload_table
from webhook.report.workloads import Workload, workloads_of

FORMATS = (*CHECKED, "csv", "html", "policyreport")
AuditOutput = Annotated[list[str] | None, flags.output(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}")]


def audit(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.ClusterToJudge = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    now: flags.Now = "",
    since: Since = "",
    prices: PriceFile = "",
    output: AuditOutput = None,
    to_write: Write = False,
    dry_run: DryRun = False,
    fail_on: flags.FailOnFlag = flags.FailOn.DENY,
    no_color: flags.NoColor = False,
    quiet: flags.Quiet = False,
    verbose: flags.Verbose = False,
) -> None:
    """Judge every pod of a cluster as if it were created again now; say what that would save, by workload.

    With --cluster live the cluster is listed page by page, and nothing in it is changed but what --write stores. A
    snapshot is what `kubectl get nodes,namespaces,limitranges,resourcequotas,pods -A -o yaml` prints. Each pod is
    judged by itself, without its node and its status, in the cluster as it stands: its own GPUs still count as in
    use. Pods that have ended are left out.

    GPUS is what a pod holds now, or waits for: under the name nvidia.com/gpu a node may give whole cards, MIG
    instances or shares, so its own node says what it is worth. What waits for a node is held by nobody, and in none
    of the figures at the head. IDLE is what no engine was seen active on. SAVED counts only pods that would be let
    in, and get less than they hold. ON TRIAL is what right-sizing of mode audit or warn would save beside, were it
    enforced. docs/audit.md defines the figures at the head.

    Exit code: 0 nothing to act on, 1 findings, 2 a file, flag or policy is wrong, 3 the cluster did not answer, or
    --write left alone an object of another tool.
    """
    wanted, moment = targets(output, FORMATS), moment_of(now)
    refuse_writing(cluster, paths, since, to_write=to_write, dry_run=dry_run)
    reach = Reach(kubeconfig, context)
    found = run(
        Wanted(
            paths=paths,
            policies=policies,
            cluster=cluster,
            reach=reach,
            policy_namespace=policy_namespace,
            labels=labels_of(namespace_labels),
            moment=moment,
            since=since_of(since, moment),
            prices=prices,
            usage=usage,
            verbose=verbose,
            to_write=to_write,
        )
    )
    say_if_nodeless(found.world)
    paint, results = paint_for(no_color=no_color), found.results
    rows = workloads_of(results, found.prices, found.stocks or None)
    figures = figures_of(found.stocks, rows, found.prices) if found.stocks and not since else None
    reports = renders(results, paint, fail_on) | {
        "table": lambda: lines(list(people(found, rows, figures, paint, quiet=quiet, verbose=verbose))),
        "json": lambda: json_pieces(audit_parts(results, rows, figures, found.prices)),
        "yaml": lambda: as_yaml(audit_document(results, rows, figures, found.prices)),
        "csv": lambda: workload_csv(rows, found.prices),
        "html": lambda: html_of(page_of(found, rows, figures, since, moment)),
        "policyreport": lambda: report_objects(found.report_apis, rows, moment),
    }
    write(wanted, reports)
    if to_write:
        publish_reports(found.report_apis, rows, moment, reach, dry_run=dry_run)
    raise typer.Exit(exit_code(results, fail_on))


def people(
    found: Run, rows: Sequence[Workload], figures: Figures | None, paint: Paint, *, quiet: bool, verbose: bool
) -> Iterator[str]:
    """The head figures, namespaces, workloads, findings and the totals; with `quiet` the findings only."""
    results, least = found.results, Mode.AUDIT if verbose else Mode.WARN
    faults = [skip_line(each, paint) for each in results if each.verdict is Verdict.SKIPPED and not each.quiet]
    findings = [*faults, *workload_findings(rows, paint, least=least)]
    if quiet:
        yield from findings
        return
    notes = notes_line(summary_of(results)) if not verbose else ""
    yield from _blocks(
        figures_lines(figures) if figures else (),
        by_namespace(results, paint),
        workload_table(rows, paint, every=verbose),
        findings,
        missed_lines(rows),
        [line for line in (audit_line(results), trials_line(results), notes) if line],
    )


def _blocks(*blocks: Iterable[str]) -> Iterator[str]:
    """Blocks of lines with an empty line between each two; an empty block leaves no trace."""
    some = [list(block) for block in blocks]
    for i, block in enumerate(block for block in some if block):
        yield from [""] * (i > 0)
        yield from block


def html_of(page: Page) -> str:
    """The HTML report. What writes it takes its time to load: only who asks for it pays."""
    from webhook.report.html import html

    return html(page)


def page_of(found: Run, rows: Sequence[Workload], figures: Figures | None, since: str, moment: datetime) -> Page:
    """What the HTML report shows."""
    policies = found.world.policies
    return Page(
        cluster=found.cluster,
        moment=moment.isoformat(timespec="seconds"),
        since=since,
        policies=tuple(policy.name for policy in policies.policies),
        digest=policies.digest,
        workloads=tuple(row for row in rows if row.touches_gpus),
        shares=tuple(shares(found.results)),
        stocks=tuple(found.stocks),
        figures=figures,
        exemptions=tuple(exempting(policies.exemptions, rows, moment)),
        version=rightslice_version(),
    )


def exempting(exemptions: Iterable[Exemption], rows: Sequence[Workload], moment: datetime) -> Iterator[Exempting]:
    """Every exemption, the one that ends first first, with the number of workloads that it serves."""
    served = Counter(name for row in rows for name in row.exempted)
    for each in sorted(exemptions, key=lambda one: one.expires):
        yield Exempting(
            name=each.name,
            policy=each.policy,
            codes=tuple(sorted(each.codes)),
            reason=each.reason,
            expires=each.expires.isoformat(timespec="seconds"),
            ended=each.expires <= moment,
            workloads=served[each.name],
        )
