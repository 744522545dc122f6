"""Linking: nodes of one kind are judged once, and kinds that come and go are not kept for ever."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tests.placement.kube import BRIDGED, gpu_node, placing, report
from webhook.placement.devices import Devices
from webhook.placement.nodes.allotting import Turn
from webhook.placement.nodes.linking import KINDS_MOST, Linking
from webhook.placement.topology import Topology, assumed, switched

H100 = assumed("NVIDIA-H100-80GB-HBM3", 8)


def test_nodes_of_one_board_are_of_one_kind_whatever_domain_they_are_in() -> None:
    domains = [gpu_node(f"n{i}", 4, "NVIDIA-GB200", **{"nvidia.com__gpu.clique": f"d.{i}"}) for i in range(3)]
    agents = [report(f"n{i}", 4, BRIDGED, clique=f"d.{i}") for i in range(3)]
    for objects in (domains, [*domains, *agents]):
        assert len({each.topology for each in placing(*objects).cluster.devices}) == 1


def worn(number: int) -> Topology:
    """A board of four whose links are of a rate that no other has."""
    return replace(switched(4, 1, 4), rate=20_000 + number)


def test_kinds_that_no_node_has_any_more_are_forgotten_and_figures_stay_right() -> None:
    rest = [Devices(H100, free=0b1111), Devices(H100, spare=3)]
    linking = Linking([Devices(worn(0), free=0b1111), *rest])
    for number in range(1, 2 * KINDS_MOST):
        devices = [Devices(worn(number), free=0b0110), *rest]
        linking.set(0, devices[0])
        if number % 64 == 0 or number > 2 * KINDS_MOST - 4:
            fresh = Linking(devices)
            for turns in ((Turn(1),), (Turn(2),), (Turn(1, passed_on=True), Turn(2), Turn(2))):
                assert np.array_equal(linking.figures(turns), fresh.figures(turns))
                assert np.array_equal(linking.sets(turns), fresh.sets(turns))
    assert len(linking._topologies) <= KINDS_MOST + 1
