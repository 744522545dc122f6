"""A real Karpenter: the same pods as they are, naively rewritten, and rewritten by Rightslice."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import pytest

from tests.builders import make_node, make_pod
from tests.cluster.client import Json
from tests.cluster.installation import Installation, install_from_page
from tests.cluster.karpenter import (
    API,
    CARDS,
    MIG_TAINT,
    POOL,
    SLICE,
    new_nodes,
    remove_new_nodes,
    run_karpenter,
    settle_new_nodes,
)
from tests.cluster.nodes import add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.pod_creation import create_pods
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import register_patching_webhook
from tests.controlplane.build_cache import print_message
from tests.example_cluster import MIXED, policies_of, policy
from webhook.audit.cluster_reader import ClusterReader
from webhook.installing.cluster_health import check_node_groups
from webhook.installing.facts import ClusterFacts, DiagnosticResult, read_cluster_facts
from webhook.kube.api import KubeClient
from webhook.policy.group_growth import find_group_problems

LARGE = "nvidia.com/mig-3g.40gb"
POLICIES = "/apis/rightslice.dev/v1alpha1/gpupolicies"
PODS = int(os.environ.get("RIGHTSLICE_SCALED_PODS", "60"))
"""Half of them need a small slice, which new nodes have; half need a large one, which only one node has."""

NEEDS = {"8Gi": SLICE, "20Gi": LARGE}
"""What a pod needs, and the smallest slice that covers it."""

LOOK_SECONDS = 0.2
"""Between two looks at the new nodes: each lists all nodes."""

RETRY_SECONDS = 12
"""Karpenter looks again at pods that it could not serve after ten seconds."""


class ScalingOutcome(NamedTuple):
    """What came of all pods: those that no node will ever serve by name, the GPUs that were bought, the new nodes."""

    pending: list[str]
    gpus: int
    pools: list[str]


@pytest.fixture(scope="module")
def site(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Karpenter and Rightslice, and a node without a group that alone has large slices."""
    nodes = add_nodes(plane, [make_node("leased", MIXED, **{LARGE: 2})])
    try:
        with (
            run_karpenter(plane, tmp_path_factory.mktemp("karpenter")),
            install_from_page(plane, tmp_path_factory.mktemp("installed")) as installation,
        ):
            yield installation
    finally:
        remove_nodes(plane, nodes)


def rewrite_naively(request: Json) -> list[Json]:
    """Return a patch that gives a pod the smallest slice that covers its need, as a live node advertises it."""
    pod = request["object"]
    resource = NEEDS[pod["metadata"]["annotations"]["rightslice.dev/gpu-memory"]]
    amounts = {"limits": {resource: "1"}, "requests": {resource: "1"}}
    tolerations = [*pod["spec"].get("tolerations", ()), {"operator": "Exists", "key": MIG_TAINT["key"]}]
    return [
        {"op": "replace", "path": "/spec/containers/0/resources", "value": amounts},
        {"op": "add", "path": "/spec/tolerations", "value": tolerations},
    ]


@contextmanager
def growing_policy(plane: Plane, namespace: str) -> Iterator[None]:
    """Serve a policy for the block that right-sizes the pods of a namespace, whose node groups grow."""
    spec = {
        "mode": "enforce",
        "match": {"namespaces": [namespace]},
        "rightSizing": {"whenFull": "grow"},
        "injection": {"tolerations": "auto"},
    }
    head = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": namespace}}
    plane.api.create(POLICIES, {**head, "spec": spec})
    pods, probe = f"/api/v1/namespaces/{namespace}/pods", pod_of(namespace, 0)
    try:
        eventually(lambda: SLICE in str(plane.api.create(pods, probe, dryRun="All")["spec"]))  # the node is known
        yield
    finally:
        plane.api.delete(f"{POLICIES}/{namespace}")


def pod_of(namespace: str, number: int) -> Json:
    """Return one of the pods: it requests a whole GPU, and declares that it needs less."""
    need = list(NEEDS)[number % len(NEEDS)]
    return make_pod(f"pod-{number}").namespace(namespace).gpus(1).needs(need).requests("cpu", "100m").build()


@contextmanager
def node_with_slices(plane: Plane) -> Iterator[None]:
    """Let Karpenter create a node of the slices' pool for the block; all its nodes are removed afterwards."""
    path = "/api/v1/namespaces/default/pods"
    seed = make_pod("seed").namespace("default").requests(SLICE, "1").spec(tolerations=[{"operator": "Exists"}])
    plane.api.create(path, seed.build())
    try:
        eventually(lambda: settle_new_nodes(plane) and "nodeName" in plane.api.get(f"{path}/seed")["spec"])
        # One that is deleted before leaves its node behind.
        eventually(lambda: settle_new_nodes(plane) and not claims_in_progress(plane))
        yield
    finally:
        plane.api.delete(f"{path}/seed", gracePeriodSeconds="0")
        remove_new_nodes(plane)


