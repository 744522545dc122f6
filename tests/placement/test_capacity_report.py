"""Capacity of a cluster: allocated, free, fragmented and unschedulable GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import Json, make_node, make_pod
from tests.example_cluster import mig_node
from tests.placement.clusters import (
    BRIDGED,
    GPU,
    gpu_node,
    gpu_node_report,
    placement_input,
    running_gpu_pod,
    shared_node,
    with_gpu_conditions,
)
from webhook.model.dra.device_pools import PoolId
from webhook.model.dra.gpu_devices import CardUsage
from webhook.model.dra.pool_kinds import PublishedCard
from webhook.model.node_groups import groups_without_nodes
from webhook.placement.capacity import PodDemand
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, WorkloadMix
from webhook.report.capacity import (
    NodeCapacity,
    capacity_document,
    capacity_table,
    group_notes,
    node_capacities,
    total_capacity,
)
from webhook.report.node_topology import node_document, node_lines
from webhook.report.utilization import ClusterUtilization, compute_utilization

H100 = "NVIDIA-H100-80GB-HBM3"
SMALL = "nvidia.com/mig-1g.10gb"


def node(name: str = "n", gpus: int = 8, pods: int = 110, **spec: Any) -> Json:
    data = gpu_node(name, gpus, H100)
    data["status"]["allocatable"]["pods"] = str(pods)
    return data | {"spec": spec}


def plain(count: int, where: str = "n") -> list[Json]:
    """Pods without GPUs."""
    return [make_pod(f"web-{i}").requests("cpu", "100m").spec(nodeName=where).build() for i in range(count)]


ONE = running_gpu_pod("one", "n", cpu="100m")
SLICES = [running_gpu_pod(f"slice-{i}", "cut", SMALL, cpu="100m") for i in range(9)]
A100 = "NVIDIA-A100-SXM4-80GB"
CARD = {"nvidia.com/gpu.product": A100, "nvidia.com/mig.strategy": "mixed"}
LARGE = "nvidia.com/mig-3g.40gb"


def card(*mig_instances: tuple[str, int, str], **units: int) -> list[Json]:
    """Return a node with one partitioned MIG card, and its agent's report."""
    return [
        make_node("cut", CARD | {"nvidia.com/gpu.count": "1"}, **units),
        gpu_node_report("cut", 1, {}, mig_instances={0: mig_instances}),
    ]


NOT_READY = {"status": node()["status"] | {"conditions": [{"type": "Ready", "status": "False"}]}}

