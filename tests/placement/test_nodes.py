"""Feasible nodes, their order, and the reasons against the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.example_cluster import GPU_TAINT, mig_node, tainted
from tests.placement.clusters import (
    BRIDGED,
    DGX1,
    GPU,
    gpu_node,
    gpu_node_report,
    placement_input,
    preemption_plan,
    ranked_names,
    ranked_nodes,
    requirements_of,
    running_gpu_pod,
    shared_node,
    with_gpu_conditions,
)
from webhook.cache.inventory import build_inventory
from webhook.model.annotations import TOPOLOGY_ANNOTATION
from webhook.model.fleet import fleet_node
from webhook.model.gpu_node import GPUNode
from webhook.model.objects import Node
from webhook.model.pods import Pod, parse_pod
from webhook.placement.capacity import ClusterCapacity, EmptyNode, FreeCapacityArrays, PodDemand
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.fragmentation.workload_mix import FLAT_MIX
from webhook.placement.nodes.filtering import NOT_CONNECTED, filter_reasons
from webhook.placement.nodes.gangs import GangContext
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.ranking import FillOrder, NodeRanking
from webhook.placement.nodes.simulator import UnschedulableReason, unschedulable_reason
from webhook.placement.nodes.snapshot import SchedulingSnapshot
from webhook.placement.topology import TopologyConfidence

KINDS = {"Node": Node, "GPUNode": GPUNode, "Pod": Pod}
H100 = "NVIDIA-H100-80GB-HBM3"
STRICT = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
PAIR = make_pod().gpus(2)
SHARE, MIG = f"{GPU}.shared", "nvidia.com/mig-1g.10gb"
COUNT = "nvidia.com/gpu.count"
SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}
SINGLES = {(i, j): 0 for i in range(8) for j in range(i)}
"""Eight cards without any bridge."""


def test_pod_with_two_gpus_prefers_a_free_bonded_pair() -> None:
    placement = placement_input(
        gpu_node("singles", 8),
        gpu_node_report("singles", 8, SINGLES),
        gpu_node("pairs"),
        gpu_node_report("pairs", 4, BRIDGED),
    )

    best, other = ranked_nodes(placement, PAIR)

    assert ranked_names(placement, PAIR) == ["pairs", "singles"]
    assert best.links is not None
    assert other.links is not None
    assert best.links.nvlink_connected
    assert best.links.gpus in ((0, 1), (2, 3))
    assert not other.links.nvlink_connected


def test_pod_with_four_gpus_gets_one_island() -> None:
    torn = dict.fromkeys((1, 2, 6, 7), "team/on-torn")
    whole = dict.fromkeys((4, 5, 6, 7), "team/on-whole")
    placement = placement_input(
        *(item for name, held in (("torn", torn), ("whole", whole)) for item in (
            gpu_node(name, 8, "Tesla-V100-SXM2-32GB"),
            gpu_node_report(name, 8, DGX1, held),
            running_gpu_pod(f"on-{name}", name, count=4),
        ))
    )  # fmt: skip

    best = ranked_nodes(placement, make_pod().gpus(4))[0]

    assert placement.snapshot.fleet.nodes[best.node].name == "whole"
    assert best.links is not None
    assert best.links.gpus == (0, 1, 2, 3)


def test_single_gpu_does_not_break_the_last_pair() -> None:
    placement = placement_input(
        gpu_node("pair"),
        gpu_node_report("pair", 4, BRIDGED, {2: "team/a", 3: "team/a"}),
        running_gpu_pod("a", "pair", count=2),
        gpu_node("odd"),
        gpu_node_report("odd", 4, BRIDGED, {1: "team/b", 3: "team/b"}),
        running_gpu_pod("b", "odd", count=2),
    )

    assert ranked_names(placement, make_pod().gpus(1)) == ["odd", "pair"]


def test_predicted_and_optimal_sets_are_both_reported() -> None:
    free = dict.fromkeys((1, 3, 6, 7), "team/a")
    placement = placement_input(
        gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB"),
        gpu_node_report("dgx", 8, DGX1, free),
        running_gpu_pod("a", "dgx", count=4),
    )

    links = ranked_nodes(placement, PAIR)[0].links

    assert links is not None
    assert (links.gpus, links.optimal) == ((0, 2), (0, 4))
    assert links.quality.slowest < 50_000
    assert links.ratio == 50


def test_behind_a_switch_the_value_of_free_capacity_decides() -> None:
    placement = placement_input(
        gpu_node("empty", 8, H100), gpu_node("used", 8, H100), running_gpu_pod("a", "used", count=5)
    )

    assert ranked_names(placement, PAIR) == ["used", "empty"]


def test_pod_without_communication_ignores_links() -> None:
    quiet = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=ignored")
    placement = placement_input(gpu_node("a"), gpu_node_report("a", 4, BRIDGED))

    assert not requirements_of(quiet, placement.snapshot).communicates
    assert requirements_of(PAIR, placement.snapshot).communicates
    assert not requirements_of(make_pod().gpus(1), placement.snapshot).communicates


def test_mig_pods_keep_space_for_3g() -> None:
    def card(name: str, start: int) -> list[Json]:
        node = mig_node(name, small=7, large=1)
        mig_instances = {
            0: [("3g.40gb", 4, "")],
            1: [("1g.10gb", start, "team/a"), ("1g.10gb", 5, ""), ("1g.10gb", 6, "")],
        }
        return [node, gpu_node_report(name, 2, {}, mig_instances=mig_instances)]

    small = make_pod().requests("nvidia.com/mig-1g.10gb", "1")
    wanting = make_pod("w").requests("nvidia.com/mig-3g.40gb", "1").build()
    placement = placement_input(*card("torn", 4), *card("low", 0), wanting)

    assert ranked_names(placement, small) == ["torn", "low"]


def test_unknown_layouts_are_equal() -> None:
    placement = placement_input(mig_node("a"), mig_node("b"))

    assert {each.score for each in ranked_nodes(placement, make_pod().requests("nvidia.com/mig-1g.10gb", "1"))} == {0.0}


def test_gang_is_placed_in_the_smallest_sufficient_domain() -> None:
    clique = "nvidia.com__gpu.clique"
    nodes = [
        gpu_node(f"{c}{i}", 4, "NVIDIA-GB200", **{clique: c})
        for c, n in (("a", 4), ("b", 2), ("c", 1))
        for i in range(n)
    ]

    placement = placement_input(*nodes, gpu_node("lonely", 4, "NVIDIA-GB200"))
    names = ranked_names(placement, make_pod().gpus(4), gang=GangContext(2))

    assert names[:2] == ["b0", "b1"]
    assert names[2:6] == ["a0", "a1", "a2", "a3"]
    assert set(names[6:]) == {"c0", "lonely"}


def test_domain_capacity_is_limited_by_cpu_and_memory() -> None:
    clique = "nvidia.com__gpu.clique"
    big = make_pod().gpus(1).requests("cpu", "40").requests("memory", "300Gi")
    placement = placement_input(
        *(gpu_node(f"{c}{i}", 4, "NVIDIA-GB200", **{clique: c}) for c, n in (("a", 1), ("b", 3)) for i in range(n))
    )

    assert ranked_names(placement, big, gang=GangContext(2))[0].startswith("b")


def test_equal_nodes_are_packed_or_spread() -> None:
    placement = placement_input(gpu_node("a", 4, H100), gpu_node("b", 4, H100), running_gpu_pod("x", "b", cpu="0"))
    cpu_only = requirements_of(make_pod().requests("cpu", "1"), placement.snapshot)

    def first(fill: FillOrder) -> str:
        ranking = NodeRanking(placement.snapshot, ScoringStrategy.DEFAULT, FLAT_MIX, fill=fill)
        return placement.snapshot.fleet.nodes[ranking.rank(cpu_only)[0].node].name

    assert first(FillOrder.PACK) == "b"
    assert first(FillOrder.SPREAD) == "a"


REJECTIONS = [
    ("cordoned", {"unschedulable": True}, make_pod().gpus(1), "node(s) were unschedulable", "cordoned"),
    ("of another pool", {}, make_pod().gpus(1).spec(nodeSelector={"pool": "x"}),
     "node(s) didn't match Pod's node affinity/selector", "excluded by node selector"),
    ("tainted", {"taints": [{"key": "maintenance", "value": "true", "effect": "NoSchedule"}]}, make_pod().gpus(1),
     "node(s) had untolerated taint {maintenance: true}", "taint maintenance=true:NoSchedule"),
    ("without the CPU", {}, make_pod().gpus(1).requests("cpu", "65"),
     "Insufficient cpu", "64 CPU free, 65 requested"),
    ("without the memory", {}, make_pod().gpus(1).requests("memory", "600Gi"),
     "Insufficient memory", "512 GiB of memory free, 600 requested"),
    ("a MiB short", {}, make_pod().gpus(1).requests("memory", f"{512 * 1024 + 1}Mi"),
     "Insufficient memory", "512 GiB of memory free, 512.001 requested"),
    ("smaller", {}, make_pod().gpus(8), "Insufficient nvidia.com/gpu", "4 on the node, 8 requested"),
    ("without that resource", {}, make_pod().requests("nvidia.com/mig-1g.10gb", "1"),
     "Insufficient nvidia.com/mig-1g.10gb", "offers no nvidia.com/mig-1g.10gb"),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "spec", "pod", "message", "detail"), REJECTIONS, ids=[w[0] for w in REJECTIONS])
def test_filter_reasons(sentence: str, spec: Json, pod: PodMaker, message: str, detail: str) -> None:
    placement = placement_input(gpu_node("n") | {"spec": spec})

    (found,) = filter_reasons(placement.snapshot, requirements_of(pod, placement.snapshot), 0)

    assert found.scheduler_message == message
    assert detail in found.detail


CORDON = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"}
CORDONED = {
    "one that tolerates the cordon": ([CORDON], {}, "True", True),
    "one that tolerates everything": ([{"operator": "Exists"}], {}, "True", True),
    "one that tolerates another effect": ([CORDON | {"effect": "NoExecute"}], {}, "True", False),
    "one that tolerates all, where the node is not ready too": ([{"operator": "Exists"}], {}, "False", False),
    "one that tolerates all, where its GPUs are being changed too": (
        [{"operator": "Exists"}],
        {"nvidia.com/mig.config.state": "pending"},
        "True",
        False,
    ),
}


@pytest.mark.parametrize(("tolerations", "labels", "ready", "fits"), CORDONED.values(), ids=CORDONED)
def test_cordoned_node_accepts_pods_that_tolerate_it(
    tolerations: list[Json], labels: dict[str, str], ready: str, fits: bool
) -> None:
    node = gpu_node("n")
    node["metadata"]["labels"] |= labels
    node["spec"] = {"unschedulable": True, "taints": [{"key": CORDON["key"], "effect": "NoSchedule"}]}
    node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    placement, pod = placement_input(node), make_pod().gpus(1).spec(tolerations=tolerations)

    assert ranked_names(placement, pod) == (["n"] if fits else [])
    assert (not filter_reasons(placement.snapshot, requirements_of(pod, placement.snapshot), 0)) is fits


def test_node_at_its_pod_limit_accepts_no_pod() -> None:
    node = gpu_node("n")
    node["status"]["allocatable"]["pods"] = "1"
    placement = placement_input(node, running_gpu_pod("a", "n"))

    (found,) = filter_reasons(
        placement.snapshot, requirements_of(make_pod().gpus(3).requests("cpu", "4"), placement.snapshot), 0
    )
    freed = preemption_plan(placement, make_pod().gpus(4).requests("cpu", "4"))

    assert not ranked_names(placement, make_pod().gpus(1))
    assert (found.scheduler_message, found.detail) == ("Too many pods", "at its pod limit of 1")
    assert freed is not None
    assert [pod.metadata.name for pod in freed.pods] == ["a"]


def test_all_reasons_are_reported() -> None:
    placement = placement_input(tainted(gpu_node("n"), GPU_TAINT), running_gpu_pod("a", "n", count=4, cpu="60"))

    found = filter_reasons(
        placement.snapshot, requirements_of(make_pod().gpus(2).requests("cpu", "8"), placement.snapshot), 0
    )

    assert [reason.detail for reason in found] == [
        "taint nvidia.com/gpu=present:NoSchedule",
        "4 CPU free, 8 requested",
        "full",
    ]


def test_free_but_unconnected_gpus_are_named() -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    held = {1: "team/a", 3: "team/a"}
    placement = placement_input(
        gpu_node("n"), gpu_node_report("n", 4, BRIDGED, held), running_gpu_pod("a", "n", count=2)
    )

    (reason,) = filter_reasons(placement.snapshot, requirements_of(strict, placement.snapshot), 0)

    assert reason.scheduler_message == NOT_CONNECTED
    assert reason.detail == "2 free, no 2 of them connected by NVLink (GPUs 0, 2)"


def test_without_an_agent_connected_means_any_choice() -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    placement = placement_input(
        gpu_node("n"), gpu_node("h", 8, H100), running_gpu_pod("a", "n"), running_gpu_pod("b", "h")
    )

    assert ranked_names(placement, strict) == ["h"]


def test_repartitioning_is_suggested_if_it_helps() -> None:
    node = mig_node("n", small=2, large=1)
    mig_instances = {0: [("1g.10gb", 0, ""), ("1g.10gb", 1, ""), ("3g.40gb", 4, "team/a")]}
    placement = placement_input(
        node,
        gpu_node_report("n", 1, {}, mig_instances=mig_instances),
        running_gpu_pod("a", "n", "nvidia.com/mig-3g.40gb"),
    )

    (reason,) = filter_reasons(
        placement.snapshot, requirements_of(make_pod().requests("nvidia.com/mig-3g.40gb", "1"), placement.snapshot), 0
    )

    advice = "GPU 0 could be repartitioned: remove 1g.10gb at 0, 1g.10gb at 1, create 3g.40gb at 0"
    assert reason.detail == f"full; {advice}"


SLICES = [("1g.10gb", start, "") for start in range(7)]
REPARTITIONING: dict[str, tuple[Json, Json, str]] = {
    "idle instances of another profile occupy the space": (
        mig_node("n", small=7, large=0),
        gpu_node_report("n", 1, {}, mig_instances={0: SLICES}),
        "offers no nvidia.com/mig-3g.40gb; GPU 0 could be repartitioned: remove 1g.10gb at 4, 1g.10gb at 5, "
        "1g.10gb at 6, create 3g.40gb at 4",
    ),
    "no instances yet": (
        mig_node("n", small=0, large=0),
        gpu_node_report("n", 1, {}, mig_instances={0: []}),
        "offers no nvidia.com/mig-3g.40gb; GPU 0 could be repartitioned: remove nothing, create 3g.40gb at 4",
    ),
    "all instances are in use": (
        mig_node("n", small=7, large=0),
        gpu_node_report("n", 1, {}, mig_instances={0: [(*one[:2], "team/a") for one in SLICES]}),
        "offers no nvidia.com/mig-3g.40gb",
    ),
    "all cards are partitioned equally": (
        make_node("n", SINGLE, **{GPU: 7}),
        gpu_node_report("n", 1, {}, mig_instances={0: SLICES}),
        "offers no nvidia.com/mig-3g.40gb",
    ),
}


@pytest.mark.parametrize(("node", "report", "detail"), REPARTITIONING.values(), ids=REPARTITIONING)
def test_repartitioning_is_suggested_for_a_missing_profile(node: Json, report: Json, detail: str) -> None:
    there = running_gpu_pod("a", "n", "nvidia.com/mig-1g.10gb", 7)
    placement = placement_input(node, report, *([there] if "team/a" in str(report) else []))

    (reason,) = filter_reasons(
        placement.snapshot, requirements_of(make_pod().requests("nvidia.com/mig-3g.40gb", "1"), placement.snapshot), 0
    )

    assert reason.detail == detail


def test_shares_are_spread_as_by_the_plugin() -> None:
    placement = placement_input(shared_node(cards=2), running_gpu_pod("a", "n", SHARE, 3))

    assert placement.snapshot.free_arrays().gpus.tolist() == [[750, 500]]
    assert placement.snapshot.pod_demand(
        requirements_of(make_pod().requests(SHARE, "1"), placement.snapshot), 0
    ) == PodDemand(0, 1, 250)


SLICE_SHARED = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED",
    "nvidia.com/gpu.replicas": "2",
    "nvidia.com/mig.strategy": "single",
}
MIG_SHARED = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/mig-1g.10gb.replicas": "2",
}
BOTH_NAMES = {"nvidia.com/gpu.product": H100, COUNT: "4", "nvidia.com/gpu.replicas": "4"}
UNITS: dict[str, tuple[Json, str, int]] = {
    "shares of one card": (shared_node(), SHARE, 4),
    "shares of several cards": (shared_node(cards=3), SHARE, 12),
    "shares under the plain name": (shared_node(resource=GPU), GPU, 4),
    "more shares of a card than it has thousandths": (shared_node(replicas=3000), SHARE, 3000),
    "shares of MIG instances": (make_node("n", MIG_SHARED, **{f"{MIG}.shared": 14}), f"{MIG}.shared", 14),
    "shares of equally partitioned cards": (make_node("n", SLICE_SHARED, **{GPU: 14}), GPU, 14),
    "shares under both names, of the one": (make_node("n", BOTH_NAMES, **{SHARE: 8, GPU: 2}), SHARE, 8),
    "shares under both names, of the other": (make_node("n", BOTH_NAMES, **{SHARE: 8, GPU: 2}), GPU, 2),
    "whole cards": (gpu_node("n"), GPU, 4),
    "MIG instances": (mig_node("n"), MIG, 7),
}
"""A node, the requested resource, and its units."""


@pytest.mark.parametrize(("node", "resource", "units"), UNITS.values(), ids=UNITS)
def test_node_accepts_as_many_units_as_are_free(node: Json, resource: str, units: int) -> None:
    """The scheduler compares two numbers: which cards shares are of is the device plugin's business."""
    placement = placement_input(node, running_gpu_pod("a", "n", resource, 1))

    for count in (1, units - 1, units):
        pod = make_pod().requests(resource, str(count))
        assert ranked_names(placement, pod) == (["n"] if count < units else [])
        assert bool(filter_reasons(placement.snapshot, requirements_of(pod, placement.snapshot), 0)) is (count == units)


