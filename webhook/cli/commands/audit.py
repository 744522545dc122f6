"""`audit`: re-evaluate all pods of a cluster, and report by workload what would change and what that would save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from webhook import __version__
from webhook.audit.pod_audit import audit_claims
from webhook.cli import flags
from webhook.cli.audit_inputs import AuditFlags, AuditPaths, PriceFile, Since, parse_since, run_audit
from webhook.cli.cluster_access import LIVE, ClusterFlags, call_api, choose_cluster
from webhook.cli.commands.check import FORMATS as CHECK_FORMATS
from webhook.cli.commands.check import check_reports, exit_code_of_checks, note_invalid_results
from webhook.cli.inputs import parse_labels, parse_now
from webhook.cli.output import (
    EXIT_NO_ANSWER,
    RowFlags,
    exit_with_error,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.selection import select_objects
from webhook.model.enums import PolicyMode
from webhook.report.audit import (
    NAMESPACES,
    AuditPage,
    ExemptionUsage,
    admission_savings,
    admission_summary,
    audit_document,
    audit_mode_summary,
    audit_summary,
    sum_all_namespaces,
    totals_by_namespace,
)
from webhook.report.check import PoliciesUsed, audit_findings_line, finding_lines, skip_line
from webhook.report.policy_reports import NO_KIND, ReportApi, build_policy_reports
from webhook.report.reach import ReachReport, reach_lines, summarize_reach
from webhook.report.results import CheckResult, CheckVerdict, summarize_results
from webhook.report.serialization import json_chunks, yaml_text
from webhook.report.text import Paint
from webhook.report.utilization import ClusterUtilization, compute_utilization, utilization_lines
from webhook.report.workload_report import (
    listed_workloads,
    omitted_workloads_lines,
    unevaluated_lines,
    workload_columns,
    workload_finding_lines,
)
from webhook.report.workloads import WorkloadReport, workload_reports

if TYPE_CHECKING:
    from webhook.audit.cluster_audit import ClusterAudit

FORMATS = (*CHECK_FORMATS, "csv", "html", "policyreport", "metrics")
FORMATS_WITHOUT_ERRORS = ("name", "csv", "html", "policyreport", "metrics")
"""Formats that do not show what cannot be read; those of tables neither with --no-headers."""
AuditOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
WriteFlag = Annotated[
    bool,
    typer.Option(
        "--write",
        help="With --cluster live: also store the objects that -o policyreport prints, and delete those that no longer "
        "have results.",
    ),
]
DryRunFlag = Annotated[
    bool, typer.Option("--dry-run", help="With --write: validate on the API server and store nothing.")
]


def audit_command(
    paths: AuditPaths = None,
    filename: flags.Filenames = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace: flags.OnlyNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: flags.Selector = "",
    namespace_labels: flags.NamespaceLabels = None,
    usage: flags.Usage = None,
    prometheus: flags.Prometheus = None,
    now: flags.Now = "",
    since: Since = "",
    prices: PriceFile = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: AuditOutput = None,
    write: WriteFlag = False,
    dry_run: DryRunFlag = False,
    fail_on: flags.FailOnFlag = flags.FailOn.DENY,
    no_color: flags.NoColor = False,
    quiet: flags.Quiet = False,
    verbose: flags.Verbose = False,
) -> None:
    """Re-evaluate all pods against current policies.

    Reports by workload what would change, and what that would save.

    A live cluster is read page by page, and only --write changes it. A snapshot is the output of `kubectl get
    nodes,namespaces,limitranges,resourcequotas,pods -A -o yaml`. For pods with volume claims, add pvc, pv,
    storageclasses, csinodes, csidrivers, csistoragecapacities and volumeattachments; for GPUs that DRA drivers publish,
    add resourceslices, deviceclasses, resourceclaims and resourceclaimtemplates.

    Each pod is evaluated on its own, without its node and status, in the current cluster: its own GPUs still count as
    allocated. Pods that have ended are skipped.

    GPUS is what a pod holds or waits for. nvidia.com/gpu can be a whole card, a MIG instance or a share, so it is
    measured on the pod's own node. IDLE is the part without GPU activity. SAVED is what pods hold minus what they would
    get now; pods that would be denied do not count. AUDIT-SAVED is what right-sizing in audit or warn mode would save
    in addition if enforced. docs/audit.md defines the summary figures, which exclude pending pods and are omitted with
    -n, -l or --since. Without -l and --since, waiting resource claims and claim templates are reviewed too.

    Exit code: 0 nothing to act on, 1 findings, 2 invalid input, 3 the cluster did not answer, or --write skipped an
    object of another tool.
    """
    targets, moment = parse_targets(output, FORMATS), parse_now(now)
    named = flags.join_paths(paths, filename)
    cluster = choose_cluster(cluster, named)
    selection = select_objects(namespace, all_namespaces, selector)
    selected = ", ".join([*[f"created since {since}"] * bool(since), *[str(selection)] * selection.is_partial])
    partial = "--since" if since else "-n and -l" if selection.is_partial else ""
    _reject_partial_write(cluster, named, partial, write=write, dry_run=dry_run)
    access = ClusterFlags(kubeconfig, context)
    audit = run_audit(
        AuditFlags(
            paths=named,
            policies=policies,
            cluster=cluster,
            access=access,
            policy_namespace=policy_namespace,
            labels=parse_labels(namespace_labels),
            now=moment,
            since=parse_since(since, moment),
            prices=prices,
            usage=usage,
            prometheus=prometheus,
            verbose=verbose,
            write_reports=write,
            selection=selection,
        )
    )
    paint, results, nodes = paint_for(no_color=no_color), audit.results, audit.capacities
    rows, table = RowFlags(sort_by, no_headers), workload_columns(audit.prices)
    workloads = rows.sort(table, workload_reports(results, audit.prices, nodes or None))
    listed = listed_workloads(workloads, every=verbose)
    figures = compute_utilization(nodes, workloads, audit.prices) if nodes and not partial else None
    claims = [] if since or selection.labels else [*audit_claims(audit.context.view)]
    claims = [each for each in claims if selection.namespace in ("", each.namespace)]
    names, reach = audit.context.policies.names, summarize_reach(results, audit.context.view.fleet)
    objects = [*results, *claims]

    def around(lines: list[str]) -> Iterable[str]:
        lines = [*(lines if listed else ()), *omitted_workloads_lines(workloads, listed)]
        return _audit_lines(audit, claims, workloads, lines, figures, reach, paint, quiet=quiet, verbose=verbose)

    reports = check_reports(objects, PoliciesUsed(names, audit.cluster), paint, fail_on) | {
        **rows.reports(table, listed, lambda row: row.object_name, paint, around=around),
        "json": lambda: json_chunks(audit_document(results, workloads, figures, audit.prices, names, reach, claims)),
        "yaml": lambda: yaml_text(audit_document(results, workloads, figures, audit.prices, names, reach, claims)),
        "csv": lambda: table.to_csv(workloads),
        "html": lambda: _render_html(audit, workloads, figures, reach, selected, moment),
        "policyreport": lambda: _policy_reports_yaml(audit.report_apis, workloads, moment),
        "metrics": lambda: _reach_metrics(reach),
    }
    if no_headers or any(target.form in FORMATS_WITHOUT_ERRORS for target in targets):
        note_invalid_results(results)
    write_reports(targets, reports)
    if write:
        from webhook.audit.report_writer import publish_reports  # the HTTP client is slow to import

        policy_reports, apis = build_policy_reports(workloads, moment, audit.report_apis[0]), audit.report_apis
        if not call_api(access, lambda api: publish_reports(api, policy_reports, apis, print_note, dry_run=dry_run)):
            raise typer.Exit(EXIT_NO_ANSWER)
    raise typer.Exit(exit_code_of_checks(objects, fail_on))


def _audit_lines(
    audit: ClusterAudit,
    claims: Sequence[CheckResult],
    workloads: Sequence[WorkloadReport],
    table: Sequence[str],
    figures: ClusterUtilization | None,
    reach: ReachReport | None,
    paint: Paint,
    *,
    quiet: bool,
    verbose: bool,
) -> Iterator[str]:
    """Yield the summary figures, namespaces, workloads, findings and totals; with `quiet` only the findings."""
    results, least = audit.results, PolicyMode.AUDIT if verbose else PolicyMode.WARN
    skipped = [skip_line(each, paint) for each in results if each.verdict is CheckVerdict.SKIPPED and not each.quiet]
    findings = [*skipped, *workload_finding_lines(workloads, paint, least=least)]
    findings += [line for each in claims for found in each.findings for line in finding_lines(found, each.title, paint)]
    if quiet:
        yield from findings
        return
    notes = audit_findings_line(summarize_results(results)) if not verbose else ""
    savings = admission_summary(results), audit_mode_summary(results)
    yield from _join_blocks(
        utilization_lines(figures) if figures else (),
        reach_lines(reach, paint) if reach else (),
        NAMESPACES.to_lines([sum_all_namespaces(results), *totals_by_namespace(results)], paint),
        table,
        findings,
        unevaluated_lines(workloads),
        [line for line in (audit_summary(results), *savings, notes) if line],
    )


def _join_blocks(*blocks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of all blocks that are not empty, separated by empty lines."""
    for i, block in enumerate(block for block in map(list, blocks) if block):
        yield from [""] * (i > 0)
        yield from block


