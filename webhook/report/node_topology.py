"""One node: its GPUs with their links and states, and who holds what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from webhook.model.node_masks import bit_positions
from webhook.placement.best_effort_policy import best_effort_policy
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import GpuTopology, TopologyConfidence
from webhook.report.capacity import CAPACITY, UNKNOWN_CELL, NodeCapacity
from webhook.report.text import align_columns, sanitize


class GpuSet(msgspec.Struct, frozen=True):
    """So many of the GPUs of a machine that is free.

    Attributes:
        best: The set that serves this pod and the next ones best.
        given: The set that NVIDIA's device plugin gives; () where it fails.
        joined: Does NVLink join the GPUs that are given pair by pair? No where none are.
    """

    best: tuple[int, ...]
    allocated: tuple[int, ...]
    nvlink_joined: bool


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
        (f"GPU{i}", *(link_label(topology, i, j) for j in every), numa_cell(topology, i), gpu_state(cluster, node, i))
        for i in every
    ]
    told = {TopologyConfidence.MEASURED: "", TopologyConfidence.ASSUMED: "Links as this product usually has them."}
    note = told.get(topology.confidence, "Labels do not tell how these GPUs are linked.")
    cut = [f"GPU{card.index}  {_mig_instances_text(card.used, card.idle)}" for card in devices.mig_cards]
    return [*align_columns([head, *rows]), *cut, *([note] if note else []), *map(_pod_gpus_line, held)]


def _pod_gpus_line(held: NodePodGpus) -> str:
    said = ", ".join(f"{count} {name}" for name, count in held.gpus.items())
    return f"{sanitize(held.namespace)}/{sanitize(held.name)}  {said}"


def node_document(
    cluster: SchedulingSnapshot, node: int, stock: NodeCapacity | None, held: Sequence[NodePodGpus]
) -> dict[str, Any]:
    """The same as plain data, with the node's stock; of one without GPUs there is none."""
    topology = cluster.devices[node].topology
    every = range(topology.gpu_count)
    return {
        "node": CAPACITY.to_document(stock) if stock else {"name": cluster.fleet.nodes[node].name, "gpus": 0},
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
            {
                "index": card.index,
                "used": _mig_instance_documents(card.used),
                "idle": _mig_instance_documents(card.idle),
            }
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


def gpu_sets_by_size(topology: GpuTopology) -> list[GpuSet]:
    """What a pod for one, two, three … GPUs would get."""
    sets, ours = gpu_sets(topology), best_effort_policy(topology)
    every = (1 << topology.gpu_count) - 1
    found = []
    for count in range(1, topology.gpu_count + 1):
        best, given = sets.optimal_set(every, count) or 0, ours.predict_set(every, count) or 0
        found.append(
            GpuSet(tuple(bit_positions(best)), tuple(bit_positions(given)), given > 0 and sets.is_joined(given))
        )
    return found


def machine_topology_lines(topology: GpuTopology) -> list[str]:
    """The links of every GPU, then a row for each size of pod."""
    every = range(topology.gpu_count)
    head = ("", *(f"GPU{i}" for i in every), "NUMA")
    links = [(f"GPU{i}", *(link_label(topology, i, j) for j in every), numa_cell(topology, i)) for i in every]
    table = [("POD", "DEVICE-PLUGIN-GIVES", "JOINED", "BEST"), *map(_gpu_set_row, gpu_sets_by_size(topology))]
    return [*align_columns([head, *links]), "", *align_columns(table)]


def _gpu_set_row(one: GpuSet) -> tuple[str, ...]:
    count, best = len(one.best), "the same" if one.best == one.allocated else _gpu_set_cell(one.best)
    joined = "-" if count == 1 or not one.allocated else "yes" if one.nvlink_joined else "no"
    return str(count), _gpu_set_cell(one.allocated) or "it fails", joined, best


def _gpu_set_cell(gpus: tuple[int, ...]) -> str:
    return ",".join(map(str, gpus))


def machine_topology_document(topology: GpuTopology) -> dict[str, Any]:
    """The same as plain data."""
    every = range(topology.gpu_count)
    return {
        "gpus": [
            {"index": i, "numa": numa_node(topology, i), "links": [link_label(topology, i, j) for j in every]}
            for i in every
        ],
        "sets": [
            {"best": one.best, "given": one.allocated, "joined": one.nvlink_joined}
            for one in gpu_sets_by_size(topology)
        ],
    }
