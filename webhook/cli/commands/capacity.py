"""`capacity_command`: what GPUs are free, by node, NVLink island and MIG profile; one node in detail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from webhook.audit.object_files import read_content
from webhook.cache.placement_input import PlacementInput
from webhook.cli import flags
from webhook.cli.inputs import ClusterFlags
from webhook.cli.output import exit_with_error, join_lines, paint_for, parse_targets, write_reports
from webhook.cli.placement_inputs import CapacityOutput, ClusterName, read_placement_input
from webhook.errors import TopologyError
from webhook.model.gpu_resources import parse_gpu_resource
from webhook.model.pod_resources import effective_requests
from webhook.model.pods import Pod, pod_display_name
from webhook.model.quantity import NANO
from webhook.placement.topology import GpuTopology, parse_topology_matrix
from webhook.report.capacity import capacity_document, capacity_table, node_capacities
from webhook.report.node_topology import (
    NodePodGpus,
    gpu_state,
    machine_topology_document,
    machine_topology_lines,
    node_document,
    node_lines,
)
from webhook.report.serialization import json_text, yaml_text
from webhook.report.svg import node_links_svg
from webhook.report.text import sanitize

FORMATS = ("table", "wide", "json", "yaml", "svg")
NodeName = Annotated[
    str, typer.Argument(metavar="[NODE]", help="One node: its links, and who sits where.", show_default=False)
]

LinksFile = Annotated[
    str,
    typer.Option(
        "--links",
        metavar="FILE|-",
        help="In place of a cluster: what `nvidia-smi topo -m` prints on a machine. Which GPUs pods would get there.",
    ),
]
MAX_MATRIX_BYTES = 64 << 10
"""Bytes of what `nvidia-smi topo -m` prints; sixteen GPUs and as many NICs take four thousand."""


def capacity_command(
    node: NodeName = "",
    cluster: ClusterName = "",
    links: LinksFile = "",
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    output: CapacityOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.Verbose = False,
) -> None:
    """Show which GPUs are free: the total first, then a row a node.

    ISLAND is the largest set of free GPUs that NVLink joins pair by pair, MIG-FITS the largest MIG profile with
    room, SPLIT-UP the GPUs that are free but of no use to a pod like those that run here, on average. STATE tells of
    nodes that take no pods (cordoned, not ready, or their GPUs being changed): what nobody holds there is not free.

    With a node: its GPUs, their links and who holds them; -o svg draws them.

    With --cluster live nodes, pods and GPUNodes are listed, and nothing is changed. Nothing of ours has to run there.

    With --links no cluster is needed: nvidia-smi topo -m | rightslice capacity --links -

    Exit code: 0, 2 where a file or flag is wrong, or 3 where the cluster does not answer.
    """
    wanted = parse_targets(output, FORMATS)
    if links:
        if node or cluster:
            exit_with_error("--links: says all of one machine, so it stands without a node and without --cluster")
        write_reports(wanted, _machine_reports(_read_topology(links)))
        return
    placing = read_placement_input(cluster, ClusterFlags(kubeconfig, context), verbose=verbose)
    every = node_capacities(placing.cluster, placing.mix)
    paint = paint_for(no_color=no_color)
    if node:
        position = _node_position(placing, node)
        held = _pods_on_node(placing.pods, node)
        stock = next((stock for stock in every if stock.name == node), None)
        picture = join_lines(node_lines(placing.cluster, position, held))
        document = node_document(placing.cluster, position, stock, held)
        reports = {
            "table": lambda: picture,
            "wide": lambda: picture,
            "json": lambda: json_text(document),
            "yaml": lambda: yaml_text(document),
            "svg": lambda: _draw_node(placing, position),
        }
    elif any(target.form == "svg" for target in wanted):
        exit_with_error("-o svg: draws one node. Name it: rightslice capacity NODE -o svg=node.svg")
    else:
        reports = {
            "table": lambda: join_lines(capacity_table(every, paint)),
            "wide": lambda: join_lines(capacity_table(every, paint, wide=True)),
            "json": lambda: json_text(capacity_document(every)),
            "yaml": lambda: yaml_text(capacity_document(every)),
        }
    write_reports(wanted, reports)


def _read_topology(file: str) -> GpuTopology:
    """Stops the program where it cannot be read."""
    try:
        text = sys.stdin.buffer.read(MAX_MATRIX_BYTES) if file == "-" else read_content(file, MAX_MATRIX_BYTES)
        return parse_topology_matrix(text.decode(errors="replace"))
    except OSError as error:
        exit_with_error(f"--links {sanitize(file)}: cannot be read: {error.strerror}")
    except TopologyError as error:
        exit_with_error(f"--links {sanitize(file)}: {error}")


def _machine_reports(topology: GpuTopology) -> dict[str, Callable[[], str]]:
    """Each report on a machine of which all GPUs are free."""
    return {
        "table": lambda: join_lines(machine_topology_lines(topology)),
        "wide": lambda: join_lines(machine_topology_lines(topology)),
        "json": lambda: json_text(machine_topology_document(topology)),
        "yaml": lambda: yaml_text(machine_topology_document(topology)),
        "svg": lambda: node_links_svg("this machine", topology, ["free"] * topology.gpu_count),
    }


def _node_position(placing: PlacementInput, name: str) -> int:
    position = placing.cluster.fleet.by_name.get(name)
    if position is None:
        names = ", ".join(node.name for node in placing.cluster.fleet.nodes[:10])
        exit_with_error(f"{sanitize(name)}: no such node in this cluster. Some that are: {sanitize(names)}")
    return position


def _pods_on_node(pods: Sequence[Pod], node: str) -> list[NodePodGpus]:
    """The pods of a node that hold GPUs, and what they hold."""
    found = []
    for pod in pods:
        held = {name: amount // NANO for name, amount in effective_requests(pod).items() if parse_gpu_resource(name)}
        if pod.spec.node_name == node and held:
            found.append(NodePodGpus(pod.metadata.namespace or "default", pod_display_name(pod), held))
    return found


def _draw_node(placing: PlacementInput, node: int) -> str:
    cluster = placing.cluster
    topology = cluster.devices[node].topology
    states = [gpu_state(cluster, node, gpu) for gpu in range(topology.gpu_count)]
    return node_links_svg(cluster.fleet.nodes[node].name, topology, states)
