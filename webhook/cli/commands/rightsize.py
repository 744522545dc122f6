"""`rightsize_command`: what each workload asks for of GPUs, was seen to use, is advised, and would save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import AuditOptions, AuditPaths, PriceFile, note_missing_nodes, run_audit
from webhook.cli.inputs import ClusterFlags, parse_labels, parse_now
from webhook.cli.output import CLEAN, WRONG_INPUT, join_lines, paint_for, parse_targets, print_note, write_reports
from webhook.model.prices import NodePrices
from webhook.report.costs import ProductPrice, price_lines, product_prices
from webhook.report.rightsizing import recommendation_csv, recommendation_document, recommendation_table
from webhook.report.serialization import json_text, yaml_text
from webhook.report.text import Paint, sanitize
from webhook.report.workloads import WorkloadReport, workload_reports
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml", "csv")
AdviceOutput = Annotated[list[str] | None, flags.output_option("table, json, yaml or csv")]
OnlyNamespace = Annotated[str, typer.Option("-n", "--namespace", metavar="NAME", help="Only workloads of it.")]


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
    output: AdviceOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Show what each workload asks for of GPUs, was seen to use, is advised, and would save.

    The advice is what the policies would make of the pods if they were created again now, right-sizing on trial
    included: what the webhook would do, and nothing else. Where there is no advice, the last column says why. RISK is
    the share of pod-hours that would need more than the advised size, where observed use advises it.

    Exit code: 0, 2 where a file, flag or policy is wrong, 3 where the cluster did not answer.
    """
    wanted = parse_targets(output, FORMATS)
    found = run_audit(
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
    note_missing_nodes(found.context)
    every = workload_reports(found.results, found.prices, found.stocks or None)
    rows = [row for row in every if row.usages and namespace in ("", row.namespace)]
    if namespace and not rows:
        print_note(f"note: no workload with GPUs in namespace {sanitize(namespace)}")
    priced, paint = found.prices, paint_for(no_color=no_color)
    rates = product_prices(found.stocks, priced) if priced else ()
    reports = {
        "table": lambda: join_lines(list(rightsize_table_lines(rows, paint, priced, rates))),
        "json": lambda: json_text(recommendation_document(rows, priced, rates)),
        "yaml": lambda: yaml_text(recommendation_document(rows, priced, rates)),
        "csv": lambda: recommendation_csv(rows, priced),
    }
    write_reports(wanted, reports)
    raise typer.Exit(WRONG_INPUT if any(each.invalid for each in found.results) else CLEAN)


def rightsize_table_lines(
    rows: Sequence[WorkloadReport], paint: Paint, prices: NodePrices | None, rates: Sequence[ProductPrice]
) -> Iterator[str]:
    """The advice; below it, where money is shown, the prices of all GPUs of the cluster."""
    yield from recommendation_table(rows, paint, prices)
    if prices:
        yield ""
        yield from price_lines(prices, rates)
