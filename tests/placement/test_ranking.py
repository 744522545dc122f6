"""A ranking that was updated equals a new one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import Json, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, DGX1, gpu_node, gpu_node_report, placement_input, requirements_of
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.free_resources import FreeResources
from webhook.placement.devices import NodeDevices
from webhook.placement.mig import MigCard, MigPlacement
from webhook.placement.nodes.ranking import NodeRanking
from webhook.placement.nodes.score_table import NodeStates, StateStats
from webhook.placement.nodes.snapshot import SchedulingSnapshot

PARTITIONED = {0: [("1g.10gb", 0, ""), ("1g.10gb", 1, ""), ("3g.40gb", 4, "")], 1: []}
NODES: tuple[Json, ...] = (
    gpu_node("a"), gpu_node_report("a", 4, BRIDGED), gpu_node("b"), gpu_node_report("b", 4, BRIDGED),
    gpu_node("c", 8, "Tesla-V100-SXM2-32GB"), gpu_node_report("c", 8, DGX1), gpu_node("d", 8, "NVIDIA-H100-80GB-HBM3"),
    mig_node("e"), gpu_node_report("e", 2, {}, mig_instances=PARTITIONED), mig_node("f"),
)  # fmt: skip

PODS = [
    make_pod().gpus(1),
    make_pod().gpus(2).requests("cpu", "8"),
    make_pod().gpus(4),
    make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required"),
    make_pod()
    .gpus(2)
    .annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    .container("b", resources={"limits": {"nvidia.com/gpu": "2"}}),
    make_pod().requests("nvidia.com/mig-1g.10gb", "1"),
    make_pod().requests("cpu", "4"),
]

Step = tuple[int, int, int, int | None, bool]
"""A node, its free cores, units and GPUs, and whether it is at its pod limit."""

changes = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 64), st.integers(0, 8), st.none() | st.integers(0, 255), st.booleans()),
    max_size=12,
)


def changed_node(
    cluster: SchedulingSnapshot, node: int, cores: int, gpus: int, free: int | None, full: bool
) -> tuple[FreeResources, NodeDevices]:
    """Return other free resources and GPUs of a node."""
    devices, node_free = cluster.devices[node], cluster.free[node]
    mask = free if free is None else free & (1 << devices.topology.gpu_count) - 1
    cards = tuple(
        MigCard(card.index, frozenset({MigPlacement("1g.10gb", gpus % 7)}), card.idle) for card in devices.mig_cards
    )
    units = {name: min(gpus, most) for name, most in cluster.fleet.nodes[node].gpus.items()}
    return FreeResources(cores * 1000, node_free.memory, units, full), replace(devices, free=mask, mig_cards=cards)


@pytest.mark.no_cover
@settings(max_examples=60)
@given(changes)
def test_updated_ranking_equals_a_new_one(
    steps: list[tuple[int, int, int, int | None, bool]],
) -> None:
    placement = placement_input(*NODES)
    live = NodeRanking(placement.snapshot, mix=placement.mix)
    requirements = [requirements_of(pod, placement.snapshot) for pod in PODS]
    for expected in requirements:
        live.order(expected)
    for node, *step in steps:
        live.set_nodes({node: changed_node(placement.snapshot, node, *step)})  # type: ignore[arg-type] # the parts of a step

    fresh = NodeRanking(placement.snapshot, mix=placement.mix)
    for expected in requirements:
        assert live.rank(expected) == fresh.rank(expected)


@given(st.lists(st.sampled_from("abcd"), min_size=1), st.lists(st.sampled_from("abcd")))
def test_figures_are_computed_once_per_state(first: list[str], later: list[str]) -> None:
    computed: list[str] = []

    def compute(key: str) -> tuple[float, ...]:
        computed.append(key)
        return (float(ord(key)),)

    states = NodeStates(first)
    stats = StateStats(states, compute)
    for place, key in enumerate(later):
        stats.by_node()
        states.set(place % len(first), key)
        first[place % len(first)] = key

    assert np.array_equal(stats.by_node()[:, 0], [ord(key) for key in first])
    assert len(computed) == len(set(computed))


def test_unused_states_are_dropped() -> None:
    states = NodeStates([0, 0])
    stats = StateStats(states, lambda key: (float(key),))
    for key in range(40_000):
        states.set(1, key)

    assert stats.by_node().tolist() == [[0.0], [39_999.0]]
    assert len(states.keys) < 20_000
