"""`place_command`: where a pod would go, on which GPUs, why not elsewhere, and what would have to end."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.admission import reject_unplaceable
from webhook.audit.object_files import SourceObject, read_objects
from webhook.audit.pod_placement import place_pods
from webhook.cli import flags
from webhook.cli.inputs import ClusterFlags, report_broken_files
from webhook.cli.output import (
    CLEAN,
    FINDINGS,
    WRONG_INPUT,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.cli.placement_inputs import (
    ClusterName,
    FillBy,
    PlaceOutput,
    PolicyOptions,
    RankBy,
    read_placement_and_context,
)
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder
from webhook.report.placement import PlacementResult, placement_document, placement_lines
from webhook.report.serialization import json_text, yaml_text
from webhook.well_known import SYSTEM_NAMESPACE

FORMATS = ("table", "json", "yaml")
PodFiles = Annotated[
    list[str], typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Pods, or workloads with pod templates.")
]


def place_command(
    file: PodFiles,
    policies: flags.PoliciesOrLive = None,
    cluster: ClusterName = "",
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = SYSTEM_NAMESPACE,
    policy: RankBy = ScoringStrategy.TAB,
    fill: FillBy = FillOrder.PACK,
    now: flags.Now = "",
    output: PlaceOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Say where a pod would go now, as the webhook shapes it: the node, the GPUs, and why not the others.

    With --cluster live the cluster is listed, and nothing in it is changed. What a scheduler asks of a pod and is not
    looked at here (affinity between pods, claims, volumes) is named, and changes no exit code.

    Exit code: 0 every pod is let in and finds a node, all its replicas at once too, 1 one does not, 2 a file, flag
    or policy is wrong, 3 the cluster did not answer.
    """
    wanted = parse_targets(output, FORMATS)
    reach, by = ClusterFlags(kubeconfig, context), PolicyOptions(policies, policy_namespace, now)
    placing, world = read_placement_and_context(cluster, reach, by, verbose=verbose)
    found = list(reject_unplaceable(read_objects(file), world))
    broken = report_broken_files(found)
    entries = [each for each in found if isinstance(each, SourceObject)]
    placed = list(place_pods(entries, world, placing, policy, fill))
    if not placed and not broken:
        exit_with_error(f"{', '.join(file)}: no pods and no workloads here. Name a file with a Pod or a Deployment")
    paint = paint_for(no_color=no_color)
    write_reports(
        wanted,
        {
            "table": lambda: join_lines([line for each in placed for line in [*placement_lines(each, paint), ""]][:-1]),
            "json": lambda: json_text({"pods": [placement_document(each) for each in placed]}),
            "yaml": lambda: yaml_text({"pods": [placement_document(each) for each in placed]}),
        },
    )
    raise typer.Exit(WRONG_INPUT if broken else exit_code_of_placements(placed))


def exit_code_of_placements(placed: list[PlacementResult]) -> int:
    """0 where every pod is let in and finds a node, and there is room for all of its replicas at once."""
    return CLEAN if all(each.fits >= each.replicas and not each.denied for each in placed) else FINDINGS