def test_several_shares_go_to_the_fuller_node() -> None:
    placement = placement_input(shared_node("idle"), shared_node("fuller"), running_gpu_pod("a", "fuller", SHARE, 2))

    assert ranked_names(placement, make_pod().requests(SHARE, "2")) == ["fuller", "idle"]


def test_node_that_the_strategy_cannot_score_is_last() -> None:
    """The scheduler accepts the pod on a node whose model its selector excludes."""
    placement = placement_input(gpu_node("a"), gpu_node("h", 8, H100))
    picky = requirements_of(make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": H100}), placement.snapshot)

    found = NodeRanking(placement.snapshot, mix=placement.mix).order(picky, candidates=np.array([True, True]))

    assert found.nodes.tolist() == [1, 0]
    assert np.isfinite(found.keys).all()


def test_demand_names_models_if_selectors_exclude_some() -> None:
    picky = make_pod().gpus(1).spec(nodeSelector={"nvidia.com/gpu.product": H100})
    placement = placement_input(gpu_node("a"), gpu_node("h", 8, H100))

    assert placement.snapshot.pod_demand(requirements_of(picky, placement.snapshot), 1).models == ("h100-80gb-hbm3",)
    assert placement.snapshot.pod_demand(requirements_of(make_pod().gpus(1), placement.snapshot), 1).models == ()


def test_required_affinity() -> None:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["h"]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    placement = placement_input(gpu_node("a"), gpu_node("h"))

    assert ranked_names(placement, make_pod().gpus(1).spec(affinity=affinity)) == ["h"]


def test_snapshot_with_a_pod() -> None:
    placement = placement_input(gpu_node("n"), gpu_node_report("n", 4, BRIDGED))
    after = placement.snapshot.with_pod(
        requirements_of(make_pod().gpus(2).requests("cpu", "4"), placement.snapshot), 0, (0, 1)
    )

    assert after.devices[0].free == 0b1100
    assert after.free[0].gpus[GPU] == 2
    assert after.free[0].cpu_milli == 60_000
    assert placement.snapshot.free[0].gpus[GPU] == 4
    unknown: SchedulingSnapshot = placement.snapshot.with_pod(requirements_of(PAIR, placement.snapshot), 0)
    assert unknown.devices[0].free is None


def test_slice_leaves_whole_gpus_unchanged() -> None:
    placement = placement_input(
        gpu_node("n"), gpu_node_report("n", 4, BRIDGED, {0: "team/x"}), running_gpu_pod("x", "n")
    )
    after = placement.snapshot.with_pod(
        requirements_of(make_pod().requests("nvidia.com/mig-1g.10gb", "1"), placement.snapshot), 0
    )
    assert after.devices[0].free == 0b1110


def test_implausible_reports_fall_back_to_labels() -> None:
    odd = gpu_node_report("n", 4, BRIDGED)
    odd["status"]["gpus"][0]["index"] = 7
    placement = placement_input(gpu_node("n"), odd)

    assert placement.snapshot.devices[0].topology.confidence is TopologyConfidence.UNKNOWN


class WithdrawnCase(NamedTuple):
    """A node of four cards: advertised units, agent report, running pods, and the resulting free GPUs."""

    units: int
    report: Json
    free: int | None
    pods: Mapping[str, int] = MappingProxyType({})
    spare: int = 0


HELD_FIRST, HELD_THIRD = (gpu_node_report("n", 4, BRIDGED, {gpu: "team/a"}) for gpu in (0, 2))
CONTAINED = {"conditions": ["XID 94: contained memory error"]}
WITHDRAWN = {
    "all are advertised, one is unhealthy: it may be allocated": WithdrawnCase(
        4, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0), 0b1111
    ),
    "one is withdrawn, one is unhealthy": WithdrawnCase(
        3, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0), 0b1110
    ),
    "one is withdrawn, one has conditions": WithdrawnCase(
        3, with_gpu_conditions(HELD_THIRD, 0, **CONTAINED), 0b1010, {"a": 1}
    ),
    "one is withdrawn, one has degraded NVLink": WithdrawnCase(
        3, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0, nvlinkDegraded=True), 0b1110
    ),
    "one is withdrawn, two are unhealthy": WithdrawnCase(
        3, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0, 1), None, spare=3
    ),
    "two are withdrawn, one is unhealthy": WithdrawnCase(
        2, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0), None, spare=2
    ),
    "one is withdrawn, all are healthy": WithdrawnCase(3, gpu_node_report("n", 4, BRIDGED), None, spare=3),
    "a pod holds the withdrawn one": WithdrawnCase(3, with_gpu_conditions(HELD_FIRST, 0), 0b1110, {"a": 1}),
    "an unreported pod got none of the withdrawn ones": WithdrawnCase(
        3, with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0), 0b1100, {"new": 1}
    ),
    "a pod holds more than reported": WithdrawnCase(
        4, gpu_node_report("n", 4, BRIDGED, {0: "team/b"}), None, {"b": 2}, 2
    ),
}


