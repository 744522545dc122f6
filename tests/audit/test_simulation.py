"""Simulated pods that cannot be placed."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.builders import Json, PodMaker, make_node, make_pod
from tests.engine.decisions import SIZING
from tests.example_cluster import NOW, mig_node, policies_of, policy, view_of, whole_node
from tests.placement.clusters import GPU, gpu_node, placement_input, requirements_of, running_gpu_pod, shared_node
from webhook.audit.admission import admitted_pods, arriving_replicas
from webhook.audit.evaluate import EvaluationContext
from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.simulation import ArrivingPod, ArrivingReplicas, simulate_pods
from webhook.cache.placement_input import PlacementInput
from webhook.model.cluster_view import ClusterView
from webhook.model.filters.node_ports import ALL_INTERFACES, HostPort
from webhook.placement.fragmentation.strategies import ScoringStrategy
from webhook.placement.nodes.filtering import PORTS_IN_USE
from webhook.placement.nodes.pod_requirements import PodRequirements, pod_requirements
from webhook.placement.nodes.ranking import FillOrder, NodeRanking
from webhook.report.object_diff import apply_json_patch
from webhook.report.simulation import SimulationResult

SLICE = "nvidia.com/mig-1g.10gb"
MIXED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
H100, L4 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
SELECTOR = "node(s) didn't match Pod's node affinity/selector"
FULL = "Insufficient nvidia.com/gpu"


def simulate_replicas(cluster: PlacementInput, required: PodRequirements, count: int) -> SimulationResult:
    """Place pods that are admitted as they are."""
    arriving = ArrivingReplicas(count, lambda view, more: ArrivingPod(required, "", view, more))
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
    result = simulate_replicas(cluster, requirements_of(pod, cluster.snapshot), 3)

    assert set(result.reasons) == {reason}


def test_pods_are_placed_until_the_shares_are_used_up() -> None:
    cluster = placement_input(shared_node())
    required = requirements_of(make_pod().requests(f"{GPU}.shared", "2"), cluster.snapshot)
    result = simulate_replicas(cluster, required, 3)

    assert (result.steps[-1].allocated, result.steps[-1].placed) == (1000, 2)
    assert result.reasons == {f"Insufficient {GPU}.shared": 1}


def test_each_node_takes_one_pod_with_a_host_port() -> None:
    ports = (HostPort(80, "TCP", ALL_INTERFACES),)
    held = make_pod("held").container("web", ports=[{"hostPort": 80}]).spec(nodeName="a").build()
    cluster = placement_input(*(gpu_node(name) for name in "abc"), held | {"status": {"phase": "Running"}})
    required = requirements_of(make_pod().gpus(1), cluster.snapshot)
    arriving = ArrivingReplicas(4, lambda view, more: ArrivingPod(required, "", view, more, ports=ports))
    view = ClusterView(cluster.snapshot.fleet)
    *_, last = simulate_pods(cluster, [arriving], ScoringStrategy.TAB, FillOrder.PACK, view)

    assert last.result().steps[-1].placed == 2
    assert last.result().reasons == {PORTS_IN_USE: 2}


TWO_KINDS: dict[str, tuple[list[Json], int, int]] = {
    "it fits": ([], 2001, 2001),
    "the slices are allocated": ([running_gpu_pod("a", "n", SLICE, 7)], 3002, 1001),
    "the whole cards are allocated": ([running_gpu_pod("a", "n", count=7)], 9001, 7000),
}


@pytest.mark.parametrize(("running_pods", "requested", "allocated"), TWO_KINDS.values(), ids=TWO_KINDS)
def test_both_kinds_of_gpus_of_a_pod_count(running_pods: list[Json], requested: int, allocated: int) -> None:
    """A whole card and seven slices of 143 thousandths."""
    cluster = placement_input(make_node("n", MIXED, **{GPU: 7, SLICE: 7}), *running_pods)
    required = requirements_of(make_pod().gpus(1).requests(SLICE, "7"), cluster.snapshot)

    moment = simulate_replicas(cluster, required, 1).steps[-1]
    assert (moment.requested, moment.allocated) == (requested, allocated)


NEEDS = st.sampled_from(["4Gi", "12Gi", "60Gi"])


@settings(max_examples=15)
@given(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2)),
    st.lists(
        st.tuples(st.sampled_from(["4Gi", "12Gi", "60Gi"]), st.integers(1, 5), st.booleans()), min_size=1, max_size=4
    ),
    st.booleans(),
)
def test_replicas_are_admitted_as_if_the_pods_before_them_were_bound(
    units: tuple[int, int, int], deployments: list[tuple[str, int, bool]], wait: bool
) -> None:
    """The simulation changes its view step by step; here every state is built from objects."""
    cards, small, large = units
    nodes = [whole_node(count=cards), mig_node(small=small, large=large)]
    policies = policies_of(policy("mode: enforce\nrightSizing: {whenFull: wait}" if wait else SIZING))
    context = EvaluationContext(policies, view_of(*nodes), NOW)
    sources = [pod_source(need, port=port) for need, _, port in deployments]
    first = [next(admitted_pods(source, context)) for source in sources]
    arriving = [
        arriving_replicas(one._replace(replicas=count), context.view.fleet)
        for one, (_, count, _) in zip(first, deployments, strict=True)
    ]

    *_, last = simulate_pods(placement_input(*nodes), arriving, ScoringStrategy.TAB, FillOrder.PACK, context.view)

    bound: list[Json] = []
    placed = 0
    for source, (_, count, port) in zip(sources, deployments, strict=True):
        for _ in range(count):
            now = EvaluationContext(policies, view_of(*nodes, *bound), NOW)
            admitted = next(admitted_pods(source, now))
            state = placement_input(*nodes, *bound)
            ranking = NodeRanking(state.snapshot, ScoringStrategy.TAB, placement_input(*nodes).mix, (), FillOrder.PACK)
            required = pod_requirements(admitted.pod, state.snapshot.fleet)
            held = sum(1 << i for i, node in enumerate(state.snapshot.fleet.nodes) if port and node.name in state.ports)
            ranked = ranking.rank(structs.replace(required, selected_nodes=required.selected_nodes & ~held))
            if ranked:
                placed += 1
                data = apply_json_patch(admitted.checked.stored, admitted.checked.decision.patch)
                name = state.snapshot.fleet.nodes[ranked[0].node].name
                metadata = {**data["metadata"], "name": f"p{placed}"}
                bound.append({**data, "metadata": metadata, "spec": {**data["spec"], "nodeName": name}})
    assert last.result().steps[-1].placed == placed


def pod_source(need: str, *, port: bool = False) -> SourceObject:
    pod = make_pod().gpus(1).needs(need)
    if port:
        pod.container("web", ports=[{"hostPort": 80}])
    [source] = parse_objects("p.json", orjson.dumps(pod.build()))
    assert isinstance(source, SourceObject)
    return source
