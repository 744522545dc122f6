"""One machine without a cluster: how its GPUs are joined, and which of them pods of each size would get."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.model.masks import bit_positions
from webhook.placement.nvlink import gpu_sets
from webhook.placement.plugin import best_effort_policy
from webhook.placement.topology import GpuTopology
from webhook.report.nodes import link_label, numa_cell, numa_node
from webhook.report.words import align_columns


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


def gpu_sets_by_size(topology: GpuTopology) -> list[GpuSet]:
    """What a pod for one, two, three … GPUs would get."""
    sets, ours = gpu_sets(topology), best_effort_policy(topology)
    every = (1 << topology.gpu_count) - 1
    found = []
    for count in range(1, topology.gpu_count + 1):
        best, given = sets.optimal_set(every, count) or 0, ours.predict_set(every, count) or 0
        found.append(GpuSet(tuple(bit_positions(best)), tuple(bit_positions(given)), given > 0 and sets.is_joined(given)))
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
            {"index": i, "numa": numa_node(topology, i), "links": [link_label(topology, i, j) for j in every]} for i in every
        ],
        "sets": [{"best": one.best, "given": one.allocated, "joined": one.nvlink_joined} for one in gpu_sets_by_size(topology)],
    }
