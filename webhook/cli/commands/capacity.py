"""`capacity`: show free GPUs by node, NVLink island and MIG profile, or one node in detail."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from webhook.audit.object_files import read_content
from webhook.cache.placement_input import PlacementInput
from webhook.cli import flags
from webhook.cli.cluster_access import ClusterFlags
from webhook.cli.inputs import note_demo
from webhook.cli.output import (
    ReportRenderer,
    RowFlags,
    document_reports,
    exit_with_error,
    join_lines,
    paint_for,
    parse_targets,
    write_reports,
)
from webhook.cli.placement_inputs import read_placement_input
from webhook.cli.references import split_arguments
from webhook.cli.selection import select_objects
from webhook.errors import TopologyError, read_problem
from webhook.model.dra.device_allocations import allocated_in_pools
from webhook.model.dra.pool_kinds import cards_on_node
from webhook.model.node_groups import groups_without_nodes
from webhook.placement.topology import GpuTopology, parse_topology_matrix
from webhook.report.capacity import (
    CAPACITY,
    CAPACITY_WIDE,
    NodeCapacity,
    capacity_document,
    capacity_notes,
    group_notes,
    node_capacities,
    total_capacity,
)
from webhook.report.charts import node_links_svg
from webhook.report.node_topology import (
    gpu_pods_by_node,
    gpu_state,
    listed_gpus,
    machine_topology_document,
    machine_topology_lines,
    node_document,
    node_lines,
)
from webhook.report.text import sanitize

FORMATS = ("table", "wide", "name", "json", "yaml", "svg")
CapacityOutput = Annotated[list[str] | None, flags.output_option(FORMATS[:-1], "with NODE or --links also svg")]
NodeOrFiles = Annotated[
    list[str] | None,
    flags.paths_argument("Show one node: its GPU links and pods. Files are the same as with -f.", "NODE|FILE|DIR|-"),
]
NodeSelector = Annotated[str, flags.selector_option("nodes")]
LinksFile = Annotated[
    str,
    typer.Option(
        "--links",
        metavar="FILE|-",
        help="Instead of a cluster: the output of `nvidia-smi topo -m`. Shows which GPUs pods would get there.",
    ),
]
MAX_MATRIX_BYTES = 64 << 10
"""Bytes of `nvidia-smi topo -m`; for sixteen GPUs and as many NICs it prints four thousand."""


def capacity_command(
    called: typer.Context,
    shown: NodeOrFiles = None,
    filename: flags.ClusterFiles = None,
    cluster: flags.ReadCluster = None,
    selector: NodeSelector = "",
    links: LinksFile = "",
    kubeconfig: flags.Kubeconfig = None,
    context: flags.Context = None,
    sort_by: flags.SortBy = "",
    no_headers: flags.NoHeaders = False,
    output: CapacityOutput = None,
    no_color: flags.NoColor = False,
    verbose: flags.InputVerbose = False,
) -> None:
    """Show which GPUs are free: the total, then a row per node.

    ISLAND is the largest set of free GPUs that are connected pairwise by NVLink. MIG-FITS is the largest MIG profile
    that fits. FRAGMENTED counts GPUs that are free but unusable by a typical pod here. STATE marks nodes that accept no
    pods (cordoned, not ready, or being reconfigured); their unallocated GPUs are not free.

    Node groups without nodes follow, if settings or Cluster API describe what a new node would have.

    With a node: its GPUs, their links and the pods that hold them; -o svg draws them.

    A live cluster is read and not changed; Rightslice does not have to be installed there.

    --links needs no cluster: nvidia-smi topo -m | rightslice capacity --links -

    Exit code: 0, 2 invalid input, 3 the cluster did not answer.
    """
    targets = parse_targets(output, FORMATS)
    nodes, files = split_arguments(shown, _full_name, filename)
    if len(nodes) > 1:
        exit_with_error(f"NODE: must be one node, found {sanitize(', '.join(nodes))}. To select several, write -l")
    node = "".join(nodes).removeprefix("node/")
    if (node or links) and (selector or sort_by or no_headers):
        one = "NODE" if node else "--links"
        exit_with_error(f"{one}: describes one machine, which has no rows. Leave out -l, --sort-by and --no-headers")
    if links:
        if node or files or flags.is_written(called, "cluster"):
            exit_with_error("--links: describes one machine. Leave out the node, the files and --cluster")
        write_reports(targets, _machine_reports(_read_topology(links)))
        return
    cluster = flags.files_or_cluster(called, files, cluster)
    note_demo(cluster)
    placement = read_placement_input(cluster, ClusterFlags(kubeconfig, context), files, verbose=verbose)
    selection = select_objects(selector=selector)
    chosen = {each.name for each in placement.snapshot.fleet.nodes if selection.selects_labels(each.labels)}
    every = node_capacities(placement.snapshot, placement.mix, placement.devices)
    capacities = [each for each in every if each.name in chosen]
    if selection.is_partial and not capacities:
        selection.note_nothing("nodes with GPUs")
    if node:
        write_reports(targets, _node_reports(placement, node, capacities))
        return
    if any(target.form == "svg" for target in targets):
        exit_with_error("-o svg: draws one node. Name it: rightslice capacity NODE -o svg=node.svg")
    without_nodes = groups_without_nodes(placement.snapshot.fleet, placement.group_sources)
    groups = [each for each in without_nodes if selection.selects_labels(each.new_node.metadata.labels)]
    rows, paint = RowFlags(sort_by, no_headers), paint_for(no_color=no_color)
    capacities = list(rows.sort(CAPACITY, capacities))
    for_people = rows.reports(
        CAPACITY,
        capacities,
        _node_name,
        paint,
        wide=CAPACITY_WIDE,
        totals=[total_capacity(capacities)],
        around=lambda lines: [*lines, *capacity_notes(capacities), *group_notes(groups)],
    )
    write_reports(targets, for_people | document_reports(lambda: capacity_document(capacities, groups)))


def _full_name(name: str) -> str:
    """Return the name of a node that is never taken for a file; "" for what can only be a file."""
    name = name.removeprefix("node/")
    return "" if "/" in name else f"node/{name}"


def _node_name(node: NodeCapacity) -> str:
    return f"node/{node.name}"


def _read_topology(file: str) -> GpuTopology:
    try:
        text = sys.stdin.buffer.read(MAX_MATRIX_BYTES) if file == "-" else read_content(file, MAX_MATRIX_BYTES)
        return parse_topology_matrix(text.decode(errors="replace"))
    except OSError as error:
        exit_with_error(f"--links {sanitize(file)}: {read_problem(error)}")
    except TopologyError as error:
        exit_with_error(f"--links {sanitize(file)}: {error}")


def _machine_reports(topology: GpuTopology) -> dict[str, ReportRenderer]:
    """Return the reports on a machine whose GPUs are all free."""
    table, document = join_lines(machine_topology_lines(topology)), machine_topology_document(topology)
    return {
        "table": lambda: table,
        "wide": lambda: table,
        "name": lambda: "",
        **document_reports(lambda: document),
        "svg": lambda: node_links_svg("this machine", topology, ["free"] * topology.gpu_count),
    }


def _node_reports(
    placement: PlacementInput, name: str, capacities: Sequence[NodeCapacity]
) -> dict[str, ReportRenderer]:
    cluster = placement.snapshot
    position = cluster.fleet.by_name.get(name)
    if position is None:
        names = ", ".join(node.name for node in cluster.fleet.nodes[:10])
        exit_with_error(f"{sanitize(name)}: no such node in this cluster. It has, for example: {sanitize(names)}")
    pods = gpu_pods_by_node(placement.pods).get(name, [])
    capacity = next((each for each in capacities if each.name == name), None)
    cards = cards_on_node(placement.devices, position)
    allocated = allocated_in_pools(placement.devices, {card.pool for card in cards})
    document = node_document(cluster, position, capacity, pods, cards, allocated)
    topology = cluster.devices[position].topology
    states = [gpu_state(cluster, position, gpu) for gpu in listed_gpus(cluster, position)]
    return {
        "table": lambda: join_lines(node_lines(cluster, position, pods, cards, allocated)),
        "wide": lambda: join_lines(node_lines(cluster, position, pods, cards, allocated, wide=True)),
        "name": lambda: f"node/{name}\n",
        **document_reports(lambda: document),
        "svg": lambda: node_links_svg(name, topology, states),
    }
