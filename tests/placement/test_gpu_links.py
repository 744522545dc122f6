"""Link statistics: nodes of one kind share them, and unused kinds are dropped."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report, placement_input
from webhook.placement.devices import NodeDevices
from webhook.placement.nodes.device_plugin import ContainerRequest
from webhook.placement.nodes.gpu_links import MAX_TOPOLOGIES, LinkTable
from webhook.placement.topology import GpuTopology, assumed_topology, nvswitch_topology

H100 = assumed_topology("NVIDIA-H100-80GB-HBM3", 8)


def test_equal_boards_in_different_domains_are_one_kind() -> None:
    domains = [gpu_node(f"n{i}", 4, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": f"d.{i}"}) for i in range(3)]
    agents = [gpu_node_report(f"n{i}", 4, BRIDGED, clique=f"d.{i}") for i in range(3)]
    for objects in (domains, [*domains, *agents]):
        assert len({each.topology for each in placement_input(*objects).snapshot.devices}) == 1


def unique_topology(number: int) -> GpuTopology:
    """Return a board of four GPUs with a unique link rate."""
    return replace(nvswitch_topology(4, 1, 4), nvlink_rate=20_000 + number)


def test_unused_kinds_are_dropped_and_figures_stay_correct() -> None:
    rest = [NodeDevices(H100, free=0b1111), NodeDevices(H100, free_count=3)]
    link_table = LinkTable([NodeDevices(unique_topology(0), free=0b1111), *rest])
    for number in range(1, 2 * MAX_TOPOLOGIES):
        devices = [NodeDevices(unique_topology(number), free=0b0110), *rest]
        link_table.set(0, devices[0])
        if number % 64 == 0 or number > 2 * MAX_TOPOLOGIES - 4:
            fresh = LinkTable(devices)
            for turns in (
                (ContainerRequest(1),),
                (ContainerRequest(2),),
                (ContainerRequest(1, passes_on_gpus=True), ContainerRequest(2), ContainerRequest(2)),
            ):
                assert np.array_equal(link_table.link_stats(turns), fresh.link_stats(turns))
                assert np.array_equal(link_table.connected_pod_counts(turns), fresh.connected_pod_counts(turns))
    assert len(link_table._topologies.keys) <= MAX_TOPOLOGIES + 1


def test_a_fleet_without_nodes_has_statistics_of_no_node() -> None:
    link_table, requests = LinkTable([]), (ContainerRequest(2),)
    assert len(link_table.link_stats(requests).nvlink_connected) == 0
    assert link_table.connected_pod_counts(requests).shape == (0,)
