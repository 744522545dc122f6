"""Simulated pods that cannot be placed."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.placement.clusters import GPU, gpu_node, placement_input, requirements_of, running_gpu_pod, shared_node
from webhook.audit.simulation import ArrivingPod, simulate_pods
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.ranking import FillOrder

SLICE = "nvidia.com/mig-1g.10gb"
MIXED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
H100, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
FULL = "Insufficient nvidia.com/gpu"


def tainted(node: Json) -> Json:
    return {**node, "spec": {"taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}}


def pod_for_h100(gpus: int = 4) -> PodMaker:
    """Return a pod that requires an H100."""
    return make_pod().gpus(gpus).spec(nodeSelector={"nvidia.com/gpu.product": H100})


OTHERS = [gpu_node(f"l4-{i}", product=L4) for i in range(5)]
CASES = {
    "suitable nodes are full, and the selector excludes most others": (
        [*OTHERS, gpu_node("h100", product=H100)],
        pod_for_h100(),
        FULL,
    ),
    "the selector excludes every node": (OTHERS, pod_for_h100(), SELECTOR),
    "the one node that its selectors allow has no GPUs": (
        [*OTHERS, make_node("cpu")],
        make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "cpu"}),
        FULL,
    ),
    "no node admits it, and one excludes it by a taint only": (
        [*OTHERS, tainted(gpu_node("h100", 8, product=H100))],
        pod_for_h100(5),
        "node(s) had untolerated taint {team: x}",
    ),
    "the only node that admits it is full, and all others are tainted": (
        [*(tainted(node) for node in OTHERS), gpu_node("free", product=L4)],
        make_pod().gpus(4),
        FULL,
    ),
}


@pytest.mark.parametrize(("nodes", "pod", "reason"), CASES.values(), ids=CASES)
def test_unplaced_pod_has_the_reason_of_the_closest_nodes(nodes: list[Json], pod: PodMaker, reason: str) -> None:
    cluster = placement_input(*nodes)
    coming = [ArrivingPod(requirements_of(pod, cluster.snapshot))] * 3

    *_, last = simulate_pods(cluster, coming, ScoringStrategy.TAB, FillOrder.PACK)

    assert set(last.result().reasons) == {reason}


def test_pods_are_placed_until_the_shares_are_used_up() -> None:
    cluster = placement_input(shared_node())
    coming = [ArrivingPod(requirements_of(make_pod().requests(f"{GPU}.shared", "2"), cluster.snapshot))] * 3

    *_, last = simulate_pods(cluster, coming, ScoringStrategy.TAB, FillOrder.PACK)

    result = last.result()
    assert (result.steps[-1].allocated, result.steps[-1].placed) == (1000, 2)
    assert result.reasons == {f"Insufficient {GPU}.shared": 1}


TWO_KINDS: dict[str, tuple[list[Json], int, int]] = {
    "it fits": ([], 2001, 2001),
    "the slices are allocated": ([running_gpu_pod("a", "n", SLICE, 7)], 3002, 1001),
    "the whole cards are allocated": ([running_gpu_pod("a", "n", count=7)], 9001, 7000),
}


@pytest.mark.parametrize(("running_pods", "requested", "allocated"), TWO_KINDS.values(), ids=TWO_KINDS)
def test_both_kinds_of_gpus_of_a_pod_count(running_pods: list[Json], requested: int, allocated: int) -> None:
    """A whole card and seven slices of 143 thousandths."""
    cluster = placement_input(make_node("n", MIXED, **{GPU: 7, SLICE: 7}), *running_pods)
    coming = [ArrivingPod(requirements_of(make_pod().gpus(1).requests(SLICE, "7"), cluster.snapshot))]

    *_, last = simulate_pods(cluster, coming, ScoringStrategy.TAB, FillOrder.PACK)

    moment = last.result().steps[-1]
    assert (moment.requested, moment.allocated) == (requested, allocated)