@pytest.mark.parametrize("case", WITHDRAWN.values(), ids=WITHDRAWN)
def test_reported_free_gpus_are_limited_by_the_nodes_units(case: WithdrawnCase) -> None:
    node = make_node("n", {"nvidia.com/gpu.product": "NVIDIA-A100-80GB-PCIe", COUNT: "4"}, **{GPU: case.units})
    placement = placement_input(
        node, case.report, *(running_gpu_pod(name, "n", count=count) for name, count in case.pods.items())
    )

    assert (placement.snapshot.devices[0].free, placement.snapshot.devices[0].free_count) == (case.free, case.spare)


def test_pair_is_connected_among_advertised_gpus() -> None:
    torn = with_gpu_conditions(gpu_node_report("torn", 4, BRIDGED, {2: "team/a"}), 0, **CONTAINED)
    alone = with_gpu_conditions(
        gpu_node_report("alone", 8, {(i, j): 18 for j in range(8) for i in range(j)}, nvswitch=True),
        0,
        nvlinkDegraded=True,
    )
    placement = placement_input(
        gpu_node("torn", 3), torn, running_gpu_pod("a", "torn"), gpu_node("alone", 7, H100), alone
    )

    (best,) = ranked_nodes(placement, STRICT)

    assert placement.snapshot.fleet.nodes[best.node].name == "alone"
    assert best.links is not None
    assert best.links.gpus == (1, 2)
    assert [
        each.detail for each in filter_reasons(placement.snapshot, requirements_of(STRICT, placement.snapshot), 0)
    ] == ["2 free, no 2 of them connected by NVLink (GPUs 1, 3)"]


