"""`place`: where a pod would go, on which GPUs, why not elsewhere, and what would have to end."""

from __future__ import annotations

from typing import Annotated

import typer

from webhook.audit.manifests import Entry, objects_in
from webhook.audit.placing import place_all
from webhook.audit.shaping import placeable
from webhook.cli import flags
from webhook.cli.console import CLEAN, FINDINGS, WRONG_INPUT, paint_for, stop
from webhook.cli.faults import tell_faults
from webhook.cli.inputs import Reach
from webhook.cli.output import lines, targets, write
from webhook.cli.placing import By, ClusterName, FillBy, PlaceOutput, RankBy, placing_and_world
from webhook.placement.fragmentation.policies import Policy
from webhook.placement.nodes.ranking import Fill
from webhook.report.data import as_json, as_yaml
from webhook.report.placed import Placed, placed_document, placed_lines

FORMATS = ("table", "json", "yaml")
File = Annotated[
    list[str], typer.Option("-f", "--filename", metavar="FILE|DIR|-", help="Pods, or workloads with pod templates.")
]


def place(
    file: File,
    policies: flags.PoliciesOrLive = None,
    cluster: ClusterName = "",
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    policy_namespace: flags.PolicyNamespace = flags.OUR_NAMESPACE,
    policy: RankBy = Policy.TAB,
    fill: FillBy = Fill.PACK,
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
    wanted = targets(output, FORMATS)
    reach, by = Reach(kubeconfig, context), By(policies, policy_namespace, now)
    placing, world = placing_and_world(cluster, reach, by, verbose=verbose)
    found = list(placeable(objects_in(file), world))
    broken = tell_faults(found)
    entries = [each for each in found if isinstance(each, Entry)]
    placed = list(place_all(entries, world, placing, policy, fill))
    if not placed and not broken:
        stop(f"{', '.join(file)}: no pods and no workloads here. Name a file with a Pod or a Deployment")
    paint = paint_for(no_color=no_color)
    write(
        wanted,
        {
            "table": lambda: lines([line for each in placed for line in [*placed_lines(each, paint), ""]][:-1]),
            "json": lambda: as_json({"pods": [placed_document(each) for each in placed]}),
            "yaml": lambda: as_yaml({"pods": [placed_document(each) for each in placed]}),
        },
    )
    raise typer.Exit(WRONG_INPUT if broken else exit_code(placed))


def exit_code(placed: list[Placed]) -> int:
    """0 where every pod is let in and finds a node, and there is room for all of its replicas at once."""
    return CLEAN if all(each.fits >= each.replicas and not each.denied for each in placed) else FINDINGS
