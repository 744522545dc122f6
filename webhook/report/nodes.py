"""One node: its GPUs with their links and states, and who holds what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from webhook.placement.nodes.cluster import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence, GpuTopology
from webhook.report.capacities import UNKNOWN_CELL, NodeCapacity, node_capacity_document
from webhook.report.words import align_columns, sanitize


class NodePodGpus(msgspec.Struct, frozen=True):
    """What a pod holds on a node: units by GPU resource name."""

    namespace: str
    name: str
    gpus: Mapping[str, int]


def node_lines(cluster: SchedulingSnapshot, node: int, held: Sequence[NodePodGpus]) -> list[str]:
    """One node: each GPU with its state and links to the others, and who holds what.

    Args:
        cluster: The nodes.
        node: Which one.
        held: The pods of the node, for where it is not known which GPU each holds.
    """
    devices, topology = cluster.devices[node], cluster.devices[node].topology
    every = range(topology.gpu_count)
    head = ("", *(f"GPU{i}" for i in every), "NUMA", "STATE")
    rows = [
        (f"GPU{i}", *(link_label(topology, i, j) for j in every), numa_cell(topology, i), gpu_state(cluster, node, i)) for i in every
    ]
    told = {TopologyConfidence.MEASURED: "", TopologyConfidence.ASSUMED: "Links as this product usually has them."}
    note = told.get(topology.confidence, "Labels do not tell how these GPUs are linked.")
    cut = [f"GPU{card.index}  {_mig_instances_text(card.used, card.idle)}" for card in devices.mig_cards]
    return [*align_columns([head, *rows]), *cut, *([note] if note else []), *map(_pod_gpus_line, held)]


def _pod_gpus_line(held: NodePodGpus) -> str:
    said = ", ".join(f"{count} {name}" for name, count in held.gpus.items())
    return f"{sanitize(held.namespace)}/{sanitize(held.name)}  {said}"


def node_document(cluster: SchedulingSnapshot, node: int, stock: NodeCapacity | None, held: Sequence[NodePodGpus]) -> dict[str, Any]:
    """The same as plain data, with the node's stock; of one without GPUs there is none."""
    topology = cluster.devices[node].topology
    every = range(topology.gpu_count)
    return {
        "node": node_capacity_document(stock) if stock else {"name": cluster.fleet.nodes[node].name, "gpus": 0},
        "linksFrom": topology.confidence.name.lower(),
        "gpus": [
            {
                "index": i,
                "numa": numa_node(topology, i),
                "state": gpu_state(cluster, node, i),
                "links": [link_label(topology, i, j) for j in every],
            }
            for i in every
        ],
        "cards": [
            {"index": card.index, "used": _mig_instance_documents(card.used), "idle": _mig_instance_documents(card.idle)}
            for card in cluster.devices[node].mig_cards
        ],
        "pods": [{"namespace": each.namespace, "name": each.name, "gpus": dict(each.gpus)} for each in held],
    }


def _mig_instance_documents(instances: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"profile": one.profile, "start": one.start} for one in sorted(instances)]


def link_label(topology: GpuTopology, one: int, other: int) -> str:
    """One cell, as `nvidia-smi topo -m` writes it; "." where nothing is known."""
    if one == other:
        return "X"
    links, bus = topology.count_nvlinks(one, other), topology.pcie_paths[one][other]
    return f"NV{links}" if links else bus.name if bus else "."


def gpu_state(cluster: SchedulingSnapshot, node: int, gpu: int) -> str:
    """What a GPU is doing, as far as it is known."""
    devices = cluster.devices[node]
    holders = ", ".join(map(sanitize, devices.holders.get(gpu, ())))
    if devices.unhealthy >> gpu & 1:
        return f"{holders} (ill)" if holders else "ill"
    if holders:
        return holders
    if any(card.index == gpu for card in devices.mig_cards):
        return "cut, nobody holds an instance"
    if devices.free is None:
        return UNKNOWN_CELL
    if devices.withdrawn >> gpu & 1:
        return "not given out"
    return "free" if devices.free >> gpu & 1 else "in use"


def numa_node(topology: GpuTopology, gpu: int) -> int | None:
    """The NUMA node of a GPU; None where it is not known."""
    return topology.numa_nodes[gpu] if topology.numa_nodes[gpu] >= 0 else None


def numa_cell(topology: GpuTopology, gpu: int) -> str:
    """The same for people."""
    node = numa_node(topology, gpu)
    return "-" if node is None else str(node)


def _mig_instances_text(used: Iterable[Any], idle: Iterable[Any]) -> str:
    said = [
        f"{one.profile} at {one.start} {word}"
        for word, some in (("in use", used), ("idle", idle))
        for one in sorted(some)
    ]
    return ", ".join(said) or "uncut"