def test_unknown_free_gpus_are_the_reason() -> None:
    placement = placement_input(gpu_node("n", 2), gpu_node_report("n", 4, BRIDGED))

    assert [
        each.detail for each in filter_reasons(placement.snapshot, requirements_of(STRICT, placement.snapshot), 0)
    ] == ["2 free, unknown which, and NVLink does not connect every choice"]


def test_node_with_a_possible_unhealthy_gpu_is_last() -> None:
    held = {gpu: f"team/{gpu}" for gpu in (1, 2, 3)}
    full = [
        with_gpu_conditions(gpu_node_report("full", 4, BRIDGED, held), 0),
        *(running_gpu_pod(str(gpu), "full") for gpu in held),
    ]
    unsure = [
        with_gpu_conditions(gpu_node_report("unsure", 4, BRIDGED, {1: "team/b"}), 0),
        running_gpu_pod("b", "unsure", count=2),
    ]
    lacking = [gpu_node("lacking", 2), with_gpu_conditions(gpu_node_report("lacking", 4, BRIDGED), 0)]
    placement = placement_input(gpu_node("full"), *full, gpu_node("unsure"), *unsure, *lacking, gpu_node("healthy"))
    found = ranked_nodes(placement, make_pod().gpus(1))

    assert placement.snapshot.fleet.nodes[found[0].node].name == "healthy"
    assert [each.links.unhealthy for each in found if each.links] == [(), (0,), (0,), (0,)]


