"""A pod that is right-sized for a new node of a node group fits the template by which an autoscaler judges it.

Both autoscalers run the scheduler's filters on that template: so does this test.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.builders import Json, make_node
from tests.engine.test_growth import GROW, SMALL, settings
from tests.example_cluster import A100, MIXED, apply_patch, review, view_of
from tests.filters.random_clusters import (
    NAMESPACES,
    RandomCluster,
    random_namespace,
    random_node,
    random_pod,
    running_pod,
)
from tests.filters.random_requests import GPU, MIG
from tests.filters.random_volumes import random_volumes
from tests.filters.scheduler import SchedulerFilters
from webhook.model.decisions import OfferChoice

GROUPS, PODS, RUNNING = 150, 10, 8
OTHERS = ["whole", "other", "third", "fourth"]
"""Nodes that CSI drivers and local volumes know."""

ADDITIONS = {
    "hints": "{tolerations: auto, nodeAffinity: auto, spread: preferred}",
    "a label that some templates lack": "{nodeAffinity: {required: [{key: disk, operator: In, values: [ssd]}]}}",
    "a required spread": "{tolerations: auto, spread: required}",
}


@pytest.mark.parametrize("injection", ADDITIONS.values(), ids=ADDITIONS)
def test_a_pod_for_a_new_node_passes_the_filters_of_the_scheduler_on_its_template(
    scheduler_filters: SchedulerFilters, injection: str
) -> None:
    policy = f"{GROW}\ninjection: {injection}"
    clusters = [right_sized_for_template(Random(f"template {number}"), policy) for number in range(GROUPS)]
    for cluster, rejections in zip(clusters, scheduler_filters.rejections(clusters), strict=True):
        for pod in cluster.pods:
            assert rejections[pod["metadata"]["name"]].get("template", {}) == {}, (pod, cluster.of_kind("Node")[-1])
    grown = [pod for cluster in clusters for pod in cluster.pods]
    assert len(grown) > GROUPS // 2
    assert sum(bool(pod["spec"].get("volumes")) for pod in grown) > GROUPS // 50


def right_sized_for_template(random: Random, policy: str) -> RandomCluster:
    """Return a random template as the only node, and the pods that were right-sized for its group."""
    template = random_node(random, "template") | {"spec": {"taints": random_node(random, "")["spec"]["taints"]}}
    template["metadata"]["labels"]["kubernetes.io/hostname"] = "template"  # each node has a name of its own
    amounts = template["status"]["allocatable"]
    for amount in (GPU, MIG):
        amounts.pop(amount, None)
    amounts[SMALL] = "7"
    group = settings(
        labels={key: value for key, value in template["metadata"]["labels"].items() if "hostname" not in key},
        taints=template["spec"]["taints"],
        agentLabels=MIXED,
        resources={name: amount for name, amount in amounts.items() if name != "pods"},
    )
    cluster = [random_namespace(random, name) for name in NAMESPACES] + random_volumes(random, NAMESPACES, OTHERS)
    whole = make_node("whole", A100 | {"kubernetes.io/hostname": "whole"}, **{GPU: 8})
    cluster += [whole, *(running_pod(random, f"running-{number}", "whole") for number in range(RUNNING))]
    view = view_of(*cluster, group)
    grown = []
    for number in range(PODS):
        pod = with_one_gpu(random_pod(random, f"pod-{number}", ["whole"]))
        decision = review(pod, policy, view=view)
        changed = apply_patch(pod, decision)
        assert review(changed, policy, view=view).patch == (), "a second call changes its own output"
        if isinstance(decision.outcome, OfferChoice):
            grown.append(changed)
    return RandomCluster([*cluster, template], grown)


def with_one_gpu(pod: Json) -> Json:
    """Return the pod with one GPU in its first container, and the need for less."""
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        for side in container.get("resources", {}).values():
            for name in (GPU, MIG):
                side.pop(name, None)
    resources = pod["spec"]["containers"][0].setdefault("resources", {})
    for side in ("limits", "requests"):
        resources.setdefault(side, {})[GPU] = "1"
    pod["metadata"]["annotations"] = {"rightslice.dev/gpu-memory": "8Gi"}
    return pod
