"""`audit_command`: what every pod of a cluster would become, by workload, and what that would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import (
    AuditOptions,
    AuditPaths,
    ClusterAudit,
    PriceFile,
    Since,
    note_missing_nodes,
    parse_since,
    run_audit,
)
from webhook.cli.commands.check import FORMATS as CHECKED
from webhook.cli.commands.check import check_reports, exit_code_of_checks
from webhook.cli.commands.version import rightslice_version
from webhook.cli.inputs import LIVE, ClusterFlags, parse_labels, parse_now
from webhook.cli.output import (
    NO_ANSWER,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.model.enums import PolicyMode
from webhook.policy.policy_set import Exemption
from webhook.report.audit import (
    AuditPage,
    ExemptionUsage,
    audit_document,
    audit_mode_summary,
    audit_parts,
    audit_summary,
    namespace_table,
    totals_by_namespace,
)
from webhook.report.check import audit_findings_line, skip_line
from webhook.report.policy_reports import NO_KIND, ReportApi, build_policy_reports
from webhook.report.results import CheckVerdict, summarize_results
from webhook.report.serialization import json_chunks, yaml_text
from webhook.report.text import Paint
from webhook.report.utilization import ClusterUtilization, compute_utilization, utilization_lines
from webhook.report.workload_report import unevaluated_lines, workload_columns, workload_finding_lines, workload_table
from webhook.report.workloads import WorkloadReport, workload_reports
from webhook.well_known import SYSTEM_NAMESPACE

WriteReports = Annotated[
    bool,
    typer.Option(
        "--write",
        help="With --cluster live: also store the objects that -o policyreport prints, and remove those of ours that "
        "have nothing left to say.",
    ),
]
DryRunWrite = Annotated[
    bool, typer.Option("--dry-run", help="With --write: the API server checks, stores nothing, and stderr says what.")
]


FORMATS = (*CHECKED, "csv", "html", "policyreport")
AuditOutput = Annotated[list[str] | None, flags.output_option(f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}")]


def audit_command(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
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
        "csv": lambda: workload_columns(found.prices).to_csv(rows),
        "html": lambda: render_html(audit_page(found, rows, figures, since, moment)),
        "policyreport": lambda: report_objects_yaml(found.report_apis, rows, moment),
    }
    write_reports(wanted, reports)
    if to_write:
        store_reports(found.report_apis, rows, moment, reach, dry_run=dry_run)
    raise typer.Exit(exit_code_of_checks(results, fail_on))


def audit_table_lines(
    found: ClusterAudit,
    rows: Sequence[WorkloadReport],
    figures: ClusterUtilization | None,
    paint: Paint,
    *,
    quiet: bool,
    verbose: bool,
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


def audit_page(
    found: ClusterAudit,
    rows: Sequence[WorkloadReport],
    figures: ClusterUtilization | None,
    since: str,
    moment: datetime,
) -> AuditPage:
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


def exemption_rows(
    exemptions: Iterable[Exemption], rows: Sequence[WorkloadReport], moment: datetime
) -> Iterator[ExemptionUsage]:
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


def report_objects_yaml(apis: Sequence[ReportApi], rows: Sequence[WorkloadReport], moment: datetime) -> str:
    """Report objects as YAML, of the API that the cluster has; nothing, and a word, where it has none."""
    if not apis:
        print_note(f"note: {NO_KIND}")
        return ""
    return "---\n".join(map(yaml_text, build_policy_reports(rows, moment, apis[0])))


def reject_partial_write(
    cluster: str | None, paths: Sequence[str] | None, since: str, *, to_write: bool, dry_run: bool
) -> None:
    """Stops the program where report objects would be written of less than a whole live cluster."""
    if dry_run and not to_write:
        exit_with_error(
            "--dry-run: says what --write would do. Write --write --dry-run, or leave it out: an audit stores nothing"
        )
    if to_write and (cluster != LIVE or paths):
        exit_with_error("--write: stores what was found in the cluster itself. Write --cluster live, and no files")
    if to_write and since:
        exit_with_error("--write: what a part of the pods came to would replace what all came to. Leave out --since")


def store_reports(
    apis: Sequence[ReportApi], rows: Sequence[WorkloadReport], moment: datetime, reach: ClusterFlags, *, dry_run: bool
) -> None:
    """Store report objects in the cluster that was judged, and say on stderr what became of each.

    Stops the program where another tool has one of their name: what could be stored then is.
    """
    from webhook.audit.report_writer import publish_reports
    from webhook.cli.cluster_flags import call_api

    reports = build_policy_reports(rows, moment, apis[0])
    if not call_api(*reach, lambda api: publish_reports(api, reports, apis, print_note, dry_run=dry_run)):
        raise typer.Exit(NO_ANSWER)