def test_unhealthy_gpus_that_the_plugin_does_not_allocate_do_not_matter() -> None:
    held = {gpu: f"team/{gpu}" for gpu in (0, 1)}
    placement = placement_input(
        gpu_node("unhealthy"),
        with_gpu_conditions(gpu_node_report("unhealthy", 4, {}, held), 3),
        *(running_gpu_pod(str(gpu), "unhealthy") for gpu in held),
        gpu_node("healthy", 8),
        gpu_node_report("healthy", 8, SINGLES),
    )

    assert ranked_names(placement, make_pod().gpus(1)) == ["unhealthy", "healthy"]
    assert ranked_names(placement, PAIR) == ["healthy", "unhealthy"]


def test_idle_instance_of_an_unhealthy_card_is_last() -> None:
    mig_instances = {0: [("1g.10gb", 0, ""), ("1g.10gb", 1, "")]}
    unhealthy, well = (
        with_gpu_conditions(gpu_node_report("unhealthy", 1, {}, mig_instances=mig_instances), 0),
        gpu_node_report("healthy", 1, {}, mig_instances=mig_instances),
    )
    placement = placement_input(mig_node("unhealthy"), unhealthy, mig_node("healthy"), well)

    assert ranked_names(placement, make_pod().requests("nvidia.com/mig-1g.10gb", "1")) == ["healthy", "unhealthy"]