FOUND: dict[str, tuple[list[Json], tuple[int, int, int, int]]] = {
    "one pod with a GPU": ([node(), ONE], (1000, 7000, 0, 0)),
    "pods without GPUs beside it": ([node(), ONE, *plain(30)], (1000, 7000, 0, 0)),
    "pods without GPUs on another node": ([node(), node("cpu", 0), ONE, *plain(30, "cpu")], (1000, 7000, 0, 0)),
    "pods with MIG instances on another node": (
        [node(), mig_node("cut", small=9), ONE, *SLICES],
        (1000 + 9 * 143, 14_000, 0, 0),
    ),
    "no pod requests GPUs": ([node(), *plain(3)], (0, 8000, 0, 0)),
    "no pods": ([node()], (0, 8000, 0, 0)),
    "pods of three GPUs, two free": (
        [node(), *(running_gpu_pod(f"p{i}", "n", count=3, cpu="100m") for i in range(2)), *plain(5)],
        (6000, 2000, 2000, 0),
    ),
    "at the pod limit, no pod with GPUs": ([node(pods=4), *plain(4)], (0, 0, 0, 8000)),
    "at the pod limit, each pod with one GPU": (
        [node(pods=2), running_gpu_pod("a", "n"), running_gpu_pod("b", "n")],
        (2000, 0, 0, 6000),
    ),
    "at the pod limit, all GPUs allocated": (
        [node(pods=1), running_gpu_pod("a", "n", count=8)],
        (8000, 0, 0, 0),
    ),
    "a cordoned node without pods": (
        [node(), node("shut", unschedulable=True), running_gpu_pod("a", "n", count=8)],
        (8000, 0, 0, 8000),
    ),
    "a MIG card without instances": (card(**{GPU: 0}), (0, 1000, 0, 0)),
    "half a card is allocated, part of the rest is partitioned": (
        [
            *card(("3g.40gb", 0, "team/a"), ("1g.10gb", 4, ""), **{LARGE: 1, SMALL: 1}),
            running_gpu_pod("a", "cut", LARGE),
        ],
        (500, 500, 0, 0),
    ),
    "a card that fits no further instance": (
        card(("3g.40gb", 0, ""), *(("1g.10gb", start, "") for start in (4, 5, 6)), **{LARGE: 1, SMALL: 3}),
        (0, 500 + 3 * 143, 0, 0),
    ),
    "shares of one card, two allocated": (
        [shared_node(), running_gpu_pod("a", "n", "nvidia.com/gpu.shared", 2)],
        (500, 500, 0, 0),
    ),
    "shares of one card, three allocated": (
        [shared_node(), running_gpu_pod("a", "n", "nvidia.com/gpu.shared", 3)],
        (750, 250, 250, 0),
    ),
    "a node that is not ready, with two GPUs allocated": (
        [node() | NOT_READY, running_gpu_pod("a", "n", count=2)],
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
    placement = placement_input(*objects)
    return node_capacities(placement.snapshot, placement.mix)


def head(*objects: Json) -> ClusterUtilization:
    return compute_utilization(of(*objects), [])


def test_node_at_its_pod_limit() -> None:
    [full] = of(node(pods=4), *plain(4))
    assert not full.schedulable
    assert (full.largest_island, full.mig_fits) == (0, ())


def test_ranking_mix_includes_all_pods() -> None:
    assert placement_input(node(), ONE, *plain(3)).mix == WorkloadMix(
        {PodDemand(100, 1, 1000): 1.0, PodDemand(100): 3.0}
    )
    assert placement_input(node(), *plain(3)).mix == FLAT_MIX


def labeled(count: int, allocatable: int = 0) -> Json:
    return make_node("n", {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.count": str(count)}, **{GPU: allocatable})


SINGLE = {"nvidia.com/gpu.product": f"{A100}-MIG-1g.10gb", "nvidia.com/mig.strategy": "single"}


def labeled_slices(profile: str, count: int, allocatable: int = 0) -> Json:
    """Return a node with MIG strategy single: the label counts slices."""
    labels = SINGLE | {"nvidia.com/gpu.product": f"{A100}-MIG-{profile}", "nvidia.com/gpu.count": str(count)}
    return make_node("n", labels, **{GPU: allocatable})


KARPENTER = "karpenter.k8s.aws/instance-gpu"
MISSING: dict[str, tuple[Json, int | None]] = {
    "labels state eight GPUs, and none is allocatable": (labeled(8), 8),
    "labels of Karpenter": (make_node("n", {f"{KARPENTER}-name": "h100", f"{KARPENTER}-count": "4"}), 4),
    "labels state the slices of eight GPUs": (labeled_slices("1g.10gb", 56), 8),
    "three slices of each GPU leave a part unused": (labeled_slices("2g.20gb", 24), 8),
    "one slice of each GPU has its media engines": (labeled_slices("1g.10gb.me", 8), 8),
    "the node is cordoned": (labeled(8) | {"spec": {"unschedulable": True}}, 8),
    "one GPU is allocatable": (labeled(8, allocatable=1), 0),
    "labels state no GPU": (labeled(0), None),
    "no labels": (make_node("n"), None),
}


@pytest.mark.parametrize(("machine", "missing"), MISSING.values(), ids=MISSING)
def test_gpus_in_labels_that_are_not_allocatable_are_missing_and_not_installed(
    machine: Json, missing: int | None
) -> None:
    found = of(machine)
    total = total_capacity(found)

    assert [each.missing_gpus for each in found] == ([] if missing is None else [missing])
    assert total.missing_gpus == (missing or 0)
    assert not missing or (total.installed_gpus, total.total_milli) == (0, 0)


def test_slices_with_the_name_of_gpus_are_installed_as_the_gpus_that_they_fill() -> None:
    [found] = of(labeled_slices("2g.20gb", 24, allocatable=24))
    placement = placement_input(labeled_slices("2g.20gb", 24, allocatable=24))

    assert found.installed_gpus == 8
    gpus = node_document(placement.snapshot, 0, found, [])["gpus"]
    assert [gpu["state"] for gpu in gpus] == ["partitioned"] * 8


def test_a_failed_device_plugin_counts_slices_as_slices() -> None:
    found = of(labeled_slices("1g.10gb", 56))
    placement = placement_input(labeled_slices("1g.10gb", 56))
    table = capacity_table(found)

    assert "56 slices 1g.10gb not allocatable" in table[2]
    assert "n: its labels state 56 slices 1g.10gb of 8 GPUs, and none is allocatable" in table[-1]
    assert "56 slices 1g.10gb of 8 GPUs" in node_lines(placement.snapshot, 0, [])[0]


ASSUMED: dict[str, Json] = {
    "of a node whose device plugin failed": labeled(8),
    "of a node without labels": make_node("n"),
    "of a node with slices and no labels": make_node("n", {}, **{LARGE: 2}),
}


@pytest.mark.parametrize("machine", ASSUMED.values(), ids=ASSUMED)
def test_no_gpu_is_listed_that_a_node_is_not_known_to_have(machine: Json) -> None:
    snapshot = placement_input(machine).snapshot
    lines = node_lines(snapshot, 0, [])

    assert node_document(snapshot, 0, None, [])["gpus"] == []
    assert len(lines) == 1
    assert ("has no GPUs" in lines[0]) == (machine == make_node("n"))


def test_of_a_node_with_gpus_of_resource_slices_only_these_are_listed() -> None:
    """The labels of GPU feature discovery state them too."""
    usage = CardUsage(("gpu-0",), "gpu-0", H100, 81920, 0, 1000, 0, {})
    cards = [PublishedCard(PoolId("gpu.nvidia.com", "n"), usage, "")]
    snapshot = placement_input(labeled(1)).snapshot

    assert node_lines(snapshot, 0, [], cards)[1].startswith("gpu.nvidia.com/n/gpu-0")
    assert node_document(snapshot, 0, None, [], cards)["gpus"] == []


UNLINKED: dict[str, tuple[list[Json], str]] = {
    "all, without an agent": (
        [make_node("n", CARD | {"nvidia.com/gpu.count": "8"}, **{LARGE: 16})],
        "All its GPUs are in MIG mode, in which NVLink connects none.",
    ),
    "slices with the name of GPUs": (
        [labeled_slices("1g.10gb", 56, allocatable=56)],
        "All its GPUs are in MIG mode, in which NVLink connects none.",
    ),
    "six of eight, without an agent": (
        [make_node("n", CARD | {"nvidia.com/gpu.count": "8"}, **{LARGE: 12, GPU: 2})],
        "Up to 6 of its 8 GPUs are in MIG mode, in which NVLink connects none; no agent reports which.",
    ),
    "one of two, by the agent": (
        [
            make_node("n", CARD, **{LARGE: 2, GPU: 1}),
            gpu_node_report("n", 2, {}, mig_instances={0: [("3g.40gb", 0, ""), ("3g.40gb", 4, "")]}),
        ],
        "1 of its 2 GPUs is in MIG mode, in which NVLink connects none.",
    ),
}


@pytest.mark.parametrize(("objects", "note"), UNLINKED.values(), ids=UNLINKED)
def test_partitioned_gpus_have_no_links(objects: list[Json], note: str) -> None:
    snapshot = placement_input(*objects).snapshot
    lines = node_lines(snapshot, 0, [])

    assert note in lines
    assert ("NV12" in "".join(lines)) == ("; no agent" in note)


UNUSED: dict[str, tuple[list[Json], int]] = {
    "whole cards": ([node(), ONE], 0),
    "shares": ([shared_node(), running_gpu_pod("a", "n", "nvidia.com/gpu.shared", 3)], 250),
    "slices": (
        [make_node("cut", CARD | {"nvidia.com/gpu.count": "1"}, **{LARGE: 2}), running_gpu_pod("a", "cut", LARGE)],
        500,
    ),
    "slices named as whole GPUs": (
        [make_node("cut", SINGLE, **{GPU: 7})],
        0,
    ),
    "on a cordoned node": ([shared_node() | {"spec": {"unschedulable": True}}], 0),
}


@pytest.mark.parametrize(("objects", "unused"), UNUSED.values(), ids=UNUSED)
def test_unused_parts_are_those_of_partitioned_and_shared_cards(objects: list[Json], unused: int) -> None:
    assert total_capacity(of(*objects)).unused_part_milli == unused


def test_cluster_without_gpus_has_no_unknown_ones() -> None:
    assert total_capacity(()).largest_island == 0


NOTES: dict[str, tuple[list[Json], int | None, list[str]]] = {
    "an unhealthy GPU that is counted as free": (
        [gpu_node("n"), with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0, 3)],
        1,
        ["n: unhealthy GPUs that count as free: 0, 3"],
    ),
    "an unhealthy GPU that is no longer advertised": (
        [gpu_node("n", 3), with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0)],
        2,
        [],
    ),
    "more are reported than the Node has": (
        [gpu_node("n", 3), gpu_node_report("n", 4, BRIDGED)],
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
    "one unhealthy GPU free, one allocated": (
        [
            gpu_node("n"),
            with_gpu_conditions(gpu_node_report("n", 4, BRIDGED, {1: "team/a"}), 0, 1),
            running_gpu_pod("a", "n"),
        ],
        ["unhealthy", "team/a (unhealthy)", "free", "free"],
    ),
    "one that the Node counts no more": (
        [gpu_node("n", 3), with_gpu_conditions(gpu_node_report("n", 4, BRIDGED), 0, conditions=["XID 94"])],
        ["not advertised", "free", "free", "free"],
    ),
    "more are reported than the Node has": (
        [gpu_node("n", 3), gpu_node_report("n", 4, BRIDGED, {2: "team/a"}), running_gpu_pod("a", "n")],
        ["?", "?", "team/a", "?"],
    ),
    "an unreported pod holds an instance on equally partitioned cards": (
        [
            make_node("n", CARD | {"nvidia.com/mig.strategy": "single"}, **{GPU: 2}),
            gpu_node_report("n", 1, {}, mig_instances={0: [("3g.40gb", 0, ""), ("3g.40gb", 4, "")]}),
            running_gpu_pod("a", "n"),
        ],
        ["team/a"],
    ),
}


@pytest.mark.parametrize(("objects", "states"), STATES.values(), ids=STATES)
def test_node_picture(objects: list[Json], states: list[str]) -> None:
    placement = placement_input(*objects)

    assert [gpu["state"] for gpu in node_document(placement.snapshot, 0, None, [])["gpus"]] == states


def machines(replicas: int) -> Json:
    annotations = {"cpu": "64", "memory": "512Gi", "gpu-type": SMALL, "gpu-count": "56"}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "MachineDeployment",
        "metadata": {
            "name": "slices",
            "annotations": {
                "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size": "3",
                **{f"capacity.cluster-autoscaler.kubernetes.io/{key}": value for key, value in annotations.items()},
            },
        },
        "spec": {"replicas": replicas},
    }


def settings(name: str, resources: Json, *, grows: bool = True) -> Json:
    group = {"name": name, "grows": grows, "resources": {"cpu": "64", "memory": "512Gi", **resources}}
    about = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "NodeGroups"}
    return {**about, "metadata": {"name": "groups"}, "nodeGroups": [group]}


LIVE_OF_POOL = make_node("n", {"cloud.google.com/gke-nodepool": "pool", "nvidia.com/gpu.product": H100}, **{GPU: 8})

GROUPS: dict[str, tuple[Json, list[str]]] = {
    "a group of settings": (
        settings("cards", {GPU: "8"}),
        ["node group cards has no node; a new one would have 8 nvidia.com/gpu"],
    ),
    "one that does not grow": (
        settings("cards", {GPU: "8"}, grows=False),
        [
            "node group cards has no node; a new one would have 8 nvidia.com/gpu; "
            "it cannot grow: the settings file says grows: false"
        ],
    ),
    "one with nodes": (settings("pool", {SMALL: "56"}), []),
    "one without GPUs": (settings("cpu", {}), []),
    "machines of Cluster API, none yet": (
        machines(0),
        ["node group slices has no node; a new one would have 56 nvidia.com/mig-1g.10gb"],
    ),
    "machines of Cluster API": (machines(1), []),
}


@pytest.mark.parametrize(("group", "notes"), GROUPS.values(), ids=GROUPS)
def test_groups_without_nodes_are_listed_with_the_gpus_of_a_new_node(group: Json, notes: list[str]) -> None:
    placement = placement_input(LIVE_OF_POOL, group)
    groups = groups_without_nodes(placement.snapshot.fleet, placement.group_sources)

    assert group_notes(groups) == notes
    listed = capacity_document([], groups)["groupsWithoutNodes"]
    assert all(
        f"a new one would have {units} {name}" in note
        for note, each in zip(notes, listed, strict=True)
        for name, units in each["gpusOfNewNode"].items()
    )
