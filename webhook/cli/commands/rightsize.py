"""`rightsize`: show the GPU request, usage, recommendation and saving of each workload."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import AuditFlags, AuditPaths, PriceFile, run_audit
from webhook.cli.cluster_access import ClusterFlags, choose_cluster
from webhook.cli.inputs import parse_labels, parse_now
from webhook.cli.output import (
    EXIT_INVALID_INPUT,
    EXIT_OK,
    RowFlags,
    document_reports,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.cli.selection import select_objects
from webhook.report.costs import price_lines, product_prices
from webhook.report.reach import reach_lines, summarize_reach
from webhook.report.recommendations import (
    container_rows,
    recommendation_columns,
    recommendation_csv,
    recommendation_document,
    workload_recommendation,
)
from webhook.report.text import sanitize
from webhook.report.workloads import workload_reports

FORMATS = ("table", "wide", "name", "json", "yaml", "csv")

RecommendationOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def rightsize_command(
    paths: AuditPaths = None,
    filename: flags.Filenames = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    usage: flags.Usage = None,
    prometheus: flags.Prometheus = None,
    namespace: flags.OnlyNamespace = None,
    all_namespaces: flags.AllNamespaces = False,
    selector: flags.Selector = "",
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    prices: PriceFile = "",
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: RecommendationOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Show requests, usage and recommended GPUs of workloads.

    The recommendation is what the policies would give the pods if they were created now, including right-sizing in
    audit and warn mode. Without one, RECOMMENDED names the reason: `explain REASON` says what it means, and -o wide the
    whole sentence. -o wide also has RISK, the share of pod-hours that would need more than the recommended size, if it
    is based on observed usage. A need can be far above the measured peak: the less recent usage there is, the more the
    peaks of other workloads count.

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    named = flags.join_paths(paths, filename)
    selection = select_objects(namespace, all_namespaces, selector)
    audit = run_audit(
        AuditFlags(
            paths=named,
            policies=policies,
            cluster=choose_cluster(cluster, named),
            access=ClusterFlags(kubeconfig, context),
            policy_namespace=policy_namespace,
            labels=parse_labels(namespace_labels),
            now=parse_now(now),
            prices=prices,
            usage=usage,
            prometheus=prometheus,
            verbose=verbose,
            selection=selection,
        )
    )
    every = workload_reports(audit.results, audit.prices, audit.capacities or None)
    workloads = [row for row in every if row.usages]
    if audit.results and not workloads:
        selection.note_nothing("workloads with GPUs")
    rows, priced, paint = RowFlags(sort_by, no_headers), audit.prices, paint_for(no_color=no_color)
    table = recommendation_columns(priced)
    firsts = [row for row in container_rows(workloads) if row.saved]
    workloads = [row.workload for row in rows.sort(table, firsts, lambda row: workload_recommendation(row.workload))]
    rates = product_prices(audit.capacities, priced) if priced else ()
    price_rows = ["", *price_lines(priced, rates)] if priced else []
    reach = summarize_reach(audit.results, audit.context.view.fleet)
    reach_rows = ["", *reach_lines(reach, paint)] if reach else []
    reports = {
        **rows.reports(
            table,
            list(container_rows(workloads)),
            lambda row: row.workload.object_name,
            paint,
            around=lambda lines: [*lines, *reach_rows, *price_rows],
        ),
        "name": lambda: join_lines(sanitize(row.object_name) for row in workloads),
        **document_reports(lambda: recommendation_document(workloads, priced, rates, reach)),
        "csv": lambda: recommendation_csv(workloads, priced),
    }
    write_reports(targets, reports)
    invalid = [each for each in audit.results if each.invalid]
    for each in invalid:
        print_note(sanitize(f"error: {each.location}: {each.reason}"))
    raise typer.Exit(EXIT_INVALID_INPUT if invalid else EXIT_OK)
