"""`layout`: plan the MIG layouts of a cluster from what its pods need."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.layout_demand import DemandCollector, view_with_slices
from webhook.cli import flags
from webhook.cli.audit_inputs import AuditFlags, PriceFile, run_audit
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.inputs import parse_labels, parse_now
from webhook.cli.output import (
    EXIT_INVALID_INPUT,
    EXIT_OK,
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.errors import SolverError
from webhook.model.cluster_view import ClusterView
from webhook.placement.layout_plan import UnitDemand, plan_layouts
from webhook.placement.node_layouts import NodeLayout, assign_layouts, card_groups, node_layouts
from webhook.report.layout import ClusterLayout, layout_document, layout_lines
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml")

LayoutOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]


def layout_command(
    policies: flags.PoliciesOrLive = None,
    cluster: flags.AuditedCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    usage: flags.Usage = None,
    namespace_labels: flags.NamespaceLabels = None,
    now: flags.Now = "",
    prices: PriceFile = "",
    output: LayoutOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Plan MIG layouts from what pods need: the fewest cards, and the fewest changes.

    The demand is what the policies would give the pods if they were created now and every slice were free, including
    right-sizing in audit and warn mode. Pods that keep whole cards keep them where they run.

    Nothing is changed in the cluster. Needs HiGHS: pip install 'rightslice[layout]'

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    audited = AuditFlags(
        paths=None,
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
    try:
        layout, invalid = plan_cluster_layout(audited)
    except SolverError as error:
        exit_with_error(f"layout: {error}")
    paint = paint_for(no_color=no_color)
    reports = {
        "table": lambda: join_lines(layout_lines(layout, paint)),
        **document_reports(lambda: layout_document(layout)),
    }
    write_reports(targets, reports)
    raise typer.Exit(EXIT_INVALID_INPUT if invalid else EXIT_OK)


def plan_cluster_layout(audited: AuditFlags) -> tuple[ClusterLayout, bool]:
    """Return the plan for a cluster, and whether an object could not be read.

    Raises:
        SolverError: The solver is not installed.
    """
    nodes: dict[int, NodeLayout] = {}
    evaluated: list[ClusterView] = []

    def offer_slices(view: ClusterView) -> ClusterView:
        nodes.update(node_layouts(view.fleet))
        evaluated.append(view_with_slices(view, nodes))
        return evaluated[0]

    audit = run_audit(audited, offer_slices)
    collector = DemandCollector(evaluated[0].fleet, nodes, audit.context.policies)
    for result in audit.results:
        collector.add(result)
    demand = collector.demand()
    wanted = [UnitDemand(requests, need.units) for need, requests in demand.needs.items()]
    plan = plan_layouts(card_groups(demand.nodes), wanted)
    changes = assign_layouts(demand.nodes, plan.cards)
    return ClusterLayout(demand, plan, changes, audit.prices), any(each.invalid for each in audit.results)
