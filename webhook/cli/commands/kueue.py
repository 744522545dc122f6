"""`kueue`: one budget for every form of GPU under Kueue."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from webhook.cli import flags
from webhook.cli.audit_inputs import read_files_snapshot
from webhook.cli.cluster_access import ClusterFlags, reject_access_flags
from webhook.cli.inputs import note_demo, read_cluster_view
from webhook.cli.output import EXIT_FINDINGS, exit_with_error, print_result
from webhook.model.fleet import Fleet
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.queues import KUEUE_API_VERSION
from webhook.report.serialization import yaml_text
from webhook.report.text import pluralize

kueue = typer.Typer(help="Print Kueue configuration for one budget of all GPUs.", no_args_is_help=True)


@kueue.callback()
def kueue_group() -> None:
    """Print Kueue configuration for one budget of all GPUs."""


BudgetResource = Annotated[
    str,
    typer.Option("--resource", metavar="NAME", help="The resource to charge, in thousandths of a whole GPU."),
]
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?\Z")


@kueue.command("config")
def print_kueue_config(
    called: typer.Context,
    paths: flags.ClusterPaths = None,
    filename: flags.ClusterFiles = None,
    cluster: flags.ReadCluster = None,
    resource: BudgetResource = "example.com/gpu-milli",
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
) -> None:
    """Print resource transformations for one budget of all GPUs.

    With them, Kueue charges whole GPUs, MIG slices and shares to one resource. A whole GPU counts as 1000, a slice or
    share as its fraction of 1000, rounded down, so that equal slices of one GPU fit into 1000. Add them to Kueue's
    Configuration, and cover the resource in ClusterQueues instead of the GPU resource names.
    `serve webhook --kueue-config` reads the same file.

    Exit code: 0 printed, 1 the cluster has no GPUs, 2 invalid input, 3 the cluster did not answer.
    """
    if not _RESOURCE.match(resource):
        exit_with_error(f"--resource: must be DOMAIN/NAME, found {resource!r}. Write example.com/gpu-milli")
    files, access = flags.join_paths(paths, filename), ClusterFlags(kubeconfig, context)
    cluster = flags.files_or_cluster(called, files, cluster)
    note_demo(cluster)
    if files:
        reject_access_flags(access)
    fleet = (read_files_snapshot(files).view if files else read_cluster_view(cluster, {}, access)).fleet
    if not fleet.resources():
        exit_with_error("--cluster: no node of the cluster advertises a GPU", EXIT_FINDINGS)
    print_result(f"# Add to the Configuration of Kueue (config.{KUEUE_API_VERSION}), and restart it:\n")
    print_result(yaml_text({"resources": {"transformations": transformations(fleet, resource)}}))
    print_result(f"# Then cover {resource} in ClusterQueues: 1000 is a whole GPU.\n")
    if nodes := fleet.partial_gpu_nodes.bit_count():
        on_nodes = pluralize(nodes, "node", "nodes")
        print_result(
            f"# On {on_nodes}, {WHOLE_GPU} is a slice or share. By its name, it is charged as a whole GPU:\n"
            "# give these nodes a flavor of their own, whose quota is 1000 for each slice or share.\n"
        )


def transformations(fleet: Fleet, resource: str) -> list[dict[str, Any]]:
    """Return a transformation into thousandths of a GPU for each GPU resource of a fleet."""
    return [
        {"input": name, "strategy": "Replace", "outputs": {resource: _round_down(fleet.unit_milli(name))}}
        for name in sorted(fleet.resources())
    ]


def _round_down(milli: int) -> int:
    """Return a weight that was rounded up, rounded down: seven slices of 143 would exceed their card.

    Weights that divide a card evenly are exact.
    """
    return milli if 1000 % milli == 0 else milli - 1
