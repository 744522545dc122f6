"""GPU allocation per container, and `nvlink=required`: NVLink connects the GPUs of each container by itself."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_pod
from tests.example_cluster import mig_node
from tests.extender.harness import filter_nodes, scheduler_state
from tests.placement.clusters import (
    BRIDGED,
    DGX1,
    gpu_node,
    gpu_node_report,
    placement_input,
    ranked_nodes,
    requirements_of,
    running_gpu_pod,
)
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.placement.mig import MigCard, MigPlacement
from webhook.placement.nodes.device_plugin import (
    ContainerRequest,
    allocate_containers,
    can_ever_get_connected_gpus,
    count_held_gpus,
    gets_connected_gpus,
)
from webhook.placement.nodes.filtering import filter_reasons
from webhook.placement.nodes.ranking import NodeRanking
from webhook.placement.nvlink import gpu_mask, gpu_sets
from webhook.placement.topology import assumed_topology

V100 = "Tesla-V100-SXM2-32GB"
SHARED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}


CROSSED = {(0, 3): 2, (1, 2): 2}
"""Two bridges across the sockets, as four Quadro RTX 8000 have them."""

Pair = tuple[int, int]


def containers(*gpus: int, init: int = 0, sidecar: int = 0) -> PodMaker:
    """Return a pod that requires NVLink, with these GPU requests by container."""
    pod = make_pod("strict").annotate(TOPOLOGY_ANNOTATION, "nvlink=required").gpus(gpus[0])
    for number, count in enumerate(gpus[1:]):
        pod.container(f"c{number}", resources=limits(count))
    if init:
        pod.container("init", kind="initContainers", resources=limits(init))
    if sidecar:
        pod.container("sidecar", kind="initContainers", restartPolicy="Always", resources=limits(sidecar))
    return pod


def limits(count: int) -> Json:
    return {"limits": {"nvidia.com/gpu": str(count)}}


def pairs(*held: int) -> tuple[Json, ...]:
    """A node with two bridged pairs; other pods hold some of the GPUs."""
    report = {gpu: f"team/x{gpu}" for gpu in held}
    return gpu_node("n"), gpu_node_report("n", 4, BRIDGED, report), *(running_gpu_pod(f"x{gpu}", "n") for gpu in held)


def dgx(*free: int) -> tuple[Json, ...]:
    held = [gpu for gpu in range(8) if gpu not in free]
    report = {gpu: f"team/x{gpu}" for gpu in held}
    return (
        gpu_node("n", 8, V100),
        gpu_node_report("n", 8, DGX1, report),
        *(running_gpu_pod(f"x{gpu}", "n") for gpu in held),
    )


class Case(NamedTuple):
    """A pod, the only node, and the pod capacity of the node."""

    pod: PodMaker
    node: tuple[Json, ...]
    expected: int


CASES = {
    "two containers get a pair each": Case(containers(2, 2), pairs(), 1),
    "two containers, one without a pair": Case(containers(2, 2), dgx(0, 1, 2, 7), 0),
    "one container with two pairs": Case(containers(4), pairs(), 0),
    "one pair is free for two containers": Case(containers(2, 2), pairs(0), 0),
    "one GPU per container needs no links": Case(containers(1, 1), pairs(0, 2), 1),
    "a pair, and another GPU": Case(containers(2, 1), pairs(1), 1),
    "an init container passes its pair on": Case(containers(2, init=2), pairs(0), 1),
    "an init container's single GPU, its peer allocated": Case(containers(2, init=1), pairs(1), 0),
    "a sidecar keeps its pair": Case(containers(2, sidecar=2), pairs(), 1),
    "a sidecar keeps the only pair": Case(containers(2, sidecar=2), pairs(0), 0),
    "three are connected, but the plugin allocates others": Case(containers(3), dgx(0, 1, 2, 4, 5), 0),
    "three that the plugin allocates": Case(containers(3), dgx(0, 1, 2, 4), 1),
    "shares of cards": Case(containers(2), (gpu_node("n", 4, **SHARED), gpu_node_report("n", 4, BRIDGED)), 0),
    "no agent, and any choice is connected": Case(containers(4, 2), (gpu_node("n", 8, "NVIDIA-H100-80GB-HBM3"),), 1),
    "no agent, all are free": Case(containers(4, 4), (gpu_node("n", 8, V100),), 1),
    "no agent, and not every choice has two pairs": Case(
        containers(2, 2), (gpu_node("n", 8, V100), running_gpu_pod("x", "n", count=4)), 0
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pod_fits_where_each_container_gets_connected_gpus(case: Case) -> None:
    placement = placement_input(*case.node)
    requirements = requirements_of(case.pod, placement.snapshot)

    assert len(ranked_nodes(placement, case.pod)) == case.expected
    assert bool(filter_reasons(placement.snapshot, requirements, 0)) is not bool(case.expected)
    assert NodeRanking(placement.snapshot).pod_capacity(requirements).tolist() == [case.expected]
    assert len(filter_nodes(scheduler_state(*case.node), case.pod, "n")["NodeNames"] or ()) == case.expected


def test_largest_init_container_request_counts() -> None:
    pod = make_pod().gpus(2)
    for number in range(500):
        pod.container(f"i{number}", kind="initContainers", resources=limits(1 + number % 2))

    assert requirements_of(pod, placement_input(*pairs()).snapshot).container_requests == (
        ContainerRequest(1, passes_on_gpus=True),
        ContainerRequest(2, passes_on_gpus=True),
        ContainerRequest(2),
    )


def test_allocation_of_each_container() -> None:
    (best,) = ranked_nodes(placement_input(*pairs(0)), containers(1, 2))

    assert best.links is not None
    assert (best.links.gpus, best.links.nvlink_connected) == ((1, 2, 3), True)


REASONS = {
    "the plugin allocates others": (
        containers(3),
        dgx(0, 1, 2, 4, 5),
        "5 free, and the device plugin allocates 1, 2, 5, which NVLink does not connect",
    ),
    "too few are connected": (containers(3), pairs(), "4 free, no 3 of them connected by NVLink (GPUs 0, 1, 2, 3)"),
    "too few are connected for one of two containers": (
        containers(3, 1),
        pairs(),
        "4 free, no 3 of them connected by NVLink (GPUs 0, 1, 2, 3)",
    ),
    "a pair is connected, but the second container gets another": (
        containers(1, 2, init=2),
        pairs(),
        "4 free, and the device plugin allocates 1, 2 to the container with 2, which NVLink does not connect",
    ),
    "a pod holds more than it requests": (
        containers(2, 1),
        (gpu_node("n"), gpu_node_report("n", 4, BRIDGED, {2: "team/x", 3: "team/x"}), running_gpu_pod("x", "n")),
        "3 free by the pods' requests, 2 by the agent's report (GPUs 0, 1)",
    ),
    "unknown which are free": (
        containers(2),
        (gpu_node("n", 8, V100), running_gpu_pod("x", "n", count=6)),
        "2 free, unknown which, and NVLink does not connect every choice",
    ),
    "unknown which are free, and no choice is connected": (
        containers(6),
        (gpu_node("n", 8, V100), running_gpu_pod("x", "n", count=1)),
        "7 free, no 6 of them connected by NVLink",
    ),
}


@pytest.mark.parametrize(("pod", "node", "expected"), REASONS.values(), ids=REASONS)
def test_filter_reasons_of_nodes(pod: PodMaker, node: tuple[Json, ...], expected: str) -> None:
    placement = placement_input(*node)

    (reason,) = filter_reasons(placement.snapshot, requirements_of(pod, placement.snapshot), 0)

    assert reason.detail == expected


def test_eviction_helps_if_only_the_plugins_choice_is_in_the_way() -> None:
    """Shares are never connected, whatever is evicted."""
    shares = (gpu_node("shares", 4, **SHARED), gpu_node_report("shares", 4, BRIDGED))
    answer = filter_nodes(scheduler_state(*dgx(0, 1, 2, 4, 5), *shares), containers(3), "n", "shares")

    assert list(answer["FailedNodes"]) == ["n"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["shares"]


NEVER = {
    "the plugin breaks both pairs for one each": (containers(1, 1, 2), CROSSED),
    "the rest of the init container's pair is no pair": (containers(1, 2, init=2), BRIDGED),
    "more than installed": (containers(2, 2, 2), BRIDGED),
}


@pytest.mark.parametrize(("pod", "links"), NEVER.values(), ids=NEVER)
def test_eviction_does_not_help_if_no_choice_of_free_gpus_does(pod: PodMaker, links: dict[Pair, int]) -> None:
    answer = filter_nodes(scheduler_state(gpu_node("n"), gpu_node_report("n", 4, links)), pod, "n")

    assert (list(answer["FailedNodes"]), list(answer["FailedAndUnresolvableNodes"])) == ([], ["n"])


def test_eviction_helps_if_some_choice_of_free_gpus_does() -> None:
    """Not all: with the link of 0 and 1 down the plugin gives just these two of an idle board."""
    score_table = {pair: 18 for pair in combinations(range(8), 2) if pair != (0, 1)}
    answer = filter_nodes(
        scheduler_state(gpu_node("n", 8), gpu_node_report("n", 8, score_table, nvswitch=True)), containers(2), "n"
    )

    assert (list(answer["FailedNodes"]), list(answer["FailedAndUnresolvableNodes"])) == (["n"], [])


def test_too_many_choices_of_sixteen_gpus_count_as_resolvable() -> None:
    crossed = {(gpu, 15 - gpu): 1 for gpu in range(8)}
    topology = placement_input(gpu_node("n", 16), gpu_node_report("n", 16, crossed)).snapshot.devices[0].topology

    assert can_ever_get_connected_gpus(topology, (*[ContainerRequest(1)] * 8, ContainerRequest(2)))
    assert not can_ever_get_connected_gpus(topology, (*[ContainerRequest(1)] * 13, ContainerRequest(2)))


turns = st.lists(st.builds(ContainerRequest, st.integers(1, 4), st.booleans()), min_size=1, max_size=4).map(tuple)


@settings(max_examples=60)
@given(st.integers(0, 255), turns)
def test_pod_holds_the_gpus_that_its_containers_keep(free: int, some: tuple[ContainerRequest, ...]) -> None:
    topology = assumed_topology(V100, 8)
    sets = allocate_containers(topology, free, some)

    assert (sets is not None) == (count_held_gpus(some) <= free.bit_count())
    for turn, got in zip(some, sets or (), strict=False):
        assert got.bit_count() == turn.gpus
        assert got & ~free == 0
    if gets_connected_gpus(topology, free, some):
        assert can_ever_get_connected_gpus(topology, some)
        assert all(gpu_sets(topology).is_nvlink_connected(each) for each in sets or ())


@settings(max_examples=20)
@given(st.integers(0, 8), turns)
def test_guaranteed_links_hold_for_every_choice_of_free_gpus(spare: int, some: tuple[ContainerRequest, ...]) -> None:
    topology = assumed_topology(V100, 8)
    every = [gpu_mask(chosen) for chosen in combinations(range(8), spare)]

    assert gets_connected_gpus(topology, None, some, spare) == all(
        gets_connected_gpus(topology, free, some) for free in every
    )


def test_a_pod_that_its_agent_does_not_report_yet_gets_a_free_instance() -> None:
    report = gpu_node_report("mig", 1, {}, mig_instances={0: [("1g.10gb", 0, "team/a"), ("1g.10gb", 4, "")]})
    pods = [running_gpu_pod(name, "mig", "nvidia.com/mig-1g.10gb") for name in ("a", "b")]

    [devices] = placement_input(mig_node(), report, *pods).snapshot.devices

    assert devices.instance_holders == {
        (0, MigPlacement("1g.10gb", 0)): "team/a",
        (0, MigPlacement("1g.10gb", 4)): "team/b",
    }
    assert devices.mig_cards == (MigCard(0, frozenset(each for _, each in devices.instance_holders), frozenset()),)
