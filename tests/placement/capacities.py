"""Clusters, free capacity and pods for tests of placement."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from webhook.placement.capacity import CapacityRows, ClusterCapacity, EmptyNode, FreeCapacityArrays, PodDemand

SHARE = PodDemand(1000, 1, 500)
SMALL = PodDemand(1000, 1, 100)
ONE = PodDemand(4000, 1, 1000)
PAIR = PodDemand(8000, 2, 1000)
EIGHT = PodDemand(32_000, 8, 1000)
NO_GPU = PodDemand(2000)


def empty_node(
    name: str = "n", gpus: int = 8, cores: int = 64, model: str = "A100", memory: int = 500 << 30
) -> EmptyNode:
    """Return an empty node."""
    return EmptyNode(name, cores * 1000, memory, gpus, model)


def cluster_capacity(*machines: EmptyNode) -> ClusterCapacity:
    """Return the capacity of some nodes; of one node with eight GPUs if none is given."""
    return ClusterCapacity(machines or (empty_node(),))


def capacity_rows(gpus: list[int], cores: int = 64, node: int = 0) -> CapacityRows:
    """Return the free capacity of one node."""
    return CapacityRows(np.array([node]), np.array([cores * 1000]), np.array([gpus]))


def free_capacity(of: ClusterCapacity, gpus: list[list[int]], cores: list[int] | None = None) -> FreeCapacityArrays:
    """Return the free capacity of a cluster."""
    free = FreeCapacityArrays(of)
    free.gpus[:] = gpus
    free.cpu[:] = [1000 * each for each in cores] if cores else free.cpu
    return free


pod_demands = st.one_of(
    st.builds(PodDemand, st.integers(0, 40).map(lambda c: c * 500)),
    st.builds(
        PodDemand,
        st.integers(0, 40).map(lambda c: c * 500),
        st.just(1),
        st.integers(1, 100).map(lambda m: m * 10),
        st.sampled_from([(), ("A100",), ("T4",), ("A100", "T4")]),
        st.sampled_from([0, 1000, 400_000]),
    ),
    st.builds(PodDemand, st.integers(0, 40).map(lambda c: c * 500), st.integers(2, 8), st.sampled_from([1000, 300])),
)
"""Pods without GPUs, with a share or a GPU, and with several."""

cluster_capacities = st.lists(
    st.builds(
        empty_node,
        name=st.just("n"),
        gpus=st.integers(0, 8),
        cores=st.integers(0, 64),
        model=st.sampled_from(["A100", "T4"]),
    ),
    min_size=1,
    max_size=6,
).map(ClusterCapacity)
