"""Topology domains of gangs: by the capacity for the rest, and by the pods that are there."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import Json, PodMaker, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import (
    BRIDGED,
    DGX1,
    gpu_node,
    gpu_node_report,
    placement_input,
    ranked_names,
    requirements_of,
    running_gpu_pod,
)
from tests.placement.test_ranking import PARTITIONED
from webhook.model.free_resources import FreeResources
from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.nodes.device_plugin import allocate_containers
from webhook.placement.nodes.filtering import filter_reasons
from webhook.placement.nodes.gangs import MAX_DOMAIN_LABELS, GangContext
from webhook.placement.nodes.ranking import NodeRanking
from webhook.placement.nodes.snapshot import SchedulingSnapshot

GB200 = "NVIDIA-GB200"


def nodes_of(domain: str, *free: int) -> list[Json]:
    """Return the nodes of a domain, each with four GPUs and some of them free; named d0, d1 …"""
    named = [(f"{domain}{i}", units) for i, units in enumerate(free)]
    return [
        item
        for name, units in named
        for item in (
            gpu_node(name, 4, GB200, **{"nvidia.com__gpu.clique": domain}),
            *([running_gpu_pod(f"on-{name}", name, count=4 - units)] if units < 4 else []),
        )
    ]


class Case(NamedTuple):
    domains: dict[str, tuple[int, ...]]
    gang: GangContext
    expected: str


FOUR = GangContext(4)
CASES = {
    "the domain that fits all of them": Case({"a": (4, 4), "b": (4, 4, 4, 4)}, FOUR, "b"),
    "the smallest of those": Case({"a": (4, 4, 4, 4, 4), "b": (4, 4, 4, 4)}, FOUR, "b"),
    "if none fits all, the one that fits most": Case({"a": (4,), "b": (4, 4, 4)}, FOUR, "b"),
    "the rest fits in the domain of some": Case(
        {"a": (4, 4), "b": (4, 4), "c": (4,)}, GangContext(4, placed={2: 2}), "b"
    ),
    "the rest fits elsewhere only": Case({"a": (4,), "b": (4, 4, 4)}, GangContext(4, placed={0: 1}), "b"),
    "the rest fits nowhere: the domain with most of them": Case(
        {"a": (4, 4), "b": (4,)}, GangContext(9, placed={2: 1}), "b"
    ),
    "unknown size: the most capacity": Case({"a": (4,), "b": (4, 4)}, GangContext(0), "b"),
    "unknown size, one already placed": Case({"a": (4,), "b": (4, 4)}, GangContext(0, placed={0: 1}), "a"),
    "waiting pods count": Case({"a": (4,), "b": (4, 4)}, GangContext(0, placed={0: 1}, waiting=1), "b"),
    "more pods placed than the declared size": Case({"a": (4,), "b": (4, 4)}, GangContext(1, placed={0: 2}), "a"),
    "a pod outside any domain attracts no others": Case({"": (4,), "b": (4,)}, GangContext(3, placed={0: 2}), "b"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_first_choice(case: Case) -> None:
    placement = placement_input(*(item for name, free in case.domains.items() for item in nodes_of(name, *free)))

    assert ranked_names(placement, make_pod().gpus(4), gang=case.gang)[0].startswith(case.expected)


def test_excluded_nodes_do_not_count_as_capacity_of_a_domain() -> None:
    tainted = [node | {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}} for node in nodes_of("a", 4, 4)]
    placement = placement_input(*nodes_of("a", 4)[:1], *tainted[1:], *nodes_of("b", 4, 4, 4))

    assert ranked_names(placement, make_pod().gpus(4), gang=GangContext(2)) == ["b0", "b1", "b2", "a0"]


def test_nodes_outside_the_request_count_as_capacity_of_a_domain() -> None:
    """With 100 nodes or more, the scheduler sends only a sample."""
    placement = placement_input(*nodes_of("a", 4, 4), *nodes_of("b", 4, 4, 4, 4))
    ranking = NodeRanking(placement.snapshot, mix=placement.mix)
    requirements = requirements_of(make_pod().gpus(4), placement.snapshot)
    among = ranking.pod_capacity(requirements) < 0
    among[[0, 2]] = True

    assert ranking.order(requirements, candidates=among, gang=FOUR).nodes.tolist() == [2, 0]


def test_gang_without_domain_labels_is_ranked_as_other_pods() -> None:
    placement = placement_input(gpu_node("a", 8), running_gpu_pod("x", "a", count=5), gpu_node("b", 8))
    pod = make_pod().gpus(2)

    assert ranked_names(placement, pod, gang=FOUR) == ranked_names(placement, pod)


def test_remaining_pods_get_nodes_in_the_domain_only_if_all_fit() -> None:
    placement = placement_input(*nodes_of("a", 4, 2), *nodes_of("b", 4, 4))
    ranking = NodeRanking(placement.snapshot, mix=placement.mix)
    requirements = requirements_of(make_pod().gpus(2), placement.snapshot)

    def places(gang: GangContext) -> list[str]:
        ranked = ranking.order(requirements, gang=gang)
        nodes = [int(ranked.nodes[0]), *ranking.nodes_for_gang(requirements, gang, ranked)]
        return sorted(placement.snapshot.fleet.nodes[node].name for node in nodes)

    assert places(GangContext(3)) == ["a0", "a0", "a1"]
    assert places(FOUR) == ["b0", "b0", "b1", "b1"]
    assert len(places(GangContext(5))) == len(places(GangContext(1))) == 1


def test_number_of_cached_labels_is_bounded() -> None:
    placement = placement_input(*nodes_of("a", 4))
    ranking = NodeRanking(placement.snapshot)
    requirements = requirements_of(make_pod().gpus(4), placement.snapshot)

    for number in range(2 * MAX_DOMAIN_LABELS):
        assert len(ranking.order(requirements, gang=GangContext(2, f"label-{number}")).nodes) == 1
    assert len(ranking._domains._by_label) <= MAX_DOMAIN_LABELS


TWO = {"nvidia.com/gpu": "2"}
PODS = (
    make_pod().gpus(1),
    make_pod().gpus(2).requests("cpu", "8").requests("memory", "64Gi"),
    make_pod().gpus(2).annotate("rightslice.dev/topology", "nvlink=required"),
    make_pod().gpus(1).annotate("rightslice.dev/topology", "nvlink=required").container("b", resources={"limits": TWO}),
    make_pod().requests("nvidia.com/mig-1g.10gb", "2").requests("nvidia.com/mig-3g.40gb", "1"),
    make_pod().requests("cpu", "4"),
)


@settings(max_examples=60)
@given(st.sampled_from(PODS), st.integers(0, 64), st.integers(0, 8), st.integers(0, 15))
def test_slots_equal_the_pods_that_fit_one_after_the_other(pod: PodMaker, cores: int, gpus: int, free: int) -> None:
    placement = placement_input(
        *(
            gpu_node("a"),
            gpu_node_report("a", 4, BRIDGED),
            gpu_node("b", 8, "Tesla-V100-SXM2-32GB"),
            gpu_node_report("b", 8, DGX1),
        ),
        *(mig_node("c"), gpu_node_report("c", 2, {}, mig_instances=PARTITIONED)),
    )
    cluster = placement.snapshot
    for node in range(3):
        node_free, devices = cluster.free[node], cluster.devices[node]
        units = {name: min(units, gpus) for name, units in node_free.gpus.items()}
        mask = None if devices.free is None else free & (1 << devices.topology.gpu_count) - 1
        cluster.set_node(node, FreeResources(cores * 1000, node_free.memory, units), replace(devices, free=mask))
    requirements = requirements_of(pod, cluster)

    assert NodeRanking(cluster).pod_capacity(requirements).tolist() == [
        _one_after_the_other(cluster, pod, node) for node in range(3)
    ]


def _one_after_the_other(cluster: SchedulingSnapshot, pod: PodMaker, node: int) -> int:
    requirements, count = requirements_of(pod, cluster), 0
    while not filter_reasons(cluster, requirements, node):
        devices = cluster.devices[node]
        got = (
            allocate_containers(devices.topology, devices.free, requirements.container_requests)
            if requirements.nvlink_required and devices.free
            else ()
        )
        cluster = cluster.with_pod(requirements, node, tuple(bit_positions(union_masks(got or ()))))
        count += 1
    return count
