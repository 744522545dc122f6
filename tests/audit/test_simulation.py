"""Simulated pods that cannot be placed."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.engine.decisions import SIZING
from tests.example_cluster import NOW, mig_node, policies_of, policy, view_of, whole_node
from tests.placement.clusters import GPU, gpu_node, placement_input, running_gpu_pod, shared_node
from tests.storage_builders import make_claim, make_volume
from webhook.audit.admission import admitted_pods, arriving_replicas
from webhook.audit.evaluate import EvaluationContext, evaluate_object
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.pod_placement import find_stock_reasons
from webhook.audit.simulation import ArrivingPod, ArrivingReplicas, simulate_pods
from webhook.cache.placement_input import PlacementInput
from webhook.model.cluster_view import ClusterView
from webhook.model.pods import parse_pod
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.filtering import PORTS_IN_USE
from webhook.placement.nodes.pod_requirements import pod_requirements
from webhook.placement.nodes.ranking import FillOrder, NodeRanking
from webhook.report.object_diff import apply_json_patch
from webhook.report.simulation import SimulationResult

SLICE = "nvidia.com/mig-1g.10gb"
MIXED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
H100, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
FULL = "Insufficient nvidia.com/gpu"


def simulate_replicas(cluster: PlacementInput, pod: PodMaker, count: int) -> SimulationResult:
    """Place pods that are admitted as they are."""
    parsed = parse_pod(pod.build())
    arriving = ArrivingReplicas(count, lambda view, more: ArrivingPod(parsed, "", view, more))
    view = ClusterView(cluster.snapshot.fleet)
    *_, last = simulate_pods(cluster, [arriving], ScoringStrategy.TAB, FillOrder.PACK, view)
    return last.result()


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
    result = simulate_replicas(cluster, pod, 3)

    assert set(result.reasons) == {reason}


def test_pods_are_placed_until_the_shares_are_used_up() -> None:
    cluster = placement_input(shared_node())
    result = simulate_replicas(cluster, make_pod().requests(f"{GPU}.shared", "2"), 3)

    assert (result.steps[-1].allocated, result.steps[-1].placed) == (1000, 2)
    assert result.reasons == {f"Insufficient {GPU}.shared": 1}


def test_each_node_takes_one_pod_with_a_host_port() -> None:
    held = make_pod("held").container("web", ports=[{"hostPort": 80}]).spec(nodeName="a").build()
    cluster = placement_input(*(gpu_node(name) for name in "abc"), held | {"status": {"phase": "Running"}})
    result = simulate_replicas(cluster, make_pod().gpus(1).container("web", ports=[{"hostPort": 80}]), 4)

    assert result.steps[-1].placed == 2
    assert result.reasons == {PORTS_IN_USE: 2}


TWO_KINDS: dict[str, tuple[list[Json], int, int]] = {
    "it fits": ([], 2001, 2001),
    "the slices are allocated": ([running_gpu_pod("a", "n", SLICE, 7)], 3002, 1001),
    "the whole cards are allocated": ([running_gpu_pod("a", "n", count=7)], 9001, 7000),
}


@pytest.mark.parametrize(("running_pods", "requested", "allocated"), TWO_KINDS.values(), ids=TWO_KINDS)
def test_both_kinds_of_gpus_of_a_pod_count(running_pods: list[Json], requested: int, allocated: int) -> None:
    """A whole card and seven slices of 143 thousandths."""
    cluster = placement_input(make_node("n", MIXED, **{GPU: 7, SLICE: 7}), *running_pods)

    moment = simulate_replicas(cluster, make_pod().gpus(1).requests(SLICE, "7"), 1).steps[-1]
    assert (moment.requested, moment.allocated) == (requested, allocated)


HOST, ZONE, DISK = "kubernetes.io/hostname", "zone", "ephemeral-storage"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OF_APP = {"labelSelector": {"matchLabels": {"app": "a"}}}
SPREAD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **OF_APP}
CLAIM = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}
TIES: dict[str, Json] = {
    "none": {},
    "a host port": {"containers": [{"name": "web", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    "apart by node": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": HOST, **OF_APP}]}}},
    "apart by zone": {"affinity": {"podAntiAffinity": {REQUIRED: [{"topologyKey": ZONE, **OF_APP}]}}},
    "together": {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": ZONE, **OF_APP}]}}},
    "even by zone": {"topologySpreadConstraints": [{"topologyKey": ZONE, **SPREAD}]},
    "even by node": {"topologySpreadConstraints": [{"topologyKey": HOST, **SPREAD}]},
    "disk": {"containers": [{"name": "web", "resources": {"requests": {DISK: "4Gi"}}}]},
    "a claim for one pod": CLAIM,
}
"""Fields of a pod's specification that tie it to nodes; containers are added to its own."""


def zoned(node: Json, zone: str) -> Json:
    """Return a node in a zone, with some disk."""
    labels = {**node["metadata"]["labels"], ZONE: zone}
    allocatable = {**node["status"]["allocatable"], DISK: "10Gi"}
    metadata, status = {**node["metadata"], "labels": labels}, {**node["status"], "allocatable": allocatable}
    return {**node, "metadata": metadata, "status": status}