def scale_for(plane: Plane, namespace: str, rewriting: AbstractContextManager[None]) -> ScalingOutcome:
    """Create all pods, and return what came of them. A node of the slices' pool is there already."""
    pods = [pod_of(namespace, number) for number in range(PODS)]
    with node_with_slices(plane):
        with rewriting, ThreadPoolExecutor() as threads:
            creating = threads.submit(create_pods, plane, pods)
            while not creating.done():
                settle_new_nodes(plane)
                time.sleep(LOOK_SECONDS)
            assert [each.message for each in creating.result() if not each.created] == []
        pending, nodes = wait_for_nodes(plane, namespace), new_nodes(plane)
        plane.api.delete(f"/api/v1/namespaces/{namespace}/pods", gracePeriodSeconds="0")
        return ScalingOutcome(pending, CARDS * len(nodes), [node["metadata"]["labels"][POOL] for node in nodes])


def wait_for_nodes(plane: Plane, namespace: str) -> list[str]:
    """Settle new nodes until nothing changes any more; return the pods that have no node."""
    waiting, since = ["?"], time.monotonic()
    deadline = since + 600
    while waiting and time.monotonic() < since + RETRY_SECONDS:
        assert time.monotonic() < deadline, f"{len(waiting)} pods still get nodes"
        settled = settle_new_nodes(plane) and not claims_in_progress(plane)
        found = pods_without_node(plane, namespace)
        if not settled or found != waiting:
            waiting, since = found, time.monotonic()
        time.sleep(LOOK_SECONDS)
    return waiting


def pods_without_node(plane: Plane, namespace: str) -> list[str]:
    """Return the names of the pods that have no node."""
    pods: list[Json] = plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return sorted(pod["metadata"]["name"] for pod in pods if "nodeName" not in pod["spec"])


def claims_in_progress(plane: Plane) -> bool:
    """Return whether Karpenter still waits for a node that it has asked for."""
    claims: list[Json] = plane.api.get(f"{API}/nodeclaims")["items"]
    ready = ({c["type"]: c["status"] for c in claim.get("status", {}).get("conditions", ())} for claim in claims)
    return any(conditions.get("Initialized") != "True" for conditions in ready)


def refused_by_karpenter(plane: Plane, namespace: str) -> set[str]:
    """Return the names of pods for which Karpenter found no instance type."""
    events: list[Json] = plane.api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    refusal = "no instance type has enough resources"
    return {each["involvedObject"]["name"] for each in events if refusal in each.get("message", "")}


@contextmanager
def limited_pool(plane: Plane, nodes: int) -> Iterator[None]:
    """Limit the nodes of the slices' pool for the block."""
    path = f"{API}/nodepools/slices"
    plane.api.patch(path, {"spec": {"limits": {"nodes": str(nodes)}}}, "merge")
    try:
        yield
    finally:
        plane.api.patch(path, {"spec": {"limits": None}}, "merge")


def test_pods_beyond_the_limit_of_a_node_pool_keep_whole_gpus_and_wait_for_nothing(site: Installation) -> None:
    """Of the small pods, the only node of slices serves all but one slice less than it has; others get cards."""
    site.plane.add_namespace("limited")
    with limited_pool(site.plane, 1):
        outcome = scale_for(site.plane, "limited", growing_policy(site.plane, "limited"))

    assert outcome.pending == []
    assert outcome.pools.count("slices") == 1
    assert outcome.pools.count("cards") >= 1


def test_only_rewriting_with_regard_to_node_groups_saves_gpus_and_leaves_no_pod_waiting(site: Installation) -> None:
    plane = site.plane
    for name in ("untouched", "naive", "grown"):
        plane.add_namespace(name)
    untouched = scale_for(plane, "untouched", nullcontext())
    naive = scale_for(plane, "naive", register_patching_webhook(plane, "naive", pod_of("naive", 0), rewrite_naively))
    refused = refused_by_karpenter(plane, "naive")
    grown = scale_for(plane, "grown", growing_policy(plane, "grown"))
    counts = "; ".join(f"{len(each.pending)}, {each.gpus}" for each in (untouched, naive, grown))
    print_message(f"{PODS} pods as they are, rewritten naively, and by us; never scheduled, and GPUs bought: {counts}")

    assert untouched.pending == []
    assert len(naive.pending) == PODS // 2 - 2
    assert set(naive.pending) <= refused
    assert grown.pending == []
    assert grown.gpus < untouched.gpus
    assert grown.pools.count("slices") > 1


def test_commands_know_what_a_node_overlay_adds_to_new_nodes(site: Installation) -> None:
    async def read_facts() -> ClusterFacts:
        async with await KubeClient.connect(str(site.plane.kubeconfig)) as api:
            return await read_cluster_facts(api)

    grow = policies_of(policy("rightSizing: {whenFull: grow}\ninjection: {tolerations: auto}")).policies
    with node_with_slices(site.plane):
        results = list(check_node_groups(asyncio.run(read_facts()), grow))
        with ClusterReader(str(site.plane.kubeconfig)) as cluster:
            problems = list(find_group_problems(grow, cluster.view()))

    assert results == [DiagnosticResult.ok(f"node group slices grows for {SLICE}", f"by {POOL}")]
    assert problems == []
