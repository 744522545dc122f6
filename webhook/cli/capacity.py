"""`capacity`: what GPUs are free, by node, NVLink island and MIG profile; one node in detail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from webhook.audit.files import content_of
from webhook.cache.placing import Placing
from webhook.cli import flags
from webhook.cli.console import paint_for, stop
from webhook.cli.inputs import Reach
from webhook.cli.output import lines, targets, write
from webhook.cli.placing import CapacityOutput, ClusterName, placing_in
from webhook.errors import TopologyError
from webhook.model.effective import effective_requests
from webhook.model.pods import Pod, name_of
from webhook.model.quantity import NANO
from webhook.model.resources import gpu_resource
from webhook.placement.matrices import read_matrix
from webhook.placement.topology import Topology
from webhook.report.capacities import capacity_document, capacity_table, stocks
from webhook.report.data import as_json, as_yaml
from webhook.report.nodes import Held, node_document, node_picture, state
from webhook.report.sets import machine_document, machine_lines
from webhook.report.svg import node_links
from webhook.report.words import shown

FORMATS = ("table", "wide", "json", "yaml", "svg")
NodeName = Annotated[
    str, typer.Argument(metavar="[NODE]", help="One node: its links, and who sits where.", show_default=False)
]

Links = Annotated[
    str,
    typer.Option(
        "--links",
        metavar="FILE|-",
        help="In place of a cluster: what `nvidia-smi topo -m` prints on a machine. Which GPUs pods would get there.",
    ),
]
MATRIX_MOST = 64 << 10
"""Bytes of what `nvidia-smi topo -m` prints; sixteen GPUs and as many NICs take four thousand."""


def capacity(
    node: NodeName = "",
    cluster: ClusterName = "",
    links: Links = "",
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
    wanted = targets(output, FORMATS)
    if links:
        if node or cluster:
            stop("--links: says all of one machine, so it stands without a node and without --cluster")
        write(wanted, _of_machine(_read_links(links)))
        return
    placing = placing_in(cluster, Reach(kubeconfig, context), verbose=verbose)
    every = stocks(placing.cluster, placing.mix)
    paint = paint_for(no_color=no_color)
    if node:
        position = _position(placing, node)
        held = _held(placing.pods, node)
        stock = next((stock for stock in every if stock.name == node), None)
        picture = lines(node_picture(placing.cluster, position, held))
        document = node_document(placing.cluster, position, stock, held)
        reports = {
            "table": lambda: picture,
            "wide": lambda: picture,
            "json": lambda: as_json(document),
            "yaml": lambda: as_yaml(document),
            "svg": lambda: _drawn(placing, position),
        }
    elif any(target.form == "svg" for target in wanted):
        stop("-o svg: draws one node. Name it: rightslice capacity NODE -o svg=node.svg")
    else:
        reports = {
            "table": lambda: lines(capacity_table(every, paint)),
            "wide": lambda: lines(capacity_table(every, paint, wide=True)),
            "json": lambda: as_json(capacity_document(every)),
            "yaml": lambda: as_yaml(capacity_document(every)),
        }
    write(wanted, reports)


def _read_links(file: str) -> Topology:
    """Stops the program where it cannot be read."""
    try:
        text = sys.stdin.buffer.read(MATRIX_MOST) if file == "-" else content_of(file, MATRIX_MOST)
        return read_matrix(text.decode(errors="replace"))
    except OSError as error:
        stop(f"--links {shown(file)}: cannot be read: {error.strerror}")
    except TopologyError as error:
        stop(f"--links {shown(file)}: {error}")


def _of_machine(topology: Topology) -> dict[str, Callable[[], str]]:
    """Each report on a machine of which all GPUs are free."""
    return {
        "table": lambda: lines(machine_lines(topology)),
        "wide": lambda: lines(machine_lines(topology)),
        "json": lambda: as_json(machine_document(topology)),
        "yaml": lambda: as_yaml(machine_document(topology)),
        "svg": lambda: node_links("this machine", topology, ["free"] * topology.gpus),
    }


def _position(placing: Placing, name: str) -> int:
    position = placing.cluster.fleet.by_name.get(name)
    if position is None:
        names = ", ".join(node.name for node in placing.cluster.fleet.nodes[:10])
        stop(f"{shown(name)}: no such node in this cluster. Some that are: {shown(names)}")
    return position


def _held(pods: Sequence[Pod], node: str) -> list[Held]:
    """The pods of a node that hold GPUs, and what they hold."""
    found = []
    for pod in pods:
        held = {name: amount // NANO for name, amount in effective_requests(pod).items() if gpu_resource(name)}
        if pod.spec.node_name == node and held:
            found.append(Held(pod.metadata.namespace or "default", name_of(pod), held))
    return found


def _drawn(placing: Placing, node: int) -> str:
    cluster = placing.cluster
    topology = cluster.devices[node].topology
    states = [state(cluster, node, gpu) for gpu in range(topology.gpus)]
    return node_links(cluster.fleet.nodes[node].name, topology, states)
