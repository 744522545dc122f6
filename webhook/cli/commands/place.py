"""`place`: show where a pod would be placed, on which GPUs, and why not on other nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.admission import reject_unplaceable
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_audit import recreated_source
from webhook.audit.pod_placement import place_pods, with_claims_of_files
from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags, choose_cluster
from webhook.cli.inputs import note_demo, parse_now, report_broken_files
from webhook.cli.output import (
    EXIT_FINDINGS,
    EXIT_INVALID_INPUT,
    EXIT_OK,
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    text_reports,
    write_reports,
)
from webhook.cli.placement_inputs import FillBy, RankBy, read_placement_and_context
from webhook.cli.references import read_pods, read_selected_pods, split_pods_and_files
from webhook.cli.selection import choose_namespace, select_objects
from webhook.model.pods import DEFAULT_NAMESPACE
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.placement import placement_document, placement_lines
from webhook.report.text import sanitize

FORMATS = ("table", "wide", "name", "json", "yaml")
PlaceOutput = Annotated[list[str] | None, flags.output_option(FORMATS)]
PlacedObjects = Annotated[
    list[str] | None,
    flags.paths_argument(
        "Files, folders (their YAML and JSON files), - for standard input, or pods of the cluster.",
        "FILE|DIR|-|POD|KIND/NAME",
    ),
]


def place_command(
    paths: PlacedObjects = None,
    filename: flags.Filenames = None,
    policies: flags.PoliciesOrLive = None,
    cluster: flags.ReadCluster = None,
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = "",
    namespace: flags.PodNamespace = None,
    all_namespaces: flags.SelectedNamespaces = False,
    selector: flags.Selector = "",
    strategy: RankBy = ScoringStrategy.TAB,
    fill: FillBy = FillOrder.PACK,
    scheduler_config: flags.SchedulerConfig = None,
    now: flags.Now = "",
    output: PlaceOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.InputVerbose = False,
) -> None:
    """Show where a pod would be placed, and on which GPUs.

    The files contain pods, or workloads with pod templates, and the resource claims and claim templates that they name.
    A pod is first patched as the webhook would patch it. Each excluded node is shown with the reasons. For a pod of the
    cluster, a copy of that pod is placed. -l selects pods of the files, or without
    files copies of pods of the cluster.

    A live cluster is read and not changed. Scheduling constraints that are not evaluated are named, and do not change
    the exit code.

    Exit code: 0 all pods are admitted and all replicas fit at once, 1 some are not, 2 invalid input, 3 the cluster did
    not answer.
    """
    named = flags.join_paths(paths, filename) if selector else flags.require_paths(paths, filename)
    namespace = choose_namespace(namespace, all_namespaces)
    references, files = split_pods_and_files(paths, namespace, filename)
    targets, selection = parse_targets(output, FORMATS), select_objects(selector=selector)
    access = ClusterFlags(kubeconfig, context)
    cluster = str(choose_cluster(cluster))
    note_demo(cluster)
    placement, evaluation = read_placement_and_context(
        cluster,
        access,
        policies,
        policy_namespace,
        parse_now(now),
        scheduler_config,
        namespace=namespace or DEFAULT_NAMESPACE,
        verbose=verbose,
    )
    pods = read_pods(cluster, access, references) if named else read_selected_pods(cluster, access, namespace, selector)
    documents = list(reject_unplaceable([*read_objects(files), *map(recreated_source, pods)], evaluation))
    broken = report_broken_files(documents)
    sources = [each for each in documents if isinstance(each, SourceObject)]
    placement, evaluation = with_claims_of_files(sources, placement, evaluation)
    selection.note_none_of(sources)
    chosen = [each for each in sources if selection.selects(each.data)]
    results = list(place_pods(chosen, evaluation, placement, strategy, fill))
    if not results and not broken and (chosen or not sources):
        exit_with_error(f"{', '.join(named)}: no pods and no workloads here. Name a file with a Pod or a Deployment")
    paint = paint_for(no_color=no_color)
    reports = {
        **text_reports(lambda: [line for each in results for line in [*placement_lines(each, paint), ""]][:-1]),
        "name": lambda: join_lines(
            sanitize(f"node/{each.node_name(each.feasible[0].node)}") for each in results if each.feasible
        ),
        **document_reports(lambda: {"pods": [placement_document(each) for each in results]}),
    }
    write_reports(targets, reports)
    all_fit = all(min(each.fits, each.admitted) >= each.replicas and not each.denied for each in results)
    raise typer.Exit(EXIT_INVALID_INPUT if broken else EXIT_OK if all_fit else EXIT_FINDINGS)
