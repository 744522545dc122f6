"""`audit_command`: what every pod of a cluster would become, by workload, and what that would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.auditing import AuditPaths, PriceFile, ClusterAudit, Since, AuditOptions, run_audit, note_missing_nodes, parse_since
from webhook.cli.check import FORMATS as CHECKED
from webhook.cli.check import exit_code_of_checks, check_reports
from webhook.cli.console import paint_for
from webhook.cli.inputs import ClusterFlags, parse_labels, parse_now
from webhook.cli.output import join_lines, parse_targets, write_reports
from webhook.cli.reportobjects import DryRunWrite, WriteReports, store_reports, reject_partial_write, report_objects_yaml
from webhook.cli.version import rightslice_version
from webhook.model.modes import PolicyMode
from webhook.policy.compiled import Exemption
from webhook.report.audits import audit_document, audit_summary, audit_parts, namespace_table, totals_by_namespace, audit_mode_summary
from webhook.report.data import yaml_text, json_chunks
from webhook.report.figures import ClusterUtilization, utilization_lines, compute_utilization
from webhook.report.page import ExemptionUsage, AuditPage
from webhook.report.results import CheckVerdict, summarize_results
from webhook.report.table import audit_findings_line, skip_line
from webhook.report.words import Paint
from webhook.report.workload_tables import unevaluated_lines, workload_csv, workload_finding_lines, workload_table
from webhook.report.workloads import WorkloadReport, workload_reports

FORMATS = (*CHECKED, "csv", "html", "policyreport")
AuditOutput = Annotated[list[str] | None, flags.output_option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}")]


def audit_command(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.DEFAULT_POLICY_NAMESPACE,
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    now: flags.Now = "",
    since: Since = "",
    prices: PriceFile = "",
    output: AuditOutput = None,
    to_write: WriteReports = False,
    dry_run: DryRunWrite = False,
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
    wanted, moment = parse_targets(output, FORMATS), parse_now(now)
    reject_partial_write(cluster, paths, since, to_write=to_write, dry_run=dry_run)
    reach = ClusterFlags(kubeconfig, context)
    found = run_audit(
        AuditOptions(
            paths=paths,
            policies=policies,
            cluster=cluster,
            access=reach,
            policy_namespace=policy_namespace,
            labels=parse_labels(namespace_labels),
            now=moment,
            since=parse_since(since, moment),
            prices=prices,
            usage=usage,
            verbose=verbose,
            write_reports=to_write,
        )
    )
    note_missing_nodes(found.context)
    paint, results = paint_for(no_color=no_color), found.results
    rows = workload_reports(results, found.prices, found.stocks or None)
    figures = compute_utilization(found.stocks, rows, found.prices) if found.stocks and not since else None
    reports = check_reports(results, paint, fail_on) | {
        "table": lambda: join_lines(list(audit_table_lines(found, rows, figures, paint, quiet=quiet, verbose=verbose))),
        "json": lambda: json_chunks(audit_parts(results, rows, figures, found.prices)),
        "yaml": lambda: yaml_text(audit_document(results, rows, figures, found.prices)),
        "csv": lambda: workload_csv(rows, found.prices),
        "html": lambda: render_html(audit_page(found, rows, figures, since, moment)),
        "policyreport": lambda: report_objects_yaml(found.report_apis, rows, moment),
    }
    write_reports(wanted, reports)
    if to_write:
        store_reports(found.report_apis, rows, moment, reach, dry_run=dry_run)
    raise typer.Exit(exit_code_of_checks(results, fail_on))


def audit_table_lines(
    found: ClusterAudit, rows: Sequence[WorkloadReport], figures: ClusterUtilization | None, paint: Paint, *, quiet: bool, verbose: bool
) -> Iterator[str]:
    """The head figures, namespaces, workloads, findings and the totals; with `quiet` the findings only."""
    results, least = found.results, PolicyMode.AUDIT if verbose else PolicyMode.WARN
    faults = [skip_line(each, paint) for each in results if each.verdict is CheckVerdict.SKIPPED and not each.quiet]
    findings = [*faults, *workload_finding_lines(rows, paint, least=least)]
    if quiet:
        yield from findings
        return
    notes = audit_findings_line(summarize_results(results)) if not verbose else ""
    yield from _join_blocks(
        utilization_lines(figures) if figures else (),
        namespace_table(results, paint),
        workload_table(rows, paint, every=verbose),
        findings,
        unevaluated_lines(rows),
        [line for line in (audit_summary(results), audit_mode_summary(results), notes) if line],
    )


def _join_blocks(*blocks: Iterable[str]) -> Iterator[str]:
    """Blocks of lines with an empty line between each two; an empty block leaves no trace."""
    some = [list(block) for block in blocks]
    for i, block in enumerate(block for block in some if block):
        yield from [""] * (i > 0)
        yield from block


def render_html(page: AuditPage) -> str:
    """The HTML report. What writes it takes its time to load: only who asks for it pays."""
    from webhook.report.html import html_report

    return html_report(page)


def audit_page(found: ClusterAudit, rows: Sequence[WorkloadReport], figures: ClusterUtilization | None, since: str, moment: datetime) -> AuditPage:
    """What the HTML report shows."""
    policies = found.context.policies
    return AuditPage(
        cluster=found.cluster,
        moment=moment.isoformat(timespec="seconds"),
        since=since,
        policies=tuple(policy.name for policy in policies.policies),
        digest=policies.digest,
        workloads=tuple(row for row in rows if row.touches_gpus),
        namespaces=tuple(totals_by_namespace(found.results)),
        nodes=tuple(found.stocks),
        utilization=figures,
        exemptions=tuple(exemption_rows(policies.exemptions, rows, moment)),
        version=rightslice_version(),
    )


def exemption_rows(exemptions: Iterable[Exemption], rows: Sequence[WorkloadReport], moment: datetime) -> Iterator[ExemptionUsage]:
    """Every exemption, the one that ends first first, with the number of workloads that it serves."""
    served = Counter(name for row in rows for name in row.exemptions)
    for each in sorted(exemptions, key=lambda one: one.expires):
        yield ExemptionUsage(
            name=each.name,
            policy=each.policy,
            codes=tuple(sorted(each.codes)),
            reason=each.reason,
            expires=each.expires.isoformat(timespec="seconds"),
            expired=each.expires <= moment,
            workloads=served[each.name],
        )