def _render_html(
    audit: ClusterAudit,
    workloads: Sequence[WorkloadReport],
    figures: ClusterUtilization | None,
    reach: ReachReport | None,
    selected: str,
    moment: datetime,
) -> Iterator[str]:
    from webhook.report.html import html_report_pieces  # templates are slow to import

    policies = audit.context.policies
    served = Counter(name for row in workloads for name in row.exemptions)
    exemptions = (
        ExemptionUsage(
            name=each.name,
            policy=each.policy,
            codes=tuple(sorted(each.codes)),
            reason=each.reason,
            expires=each.expires.isoformat(timespec="seconds"),
            expired=each.expires <= moment,
            workloads=served[each.name],
        )
        for each in sorted(policies.exemptions, key=lambda one: one.expires)
    )
    return html_report_pieces(
        AuditPage(
            cluster=audit.cluster,
            moment=moment.isoformat(timespec="seconds"),
            selected=selected,
            policies=tuple(policy.name for policy in policies.policies),
            digest=policies.digest,
            workloads=tuple(row for row in workloads if row.touches_gpus),
            namespaces=tuple(totals_by_namespace(audit.results)),
            nodes=tuple(audit.capacities),
            utilization=figures,
            reach=reach,
            admission=admission_savings(audit.results),
            exemptions=tuple(exemptions),
            version=__version__,
        )
    )