def test_holders() -> None:
    placement = placement_input(
        gpu_node("n"), gpu_node_report("n", 4, BRIDGED, {1: "team/a"}), running_gpu_pod("a", "n")
    )

    assert placement.snapshot.devices[0].holders == {1: ("team/a",)}


def test_mig_cards_have_no_links() -> None:
    placement = placement_input(gpu_node("n"), gpu_node_report("n", 4, BRIDGED, mig_instances={0: []}))

    assert placement.snapshot.devices[0].topology.count_nvlinks(0, 1) == 0
    assert placement.snapshot.devices[0].topology.count_nvlinks(2, 3) == 12


def test_largest_of_several_resources_ranks() -> None:
    placement = placement_input(gpu_node("n"))
    both = parse_pod(make_pod().gpus(2).requests("nvidia.com/mig-1g.10gb", "1").build())

    assert pod_requirements(both, placement.snapshot.fleet).resource == GPU


UNSCHEDULABLE = [
    (UnschedulableReason.NO_MODEL, PodDemand(0, 1, 1000, ("T4",)), [1000, 1000], 64, 100),
    (UnschedulableReason.TOO_LARGE, PodDemand(0, 3, 1000), [1000, 1000], 64, 100),
    (UnschedulableReason.FULL, PodDemand(0, 2, 1000), [500, 500], 64, 100),
    (UnschedulableReason.FRAGMENTED, PodDemand(0, 1, 1000), [500, 500], 64, 100),
    (UnschedulableReason.FRAGMENTED, PodDemand(0, 3, 300), [500, 500], 64, 100),
    (UnschedulableReason.NO_CPU, PodDemand(8000, 1, 500), [500, 500], 4, 100),
    (UnschedulableReason.NO_MEMORY, PodDemand(0, 1, 500, (), 90), [500, 500], 64, 10),
    (UnschedulableReason.FITS, PodDemand(0, 1, 500, (), 10), [500, 500], 64, 10),
    (UnschedulableReason.FITS, PodDemand(0, 3, 300), [300, 600], 64, 100),
]


