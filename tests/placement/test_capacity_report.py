"""Capacity of a cluster: allocated, free, fragmented and unschedulable GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, make_node, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import BRIDGED, GPU, ailing, gpu_node, placing, report, running, shared_node
from webhook.placement.capacity import PodDemand
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix
from webhook.report.capacity import NodeCapacity, capacity_table, node_capacities, total_capacity
from webhook.report.node_topology import node_document
from webhook.report.utilization import ClusterUtilization, compute_utilization

H100 = "NVIDIA-H100-80GB-HBM3"
SMALL = "nvidia.com/mig-1g.10gb"


def node(name: str = "n", gpus: int = 8, pods: int = 110, **spec: Any) -> Json:
    data = gpu_node(name, gpus, H100)
    data["status"]["allocatable"]["pods"] = str(pods)
    return data | {"spec": spec}


def plain(count: int, where: str = "n") -> list[Json]:
    """Pods without GPUs."""
    return [make_pod(f"web-{i}").asks("cpu", "100m").spec(nodeName=where).build() for i in range(count)]


ONE = running("one", "n", cpu="100m")
SLICES = [running(f"slice-{i}", "cut", SMALL, cpu="100m") for i in range(9)]
CARD = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
LARGE = "nvidia.com/mig-3g.40gb"


def card(*cut: tuple[str, int, str], **units: int) -> list[Json]:
    """A node with one card in MIG mode, cut so, and what its agent says of it."""
    return [make_node("cut", CARD | {"nvidia.com/gpu.count": "1"}, **units), report("cut", 1, {}, cut={0: cut})]


NOT_READY = {"status": node()["status"] | {"conditions": [{"type": "Ready", "status": "False"}]}}

FOUND: dict[str, tuple[list[Json], tuple[int, int, int, int]]] = {
    "one pod with a GPU, and nobody else": ([node(), ONE], (1000, 7000, 0, 0)),
    "pods without GPUs beside it": ([node(), ONE, *plain(30)], (1000, 7000, 0, 0)),
    "pods without GPUs on another node": ([node(), node("cpu", 0), ONE, *plain(30, "cpu")], (1000, 7000, 0, 0)),
    "pods with MIG instances on another node": (
        [node(), mig_node("cut", small=9), ONE, *SLICES],
        (1000 + 9 * 143, 14_000, 0, 0),
    ),
    "nobody asks for GPUs": ([node(), *plain(3)], (0, 8000, 0, 0)),
    "nobody is there": ([node()], (0, 8000, 0, 0)),
    "pods of three GPUs, and two are left": (
        [node(), *(running(f"p{i}", "n", count=3, cpu="100m") for i in range(2)), *plain(5)],
        (6000, 2000, 2000, 0),
    ),
    "as many pods as the node takes, none with GPUs": ([node(pods=4), *plain(4)], (0, 0, 0, 8000)),
    "as many pods as the node takes, each with one GPU": (
        [node(pods=2), running("a", "n"), running("b", "n")],
        (2000, 0, 0, 6000),
    ),
    "as many pods as the node takes, with all its GPUs": ([node(pods=1), running("a", "n", count=8)], (8000, 0, 0, 0)),
    "a cordoned node that nobody uses": (
        [node(), node("shut", unschedulable=True), running("a", "n", count=8)],
        (8000, 0, 0, 8000),
    ),
    "a card in MIG mode that is not cut yet": (card(**{GPU: 0}), (0, 1000, 0, 0)),
    "half a card is held, and a part of the rest is cut": (
        [*card(("3g.40gb", 0, "team/a"), ("1g.10gb", 4, ""), **{LARGE: 1, SMALL: 1}), running("a", "cut", LARGE)],
        (500, 500, 0, 0),
    ),
    "a card that takes no more cuts": (
        card(("3g.40gb", 0, ""), *(("1g.10gb", start, "") for start in (4, 5, 6)), **{LARGE: 1, SMALL: 3}),
        (0, 500 + 3 * 143, 0, 0),
    ),
    "shares of one card, of which a pod holds two": (
        [shared_node(), running("a", "n", "nvidia.com/gpu.shared", 2)],
        (500, 500, 0, 0),
    ),
    "shares of one card, of which a pod holds three": (
        [shared_node(), running("a", "n", "nvidia.com/gpu.shared", 3)],
        (750, 250, 250, 0),
    ),
    "a node that is not ready, with two GPUs held": (
        [node() | NOT_READY, running("a", "n", count=2)],
        (2000, 0, 0, 6000),
    ),
}


@pytest.mark.parametrize(("objects", "amounts"), FOUND.values(), ids=FOUND)
def test_allocated_free_fragmented_and_unschedulable(objects: list[Json], amounts: tuple[int, int, int, int]) -> None:
    found = total_capacity(of(*objects))
    assert (found.allocated_milli, found.free_milli, found.fragmented_milli, found.unschedulable_milli) == amounts


@pytest.mark.parametrize(("objects", "amounts"), FOUND.values(), ids=FOUND)
def test_audit_figures_equal_those_of_capacity(objects: list[Json], amounts: tuple[int, int, int, int]) -> None:
    held, free, lost, closed = amounts
    found = head(*objects)
    assert (found.allocated.milli, found.usable.milli, found.fragmented.milli, found.unschedulable.milli) == (
        *(held, free - lost, lost, closed),
    )
    assert found.scheduling_efficiency == round(1000 * (held + free - lost) / sum((held, free, closed)))
    assert found.waste.milli == lost


def of(*objects: Json) -> list[NodeCapacity]:
    on = placing(*objects)
    return node_capacities(on.cluster, on.mix)


def head(*objects: Json) -> ClusterUtilization:
    return compute_utilization(of(*objects), [])


def test_node_at_its_pod_limit() -> None:
    [full] = of(node(pods=4), *plain(4))
    assert not full.schedulable
    assert (full.largest_island, full.mig_fits) == (0, ())


def test_ranking_mix_includes_all_pods() -> None:
    assert placing(node(), ONE, *plain(3)).mix == WorkloadMix({PodDemand(100, 1, 1000): 1.0, PodDemand(100): 3.0})
    assert placing(node(), *plain(3)).mix == FLAT_MIX


def test_cluster_without_gpus_has_no_unknown_ones() -> None:
    assert total_capacity(()).largest_island == 0


NOTES: dict[str, tuple[list[Json], int | None, list[str]]] = {
    "an ill GPU that is counted as free": (
        [gpu_node("n"), ailing(report("n", 4, BRIDGED), 0, 3)],
        1,
        ["n: unhealthy GPUs that count as free: 0, 3"],
    ),
    "an ill GPU that is counted no more": ([gpu_node("n", 3), ailing(report("n", 4, BRIDGED), 0)], 2, []),
    "more are reported than the Node has": (
        [gpu_node("n", 3), report("n", 4, BRIDGED)],
        None,
        ["n: it is unknown which of its GPUs are free: its agent reports more free GPUs than the Node has"],
    ),
}


@pytest.mark.parametrize(("objects", "island", "notes"), NOTES.values(), ids=NOTES)
def test_islands_exclude_unhealthy_gpus(objects: list[Json], island: int | None, notes: list[str]) -> None:
    (stock,) = found = of(*objects)

    assert stock.largest_island == island
    assert capacity_table(found)[3:] == notes


STATES: dict[str, tuple[list[Json], list[str]]] = {
    "an ill GPU that nobody holds, and one that somebody does": (
        [gpu_node("n"), ailing(report("n", 4, BRIDGED, {1: "team/a"}), 0, 1), running("a", "n")],
        ["unhealthy", "team/a (unhealthy)", "free", "free"],
    ),
    "one that the Node counts no more": (
        [gpu_node("n", 3), ailing(report("n", 4, BRIDGED), 0, conditions=["XID 94"])],
        ["not advertised", "free", "free", "free"],
    ),
    "more are reported than the Node has": (
        [gpu_node("n", 3), report("n", 4, BRIDGED, {2: "team/a"}), running("a", "n")],
        ["?", "?", "team/a", "?"],
    ),
    "a pod that came holds an instance where every card is cut alike": (
        [
            make_node("n", CARD | {"nvidia.com/mig.strategy": "single"}, **{GPU: 2}),
            report("n", 1, {}, cut={0: [("3g.40gb", 0, ""), ("3g.40gb", 4, "")]}),
            running("a", "n"),
        ],
        ["team/a"],
    ),
}


@pytest.mark.parametrize(("objects", "states"), STATES.values(), ids=STATES)
def test_node_picture(objects: list[Json], states: list[str]) -> None:
    on = placing(*objects)

    assert [gpu["state"] for gpu in node_document(on.cluster, 0, None, [])["gpus"]] == states