def _reach_metrics(reach: ReachReport | None) -> str:
    """Return the reach as metrics; without nodes, print a note."""
    if reach is None:
        print_note("note: without nodes, the reach is not known, so there are no metrics")
        return ""
    from webhook.audit.reach_metrics import reach_metrics  # the client of Prometheus is slow to import

    return reach_metrics(reach)


def _policy_reports_yaml(apis: Sequence[ReportApi], workloads: Sequence[WorkloadReport], moment: datetime) -> str:
    """Return policy reports of the cluster's preferred API; without any, print a note."""
    if not apis:
        print_note(f"note: {NO_KIND}")
        return ""
    return "---\n".join(map(yaml_text, build_policy_reports(workloads, moment, apis[0])))


def _reject_partial_write(
    cluster: str | None, paths: Sequence[str] | None, partial: str, *, write: bool, dry_run: bool
) -> None:
    """Exit if reports would be written that do not cover a whole live cluster."""
    if dry_run and not write:
        exit_with_error("--dry-run: needs --write. Write --write --dry-run, or leave it out: an audit stores nothing")
    if write and (cluster != LIVE or paths):
        exit_with_error("--write: stores reports in the audited cluster. Write --cluster live, and no files")
    if write and partial:
        exit_with_error(f"--write: results for some of the pods would replace those for all. Leave out {partial}")