@pytest.mark.parametrize(
    ("reason", "demand", "gpus", "cores", "memory"), UNSCHEDULABLE, ids=[str(case[0]) for case in UNSCHEDULABLE]
)
def test_unschedulable_reason(
    reason: UnschedulableReason, demand: PodDemand, gpus: list[int], cores: int, memory: int
) -> None:
    free = FreeCapacityArrays(ClusterCapacity([EmptyNode("n", 64_000, 100, 2, "A100")]))
    free.gpus[0], free.cpu[0], free.memory[0] = gpus, cores * 1000, memory

    assert unschedulable_reason(free, demand) is reason


def test_report_with_fewer_free_gpus_than_advertised_units() -> None:
    placement = placement_input(
        gpu_node("n"), gpu_node_report("n", 4, BRIDGED, dict.fromkeys((1, 2, 3), "team/a")), running_gpu_pod("a", "n")
    )

    links = ranked_nodes(placement, PAIR)[0].links

    assert links is not None
    assert (links.gpus, links.nvlink_connected) == ((), False)


def test_one_ranking_for_several_kinds_of_pods() -> None:
    placement = placement_input(mig_node("n"))
    ranking = NodeRanking(placement.snapshot, mix=placement.mix)
    pods = [make_pod().requests("nvidia.com/mig-1g.10gb", "1"), make_pod().gpus(1), make_pod().requests("cpu", "1")]

    links = [ranking.rank(requirements_of(pod, placement.snapshot))[0].links is not None for pod in pods]

    assert links == [False, True, False]


