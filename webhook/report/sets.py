"""One machine without a cluster: how its GPUs are joined, and which of them pods of each size would get."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.model.masks import bits
from webhook.placement.nvlink import gpu_sets
from webhook.placement.plugin import plugin
from webhook.placement.topology import Topology
from webhook.report.nodes import link, numa, numa_node
from webhook.report.words import columns


class GpuSet(msgspec.Struct, frozen=True):
    """So many of the GPUs of a machine that is free.

    Attributes:
        best: The set that serves this pod and the next ones best.
        given: The set that NVIDIA's device plugin gives; () where it fails.
        joined: Does NVLink join the GPUs that are given pair by pair? No where none are.
    """

    best: tuple[int, ...]
    given: tuple[int, ...]
    joined: bool


def sets_of(topology: Topology) -> list[GpuSet]:
    """What a pod for one, two, three … GPUs would get."""
    sets, ours = gpu_sets(topology), plugin(topology)
    every = (1 << topology.gpus) - 1
    found = []
    for count in range(1, topology.gpus + 1):
        best, given = sets.optimal(every, count) or 0, ours.predicted(every, count) or 0
        found.append(GpuSet(tuple(bits(best)), tuple(bits(given)), given > 0 and sets.joined(given)))
    return found


def machine_lines(topology: Topology) -> list[str]:
    """The links of every GPU, then a row for each size of pod."""
    every = range(topology.gpus)
    head = ("", *(f"GPU{i}" for i in every), "NUMA")
    links = [(f"GPU{i}", *(link(topology, i, j) for j in every), numa(topology, i)) for i in every]
    table = [("POD", "DEVICE-PLUGIN-GIVES", "JOINED", "BEST"), *map(_row, sets_of(topology))]
    return [*columns([head, *links]), "", *columns(table)]


def _row(one: GpuSet) -> tuple[str, ...]:
    count, best = len(one.best), "the same" if one.best == one.given else _list(one.best)
    joined = "-" if count == 1 or not one.given else "yes" if one.joined else "no"
    return str(count), _list(one.given) or "it fails", joined, best


def _list(gpus: tuple[int, ...]) -> str:
    return ",".join(map(str, gpus))


def machine_document(topology: Topology) -> dict[str, Any]:
    """The same as plain data."""
    every = range(topology.gpus)
    return {
        "gpus": [
            {"index": i, "numa": numa_node(topology, i), "links": [link(topology, i, j) for j in every]} for i in every
        ],
        "sets": [{"best": one.best, "given": one.given, "joined": one.joined} for one in sets_of(topology)],
    }
