"""Workloads with more pods than the nodes can run: how many would run is reported, and `place` counts the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.audit.test_pod_placement import place_pod
from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.engine.decisions import SIZING
from tests.engine.test_workload_review import workload
from tests.example_cluster import mig_node, review, tainted, view_of, whole_node
from tests.placement.clusters import GPU, gpu_node, running_gpu_pod
from webhook.model.decisions import Decision

MOST = 2**31 - 1
TAINT = {"key": GPU, "value": "present", "effect": "NoSchedule"}
AUTO = "mode: enforce\ninjection: {tolerations: auto}"
POLICY = "mode: enforce\nlimits: {}"


def deployment(replicas: int, pod: PodMaker) -> Json:
    return workload("Deployment", pod, replicas=replicas)


def apart(by: str, labels: Json | None = None, gpus: int = 1) -> PodMaker:
    """Return a pod that excludes pods with these labels from its domain."""
    term = {"topologyKey": by, "labelSelector": {"matchLabels": labels or {"app": "a"}}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return make_pod().gpus(gpus).spec(affinity={"podAntiAffinity": required})


def host(name: str, gpus: int = 4, **labels: str) -> Json:
    """Return a node with whole GPUs and the label of its name."""
    node = gpu_node(name, gpus)
    node["metadata"]["labels"] |= {"kubernetes.io/hostname": name} | labels
    return node


def found_by(data: Json, *objects: Json, policy: str = POLICY) -> list[str]:
    decision = review(data, policy, view=view_of(make_namespace("team"), *objects))
    return [each.message for each in decision.findings if each.code == "GPU-T206"]


ONE = make_pod().gpus(1)
NO_MORE = "the nodes that they may use have too few GPUs for more"
EXCLUDING = "they exclude each other by their anti-affinity"
DAEMON = "its controller also creates pods on nodes without 1 nvidia.com/gpu"
CPU_NODE = make_node("cpu", {})
CASES: dict[str, tuple[Json, tuple[Json, ...], list[str]]] = {
    "as many as fit": (deployment(12, ONE), (host("a", 8), host("b", 4)), []),
    "one more than fit": (
        deployment(13, ONE),
        (host("a", 8), host("b", 4)),
        [f"at most 12 of 13 pods would run at once: {NO_MORE}"],
    ),
    "the most replicas that exist": (
        deployment(MOST, ONE),
        (host("a", 8),),
        [f"at most 8 of {MOST} pods would run at once: {NO_MORE}"],
    ),
    "three of eight GPUs each": (
        deployment(5, make_pod().gpus(3)),
        (host("a", 8), host("b", 8)),
        [f"at most 4 of 5 pods would run at once: {NO_MORE}"],
    ),
    "a selected node": (
        deployment(5, make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "b"})),
        (host("a", 8), host("b", 4)),
        [f"at most 4 of 5 pods would run at once: {NO_MORE}"],
    ),
    "GPUs that others hold": (
        deployment(9, ONE),
        (host("a", 8), running_gpu_pod("x", "a", GPU, 6)),
        [f"at most 8 of 9 pods would run at once, 2 of them now: {NO_MORE}"],
    ),
    "enough but for others": (deployment(8, ONE), (host("a", 8), running_gpu_pod("x", "a", GPU, 6)), []),
    "parallel pods of a Job": (
        workload("Job", ONE, "batch/v1", parallelism=20, completions=9),
        (host("a", 8),),
        [f"at most 8 of 9 pods would run at once: {NO_MORE}"],
    ),
    "one on each node by anti-affinity": (
        deployment(3, apart("kubernetes.io/hostname")),
        (host("a", 8), host("b", 4)),
        [f"at most 2 of 3 pods would run at once: {EXCLUDING}"],
    ),
    "one in each zone": (
        deployment(3, apart("zone")),
        (host("a", zone="1"), host("b", zone="1"), host("c", zone="2")),
        [f"at most 2 of 3 pods would run at once: {EXCLUDING}"],
    ),
    "nodes outside all zones exclude nothing": (deployment(5, apart("zone")), (host("a", zone="1"), host("b")), []),
    "anti-affinity to others": (deployment(8, apart("kubernetes.io/hostname", {"app": "b"})), (host("a", 8),), []),
    "a host port": (
        deployment(2, make_pod().gpus(1).container("web", ports=[{"containerPort": 80, "hostPort": 80}])),
        (host("a", 8),),
        [f"at most 1 of 2 pods would run at once: {NO_MORE}"],
    ),
    "a DaemonSet whose nodes all have GPUs": (workload("DaemonSet", ONE), (host("a"), host("b")), []),
    "a DaemonSet on nodes without GPUs too": (
        workload("DaemonSet", ONE),
        (host("a"), host("b"), CPU_NODE),
        [f"at most 2 of 3 pods would run at once: {DAEMON}"],
    ),
    "a DaemonSet with a selector": (
        workload("DaemonSet", make_pod().gpus(1).spec(nodeSelector={"kubernetes.io/hostname": "a"})),
        (host("a"), CPU_NODE),
        [],
    ),
    "no node": (deployment(9, ONE), (), []),
}


@pytest.mark.parametrize(("data", "objects", "messages"), CASES.values(), ids=CASES)
def test_pods_that_no_node_could_run_are_reported(data: Json, objects: tuple[Json, ...], messages: list[str]) -> None:
    assert found_by(data, *objects) == messages


def test_a_daemon_set_gets_no_pod_on_nodes_whose_taint_only_admission_would_tolerate() -> None:
    nodes = tainted(host("a"), TAINT), CPU_NODE, make_node("cpu-2", {})
    tolerating = make_pod().gpus(1).spec(tolerations=[{"key": GPU, "operator": "Exists"}])

    assert found_by(workload("DaemonSet", ONE), *nodes, policy=AUTO) == [f"none of 2 pods would run at once: {DAEMON}"]
    assert found_by(workload("DaemonSet", tolerating), *nodes, policy=AUTO) == [
        f"at most 1 of 3 pods would run at once: {DAEMON}"
    ]


def test_right_sized_pods_may_take_slices_and_whole_gpus() -> None:
    small = make_pod().gpus(1).needs("8Gi")

    def messages(replicas: int) -> list[str]:
        return found_by(deployment(replicas, small), whole_node(), mig_node(), policy=SIZING)

    assert messages(8 + 6 + 7 + 2) == []
    assert messages(8 + 6 + 7 + 2 + 1) == [f"at most 23 of 24 pods would run at once: {NO_MORE}"]


def quota(gpus: int) -> Json:
    hard = {"requests.nvidia.com/gpu": str(gpus)}
    status = {"hard": hard, "used": {"requests.nvidia.com/gpu": "0"}}
    metadata = {"name": "gpus", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}, "status": status}


def test_a_quota_is_charged_for_each_node_of_a_daemon_set() -> None:
    view = view_of(make_namespace("team"), host("a"), host("b"), host("c"), quota(2))
    limits = "mode: enforce\nlimits: {resourceQuotas: evaluate}"

    decision = review(workload("DaemonSet", ONE), limits, view=view)

    [found] = [each for each in decision.findings if each.code == "GPU-Q301"]
    assert found.message.startswith("2 of 3 pods would be admitted, then: exceeded quota: gpus")


def test_pods_that_a_changed_daemon_set_has_already_are_not_charged_again() -> None:
    view = view_of(make_namespace("team"), host("a"), host("b"), host("c"), quota(2))
    limits, data = "mode: enforce\nlimits: {resourceQuotas: evaluate}", workload("DaemonSet", ONE)

    decision = review(data, limits, view=view, operation="UPDATE", load_old_object=lambda: data)

    assert [each.code for each in decision.findings] == []


def reported(decision: Decision, replicas: int) -> int:
    """Return how many pods the finding says would run now; all without a finding."""
    [message] = [each.message for each in decision.findings if each.code == "GPU-T206"] or [""]
    numbers = [int(word) for word in message.replace(",", "").split() if word.isdigit()]
    return replicas if not message else numbers[2] if "now" in message else 0 if "none" in message else numbers[0]


KINDS: dict[str, Any] = {
    "replicas": lambda number, pod: deployment(number, pod),
    "a DaemonSet": lambda _, pod: workload("DaemonSet", pod),
}


@pytest.mark.parametrize("build", KINDS.values(), ids=KINDS)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    tainted_nodes=st.sets(st.integers(0, 3)),
    wanted=st.integers(1, 3),
    replicas=st.integers(2, 20),
    key=st.sampled_from(["", "kubernetes.io/hostname", "zone"]),
    zones=st.lists(st.sampled_from(["1", "2", ""]), min_size=4, max_size=4),
)
@example(  # nodes with and without a zone, and one with GPUs for two
    sizes=[1, 1, 2], tainted_nodes=set(), wanted=1, replicas=2, key="zone", zones=["1", "1", "", ""]
)
@settings(max_examples=60)
def test_check_and_place_count_the_same_pods(
    build: Any, sizes: list[int], tainted_nodes: set[int], wanted: int, replicas: int, key: str, zones: list[str]
) -> None:
    nodes = [
        host(f"n{i}", size, **({"zone": zones[i]} if zones[i] else {})) if size else make_node(f"n{i}", {})
        for i, size in enumerate(sizes)
    ]
    nodes = [tainted(node, TAINT) if i in tainted_nodes else node for i, node in enumerate(nodes)]
    data = build(replicas, apart(key, gpus=wanted) if key else make_pod().gpus(wanted))

    decision = review(data, POLICY, view=view_of(make_namespace("team"), *nodes))
    placed = place_pod(data, *nodes)

    blocked = {each.code for each in decision.findings} & {"GPU-T201", "GPU-T202", "GPU-T205"}
    assert blocked or reported(decision, placed.replicas) == min(placed.fits, placed.replicas)
