"""The openb cluster and its pod lists from a folder; without one, a small generated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from webhook.cache.traces import read_trace_nodes, read_trace_pods
from webhook.placement.capacity import ClusterCapacity, EmptyNode, PodDemand

WHERE = "https://github.com/alibaba/clusterdata, cluster-trace-gpu-v2023/csv"
NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_"


class Traces(NamedTuple):
    """A cluster and the pod lists for it, by name."""

    capacity: ClusterCapacity
    lists: dict[str, list[PodDemand]]


def traces(folder: Path | None) -> Traces:
    """Read every list of a folder, gzipped or not; without a folder, make small ones."""
    if folder is None:
        return made()
    capacity = ClusterCapacity(read_trace_nodes(next(iter(sorted(folder.glob(f"{NODES}*"))))))
    files = sorted(folder.glob(f"{PODS}*.csv*"))
    return Traces(capacity, {file.name.removeprefix(PODS).split(".")[0]: read_trace_pods(file) for file in files})


def made(seed: int = 7) -> Traces:
    """Return forty nodes of three kinds, and a list of shares, whole GPUs and a few sets that requests all of them."""
    rng = np.random.default_rng(seed)
    machines = [EmptyNode(f"node-{i:02}", 96_000, 400 << 30, 8, "A100") for i in range(16)]
    machines += [EmptyNode(f"node-{i:02}", 64_000, 256 << 30, 2, "T4") for i in range(16, 34)]
    machines += [EmptyNode(f"node-{i:02}", 32_000, 128 << 30, 4, "V100") for i in range(34, 40)]
    capacity = ClusterCapacity(machines)
    kinds = [
        PodDemand(6000, 1, 810),
        PodDemand(4000, 1, 470),
        PodDemand(2000, 1, 190),
        PodDemand(10_000, 1, 1000),
        PodDemand(8000),
    ]
    kinds += [PodDemand(20_000, 2, 1000), PodDemand(80_000, 8, 1000, ("A100",)), PodDemand(8000, 1, 1000, ("T4",))]
    chances = np.array([0.2, 0.15, 0.1, 0.3, 0.12, 0.03, 0.02, 0.08])
    pods: list[PodDemand] = []
    while sum(need.total_milli for need in pods) < capacity.total_milli:
        pods.append(kinds[rng.choice(len(kinds), p=chances / chances.sum())])
    return Traces(capacity, {"made": pods})
