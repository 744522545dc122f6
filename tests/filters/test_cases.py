"""Pods that our filters once allowed on other nodes than the scheduler does."""

from __future__ import annotations

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.filters.comparison import MODELS_TESTED_VERSION, our_nodes
from tests.filters.random_clusters import RandomCluster
from tests.filters.scheduler import SchedulerFilters
from webhook.model.filters.pod_ties import ties_of
from webhook.model.pods import parse_pod


def node_with(name: str, **allocatable: str) -> Json:
    """Return a node with other amounts; a resource is written with an underscore for each hyphen."""
    node = make_node(name)
    node["status"]["allocatable"] |= {key.replace("_", "-"): amount for key, amount in allocatable.items()}
    return node


def running_pod(pod: PodMaker, node: str) -> Json:
    """Return a pod on a node; the scheduler tells pods apart by their uids."""
    built = pod.spec(nodeName=node).build()
    built["metadata"]["uid"] = f"uid-{built['metadata']['name']}"
    return built


OF_NO_TENANT = {
    "topologyKey": "kubernetes.io/hostname",
    "labelSelector": {"matchLabels": {"app": "a"}},
    "namespaceSelector": {"matchExpressions": [{"key": "tenant", "operator": "DoesNotExist"}]},
}
CASES: dict[str, tuple[list[Json], PodMaker, list[str]]] = {
    "free memory counts to the byte": (
        [node_with("just", memory="123456789"), node_with("less", memory="123456788")],
        make_pod().requests("memory", "123456789"),
        ["just"],
    ),
    "a container's request of zero keeps the limit of the pod from being its request": (
        [node_with("small", cpu="4")],
        make_pod().spec(resources={"limits": {"cpu": "8"}}).container("more", resources={"requests": {"cpu": "0"}}),
        ["small"],
    ),
}


@pytest.mark.parametrize(("objects", "pod", "nodes"), CASES.values(), ids=CASES)
def test_a_pod_is_allowed_where_the_scheduler_allows_it(
    scheduler_filters: SchedulerFilters, objects: list[Json], pod: PodMaker, nodes: list[str]
) -> None:
    cluster = RandomCluster([make_namespace("team"), *objects], [pod.build()])
    (rejections,) = scheduler_filters.rejections([cluster])
    names = [node["metadata"]["name"] for node in cluster.of_kind("Node")]

    assert [name for name in names if name not in rejections["pod"]] == nodes
    assert our_nodes(cluster)["pod"] == nodes


def test_schedulers_disagree_about_a_selector_of_namespaces_that_no_labels_satisfy(
    scheduler_filters: SchedulerFilters,
) -> None:
    """1.36 selects the pods of every namespace by it, 1.37 those of the namespaces without the label."""
    other = running_pod(make_pod("running").namespace("other").label("app", "a"), "node")
    objects = [make_namespace("team"), make_namespace("other", tenant="y"), make_node("node"), other]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [OF_NO_TENANT]}
    cluster = RandomCluster(objects, [make_pod().spec(affinity={"podAffinity": required}).build()])

    (rejections,) = scheduler_filters.rejections([cluster])

    assert ("node" in rejections["pod"]) is not MODELS_TESTED_VERSION
    assert our_nodes(cluster)["pod"] == ["node"]
    assert ties_of(parse_pod(cluster.pods[0])).depends_on_version  # so that right-sizing relies on neither