def claimed_volume() -> list[Json]:
    """Return a claim for one pod, and its volume."""
    claim = make_claim("data", volume="v", modes=("ReadWriteOncePod",))
    return [claim, make_volume("v")]


@settings(max_examples=20)
@example((0, 0, 1), [("4Gi", 1, "none"), ("60Gi", 2, "apart by node"), ("4Gi", 1, "none")], False)
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)),
    st.lists(
        st.tuples(st.sampled_from(["4Gi", "12Gi", "60Gi"]), st.integers(1, 4), st.sampled_from(list(TIES))),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_replicas_are_admitted_as_if_the_pods_before_them_were_bound(
    units: tuple[int, int, int], deployments: list[tuple[str, int, str]], wait: bool
) -> None:
    """The simulation changes its view step by step; here every state is built from objects."""
    cards, small, large = units
    nodes = [zoned(whole_node(count=cards), "east"), zoned(mig_node(small=small, large=large), "west")]
    nodes += [zoned(mig_node("more", small=small, large=large), "east"), *claimed_volume()]
    policies = policies_of(policy("mode: enforce\nrightSizing: {whenFull: wait}" if wait else SIZING))
    context = EvaluationContext(policies, view_of(*nodes), NOW)
    sources = [pod_source(need, tie) for need, _, tie in deployments]
    first = [next(admitted_pods(source, context)) for source in sources]
    arriving = [
        arriving_replicas(one._replace(replicas=count)) for one, (_, count, _) in zip(first, deployments, strict=True)
    ]

    *_, last = simulate_pods(placement_input(*nodes), arriving, ScoringStrategy.TAB, FillOrder.PACK, context.view)

    bound: list[Json] = []
    placed = 0
    for source, (_, count, _) in zip(sources, deployments, strict=True):
        for _ in range(count):
            now = EvaluationContext(policies, view_of(*nodes, *bound), NOW)
            admitted = next(admitted_pods(source, now))
            state = placement_input(*nodes, *bound)
            ranking = NodeRanking(state.snapshot, ScoringStrategy.TAB, placement_input(*nodes).mix, (), FillOrder.PACK)
            required = pod_requirements(admitted.pod, state.snapshot.fleet)
            excluded = sum(1 << node for node in find_stock_reasons(admitted.pod, state))
            ranked = ranking.rank(structs.replace(required, selected_nodes=required.selected_nodes & ~excluded))
            if ranked:
                placed += 1
                data = apply_json_patch(admitted.checked.stored, admitted.checked.decision.patch)
                name = state.snapshot.fleet.nodes[ranked[0].node].name
                metadata = {**data["metadata"], "name": f"p{placed}"}
                bound.append({**data, "metadata": metadata, "spec": {**data["spec"], "nodeName": name}})
    assert last.result().steps[-1].placed == placed


def pod_source(need: str, tie: str) -> SourceObject:
    pod = make_pod().gpus(1).needs(need).label("app", "a").build()
    fields = dict(TIES[tie])
    pod["spec"]["containers"] += fields.pop("containers", [])
    pod["spec"] |= fields
    [source] = parse_objects("p.json", orjson.dumps(pod))
    assert isinstance(source, SourceObject)
    return source


@settings(max_examples=30)
@example([(3, 4, 1)], "4Gi", 9, False)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=4),
    st.sampled_from(["4Gi", "30Gi", "60Gi"]),
    st.integers(1, 12),
    st.booleans(),
)
def test_check_counts_the_gpus_of_replicas_as_the_simulation_places_them(
    units: list[tuple[int, int, int]], need: str, replicas: int, waits: bool
) -> None:
    """Of pods that exclude each other, `check` knows no nodes: they wait for one, so its counts are others."""
    nodes = [make_node(f"n{i}", NODE_LABELS, **dict(zip(RESOURCES, each, strict=True))) for i, each in enumerate(units)]
    policies = policies_of(policy("mode: enforce\nrightSizing: {whenFull: wait}" if waits else SIZING))
    context = EvaluationContext(policies, view_of(*nodes), NOW)
    source = deployment_source(need, replicas)

    checked = evaluate_object(source, context).decision
    arriving = [arriving_replicas(each) for each in admitted_pods(source, context)]
    *_, last = simulate_pods(placement_input(*nodes), arriving, ScoringStrategy.TAB, FillOrder.PACK, context.view)

    step = last.result().steps[-1]
    assert checked.gpu_milli_after == step.requested


RESOURCES = (GPU, SLICE, "nvidia.com/mig-3g.40gb")
NODE_LABELS = {key: text for key, text in mig_node()["metadata"]["labels"].items() if key != HOST}


def deployment_source(need: str, replicas: int) -> SourceObject:
    """Return a Deployment of pods that declare a need."""
    pod = pod_source(need, "none").data
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    data = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "team"}, "spec": spec}
    [source] = parse_objects("d.json", orjson.dumps(data))
    assert isinstance(source, SourceObject)
    return source
