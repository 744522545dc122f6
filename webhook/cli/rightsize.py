"""`rightsize`: what each workload asks for of GPUs, was seen to use, is advised, and would save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from webhook.cli import flags
from webhook.cli.auditing import AuditPaths, PriceFile, Wanted, run, say_if_nodeless
from webhook.cli.console import CLEAN, WRONG_INPUT, paint_for, tell
from webhook.cli.inputs import Reach, labels_of, moment_of
from webhook.cli.output import lines, targets, write
from webhook.model.prices import NodePrices
from webhook.report.advice import advice_csv, advice_document, advice_table
from webhook.report.costs import Rate, price_lines, rates_of
from webhook.report.data import as_json, as_yaml
from webhook.report.words import Paint, shown
from webhook.report.workloads import Workload, workloads_of

FORMATS = ("table", "json", "yaml", "csv")
AdviceOutput = Annotated[list[str] | None, flags.output("table, json, yaml or csv")]
OnlyNamespace = Annotated[str, typer.Option("-n", "--namespace", metavar="NAME", help="Only workloads of it.")]


def rightsize(
    paths: AuditPaths = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.ClusterToJudge = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
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
    wanted = targets(output, FORMATS)
    found = run(
        Wanted(
            paths=paths,
            policies=policies,
            cluster=cluster,
            reach=Reach(kubeconfig, context),
            policy_namespace=policy_namespace,
            labels=labels_of(namespace_labels),
            moment=moment_of(now),
            prices=prices,
            usage=usage,
            verbose=verbose,
        )
    )
    say_if_nodeless(found.world)
    every = workloads_of(found.results, found.prices, found.stocks or None)
    rows = [row for row in every if row.uses and namespace in ("", row.namespace)]
    if namespace and not rows:
        tell(f"note: no workload with GPUs in namespace {shown(namespace)}")
    priced, paint = found.prices, paint_for(no_color=no_color)
    rates = rates_of(found.stocks, priced) if priced else ()
    reports = {
        "table": lambda: lines(list(people(rows, paint, priced, rates))),
        "json": lambda: as_json(advice_document(rows, priced, rates)),
        "yaml": lambda: as_yaml(advice_document(rows, priced, rates)),
        "csv": lambda: advice_csv(rows, priced),
    }
    write(wanted, reports)
    raise typer.Exit(WRONG_INPUT if any(each.broken for each in found.results) else CLEAN)


def people(rows: Sequence[Workload], paint: Paint, prices: NodePrices | None, rates: Sequence[Rate]) -> Iterator[str]:
    """The advice; below it, where money is shown, the prices of all GPUs of the cluster."""
    yield from advice_table(rows, paint, prices.currency if prices else "")
    if prices:
        yield ""
        yield from price_lines(prices, rates)
