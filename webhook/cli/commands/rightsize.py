"""`rightsize`: show the GPU request, usage, recommendation and saving of each workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import AuditOptions, AuditPaths, PriceFile, run_audit
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.inputs import parse_labels, parse_now
from webhook.cli.output import (
    EXIT_INVALID_INPUT,
    EXIT_OK,
    join_lines,
    paint_for,
    parse_targets,
    print_note,
    write_reports,
)
from webhook.model.prices import NodePrices
from webhook.report.costs import ProductPrice, price_lines, product_prices
from webhook.report.rightsizing import recommendation_csv, recommendation_document, recommendation_table
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import Paint, sanitize
from webhook.report.workloads import WorkloadReport, workload_reports
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml", "csv")
RecommendationOutput = Annotated[list[str] | None, flags.output_option("table, json, yaml or csv")]
OnlyNamespace = Annotated[
    str, typer.Option("-n", "--namespace", metavar="NAME", help="Only workloads in this namespace.")
]


def rightsize_command(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    usage: flags.Usage = None,
    namespace: OnlyNamespace = "",
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    prices: PriceFile = "",
    output: RecommendationOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Show requests, usage and recommended GPUs of workloads.

    The recommendation is what the policies would give the pods if they were created now, including right-sizing in
    audit and warn mode. Without a recommendation, the last column gives the reason. RISK is the share of pod-hours that
    would need more than the recommended size, if it is based on observed usage.

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    audit = run_audit(
        AuditOptions(
            paths=paths,
            policies=policies,
            cluster=cluster,
            access=ClusterFlags(kubeconfig, context),
            policy_namespace=policy_namespace,
            labels=parse_labels(namespace_labels),
            now=parse_now(now),
            prices=prices,
            usage=usage,
            verbose=verbose,
        )
    )
    every = workload_reports(audit.results, audit.prices, audit.capacities or None)
    workloads = [row for row in every if row.usages and namespace in ("", row.namespace)]
    if namespace and not workloads:
        print_note(f"note: no workload with GPUs in namespace {sanitize(namespace)}")
    priced, paint = audit.prices, paint_for(no_color=no_color)
    rates = product_prices(audit.capacities, priced) if priced else ()
    reports = {
        "table": lambda: join_lines(_rightsize_table_lines(workloads, paint, priced, rates)),
        "json": lambda: json_text(recommendation_document(workloads, priced, rates)),
        "yaml": lambda: yaml_text(recommendation_document(workloads, priced, rates)),
        "csv": lambda: recommendation_csv(workloads, priced),
    }
    write_reports(targets, reports)
    raise typer.Exit(EXIT_INVALID_INPUT if any(each.invalid for each in audit.results) else EXIT_OK)


def _rightsize_table_lines(
    workloads: Sequence[WorkloadReport], paint: Paint, prices: NodePrices | None, rates: Sequence[ProductPrice]
) -> Iterator[str]:
    """Yield the recommendations, and the prices of the cluster's GPUs if costs are shown."""
    yield from recommendation_table(workloads, paint, prices)
    if prices:
        yield ""
        yield from price_lines(prices, rates)
