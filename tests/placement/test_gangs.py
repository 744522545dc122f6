"""Topology domains of gangs: by the capacity for the rest, and by the pods that are there."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import Json, PodMaker, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, DGX1, asks, gpu_node, order, placing, report, running
from tests.placement.test_ranking import CUT
from webhook.model.cluster_view import FreeResources
from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.nodes.device_plugin import allocate_containers
from webhook.placement.nodes.filtering import filter_reasons
from webhook.placement.nodes.gangs import MAX_DOMAIN_LABELS, GangContext
from webhook.placement.nodes.ranking import NodeRanking
from webhook.placement.nodes.snapshot import SchedulingSnapshot

GB200 = "NVIDIA-GB200"


def nodes_of(domain: str, *free: int) -> list[Json]:
    """Nodes of a domain, each with four GPUs of which so many are free; d0, d1 …"""
    named = [(f"{domain}{i}", units) for i, units in enumerate(free)]
    return [
        item
        for name, units in named
        for item in (
            gpu_node(name, 4, GB200, **{"nvidia.com__gpu.clique": domain}),
            *([running(f"on-{name}", name, count=4 - units)] if units < 4 else []),
        )
    ]


class Case(NamedTuple):
    domains: dict[str, tuple[int, ...]]
    company: GangContext
    want: str


FOUR = GangContext(4)
CASES = {
    "the domain that takes all of them": Case({"a": (4, 4), "b": (4, 4, 4, 4)}, FOUR, "b"),
    "the smallest of those": Case({"a": (4, 4, 4, 4, 4), "b": (4, 4, 4, 4)}, FOUR, "b"),
    "where none takes all, the one that takes most": Case({"a": (4,), "b": (4, 4, 4)}, FOUR, "b"),
    "the rest fits where some are": Case({"a": (4, 4), "b": (4, 4), "c": (4,)}, GangContext(4, placed={2: 2}), "b"),
    "the rest fits elsewhere only": Case({"a": (4,), "b": (4, 4, 4)}, GangContext(4, placed={0: 1}), "b"),
    "the rest fits nowhere: where most are": Case({"a": (4, 4), "b": (4,)}, GangContext(9, placed={2: 1}), "b"),
    "nobody says how many: the most room": Case({"a": (4,), "b": (4, 4)}, GangContext(0), "b"),
    "nobody says how many, and one is there": Case({"a": (4,), "b": (4, 4)}, GangContext(0, placed={0: 1}), "a"),
    "those that wait count": Case({"a": (4,), "b": (4, 4)}, GangContext(0, placed={0: 1}, waiting=1), "b"),
    "more are there than was said": Case({"a": (4,), "b": (4, 4)}, GangContext(1, placed={0: 2}), "a"),
    "who sits on no domain draws nobody": Case({"": (4,), "b": (4,)}, GangContext(3, placed={0: 2}), "b"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_first_choice(case: Case) -> None:
    on = placing(*(item for name, free in case.domains.items() for item in nodes_of(name, *free)))

    assert order(on, make_pod().gpus(4), gang=case.company)[0].startswith(case.want)


def test_excluded_nodes_do_not_count_as_capacity_of_a_domain() -> None:
    tainted = [node | {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}} for node in nodes_of("a", 4, 4)]
    on = placing(*nodes_of("a", 4)[:1], *tainted[1:], *nodes_of("b", 4, 4, 4))

    assert order(on, make_pod().gpus(4), gang=GangContext(2)) == ["b0", "b1", "b2", "a0"]


def test_nodes_outside_the_request_count_as_capacity_of_a_domain() -> None:
    """From 100 nodes on a scheduler asks about a sample."""
    on = placing(*nodes_of("a", 4, 4), *nodes_of("b", 4, 4, 4, 4))
    ranking = NodeRanking(on.cluster, mix=on.mix)
    wanted = asks(make_pod().gpus(4), on.cluster)
    among = ranking.pod_capacity(wanted) < 0
    among[[0, 2]] = True

    assert ranking.order(wanted, candidates=among, gang=FOUR).nodes.tolist() == [2, 0]


def test_gang_without_domain_labels_is_ranked_as_other_pods() -> None:
    on = placing(gpu_node("a", 8), running("x", "a", count=5), gpu_node("b", 8))
    pod = make_pod().gpus(2)

    assert order(on, pod, gang=FOUR) == order(on, pod)


def test_remaining_pods_get_nodes_in_the_domain_only_if_all_fit() -> None:
    on = placing(*nodes_of("a", 4, 2), *nodes_of("b", 4, 4))
    ranking = NodeRanking(on.cluster, mix=on.mix)
    wanted = asks(make_pod().gpus(2), on.cluster)

    def places(company: GangContext) -> list[str]:
        ranked = ranking.order(wanted, gang=company)
        nodes = [int(ranked.nodes[0]), *ranking.nodes_for_gang(wanted, company, ranked)]
        return sorted(on.cluster.fleet.nodes[node].name for node in nodes)

    assert places(GangContext(3)) == ["a0", "a0", "a1"]
    assert places(FOUR) == ["b0", "b0", "b1", "b1"]
    assert len(places(GangContext(5))) == len(places(GangContext(1))) == 1


def test_number_of_cached_labels_is_bounded() -> None:
    on = placing(*nodes_of("a", 4))
    ranking = NodeRanking(on.cluster)
    wanted = asks(make_pod().gpus(4), on.cluster)

    for number in range(2 * MAX_DOMAIN_LABELS):
        assert len(ranking.order(wanted, gang=GangContext(2, f"label-{number}")).nodes) == 1
    assert len(ranking._domains._by_label) <= MAX_DOMAIN_LABELS


TWO = {"nvidia.com/gpu": "2"}
PODS = (
    make_pod().gpus(1),
    make_pod().gpus(2).asks("cpu", "8").asks("memory", "64Gi"),
    make_pod().gpus(2).annotate("rightslice.dev/topology", "nvlink=required"),
    make_pod().gpus(1).annotate("rightslice.dev/topology", "nvlink=required").container("b", resources={"limits": TWO}),
    make_pod().asks("nvidia.com/mig-1g.10gb", "2").asks("nvidia.com/mig-3g.40gb", "1"),
    make_pod().asks("cpu", "4"),
)


@settings(max_examples=60)
@given(st.sampled_from(PODS), st.integers(0, 64), st.integers(0, 8), st.integers(0, 15))
def test_slots_equal_the_pods_that_fit_one_after_the_other(pod: PodMaker, cores: int, gpus: int, free: int) -> None:
    on = placing(
        *(gpu_node("a"), report("a", 4, BRIDGED), gpu_node("b", 8, "Tesla-V100-SXM2-32GB"), report("b", 8, DGX1)),
        *(mig_node("c"), report("c", 2, {}, cut=CUT)),
    )
    cluster = on.cluster
    for node in range(3):
        room, devices = cluster.free[node], cluster.devices[node]
        units = {name: min(units, gpus) for name, units in room.gpus.items()}
        mask = None if devices.free is None else free & (1 << devices.topology.gpu_count) - 1
        cluster.set_node(node, FreeResources(cores * 1000, room.memory, units), replace(devices, free=mask))
    wanted = asks(pod, cluster)

    assert NodeRanking(cluster).pod_capacity(wanted).tolist() == [
        _one_after_the_other(cluster, pod, node) for node in range(3)
    ]


def _one_after_the_other(cluster: SchedulingSnapshot, pod: PodMaker, node: int) -> int:
    wanted, count = asks(pod, cluster), 0
    while not filter_reasons(cluster, wanted, node):
        devices = cluster.devices[node]
        got = (
            allocate_containers(devices.topology, devices.free, wanted.container_requests)
            if wanted.nvlink_required and devices.free
            else ()
        )
        cluster = cluster.with_pod(wanted, node, tuple(bit_positions(union_masks(got or ()))))
        count += 1
    return count