def test_free_start_is_scored_without_idle_instances() -> None:
    small = make_pod().requests("nvidia.com/mig-1g.10gb", "1")
    torn = [mig_node("torn"), gpu_node_report("torn", 1, {}, mig_instances={0: [("1g.10gb", 4, "team/a")]})]
    torn += [running_gpu_pod("a", "torn", "nvidia.com/mig-1g.10gb")]
    placement = placement_input(*torn, mig_node("new"), gpu_node_report("new", 1, {}, mig_instances={0: []}))

    assert ranked_names(placement, small) == ["torn", "new"]


OUTDATED: dict[str, tuple[dict[int, str], dict[str, int], int]] = {
    "the pod with the pair has ended": ({0: "team/done", 1: "team/done", 2: "team/run"}, {"run": 1}, 0b1011),
    "two arrived that the report lacks": ({}, {"run": 1, "more": 1}, 0b1100),
    "one arrived after others ended, too large for the rest": ({0: "team/done"}, {"run": 4}, 0),
}


@pytest.mark.parametrize(("holders", "running_pods", "free"), OUTDATED.values(), ids=OUTDATED)
def test_report_is_updated_by_pods_as_in_the_extender(
    holders: dict[int, str], running_pods: dict[str, int], free: int
) -> None:
    objects = [gpu_node("n"), gpu_node_report("n", 4, BRIDGED, holders)]
    objects += [running_gpu_pod(name, "n", count=count) for name, count in running_pods.items()]
    placement, node = placement_input(*objects), msgspec.convert(objects[0], Node)

    _, live = build_inventory([msgspec.convert(item, KINDS[item["kind"]]) for item in objects]).free_on_node(
        fleet_node(node)
    )

    assert placement.snapshot.devices == [live]
    assert placement.snapshot.devices[0].free == free


def test_stale_report_needs_no_eviction() -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    held = {0: "team/done", 1: "team/done", 2: "team/run"}
    placement = placement_input(gpu_node("n"), gpu_node_report("n", 4, BRIDGED, held), running_gpu_pod("run", "n"))

    assert ranked_names(placement, strict) == ["n"]


@pytest.mark.parametrize(("allocated", "fits"), [(0, True), (4, True), (5, True), (6, False)])
def test_connected_pair_is_certain_if_any_three_of_eight_are_free(allocated: int, fits: bool) -> None:
    strict = make_pod().gpus(2).annotate(TOPOLOGY_ANNOTATION, "nvlink=required")
    pods = [running_gpu_pod("x", "dgx", count=allocated)] if allocated else []
    placement = placement_input(gpu_node("dgx", 8, "Tesla-V100-SXM2-32GB"), *pods)

    assert ranked_names(placement, strict) == (["dgx"] if fits else [])
    assert [
        each.scheduler_message
        for each in filter_reasons(placement.snapshot, requirements_of(strict, placement.snapshot), 0)
    ] == ([] if fits else [NOT_CONNECTED])


def test_all_gpu_resources_must_be_free_on_one_node() -> None:
    both = make_pod().gpus(1).requests("nvidia.com/mig-1g.10gb", "2")
    placement = placement_input(
        mig_node("a"), mig_node("full"), running_gpu_pod("x", "full", count=6), gpu_node("whole")
    )
    requirements = requirements_of(both, placement.snapshot)
    detail = [[each.detail for each in filter_reasons(placement.snapshot, requirements, node)] for node in range(3)]

    assert ranked_names(placement, both) == ["a"]
    assert detail == [[], ["full"], ["offers no nvidia.com/mig-1g.10gb"]]
    assert not ranked_names(placement_input(gpu_node("whole")), both)


@pytest.mark.parametrize("count", [4097, 10**15, 10**40])
def test_implausible_gpu_count_is_ignored(count: int) -> None:
    placement = placement_input(gpu_node("absurd", count), gpu_node("healthy"))
    one = make_pod().gpus(1)

    assert ranked_names(placement, one) == ["healthy"]
    assert [
        each.detail for each in filter_reasons(placement.snapshot, requirements_of(one, placement.snapshot), 0)
    ] == [f"advertises {count} nvidia.com/gpu, more than any node can have: ignored"]


def test_implausible_cpu_and_memory_do_not_prevent_ranking() -> None:
    vast = make_node("vast", {}, **{GPU: 1, "cpu": 10**40, "memory": 10**40})

    assert ranked_names(placement_input(vast), make_pod().gpus(1).requests("cpu", "4")) == ["vast"]
