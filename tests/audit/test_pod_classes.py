"""Overhead of a RuntimeClass and the default PriorityClass: quotas count what admission plug-ins add to a pod."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.audit.test_evaluate import evaluate_data
from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.example_cluster import NOW, policies_of, policy, review, view_of
from webhook.audit.evaluate import EvaluationContext
from webhook.model.cluster_view import ClusterView

LIMITS = "mode: enforce\nlimits: {}"
KATA: Json = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "kata"},
    "handler": "kata",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
}
RUNC: Json = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "runc"}, "overhead": None}


def priority(name: str, value: int, *, default: bool = False) -> Json:
    """Return a PriorityClass."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return head | {"value": value} | ({"globalDefault": True} if default else {})


def quota(hard: Json, *priority_classes: str) -> Json:
    """Return a quota, scoped to pods of these PriorityClasses if there are any."""
    spec: Json = {"hard": hard}
    if priority_classes:
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": list(priority_classes)}
        spec["scopeSelector"] = {"matchExpressions": [scope]}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}, "spec": spec}


CPU, NO_PODS = quota({"requests.cpu": "1"}), quota({"pods": "0"}, "high")
HIGH, LOW = priority("high", 100, default=True), priority("low", 1)
POD = make_pod().gpus(1).requests("cpu", "900m")
ON_KATA = make_pod().gpus(1).requests("cpu", "900m").spec(runtimeClassName="kata")


class World(NamedTuple):
    """A pod, the objects of its cluster, and the end of each finding's message."""

    pod: PodMaker
    objects: list[Json]
    want: list[str]


WORLDS = {
    "the overhead of the pod's RuntimeClass exceeds a quota": World(
        ON_KATA,
        [KATA, CPU],
        [
            "requested: requests.cpu=1150m, used: requests.cpu=0, limited: requests.cpu=1; 1 would fit; "
            "RuntimeClass kata adds 250m cpu"
        ],
    ),
    "a pod of another RuntimeClass has no overhead": World(
        make_pod().gpus(1).requests("cpu", "900m").spec(runtimeClassName="runc"), [KATA, RUNC, CPU], []
    ),
    "an unknown RuntimeClass adds nothing": World(ON_KATA, [CPU], []),
    "a pod without RuntimeClass has no overhead": World(POD, [KATA, CPU], []),
    "a LimitRange counts no overhead": World(
        ON_KATA,
        [
            KATA,
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lr", "namespace": "team"}}
            | {"spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]}},
        ],
        [],
    ),
    "the default PriorityClass selects a quota": World(POD, [HIGH, LOW, NO_PODS], ["limited: pods=0; 0 would fit"]),
    "a pod of another PriorityClass is not counted": World(
        make_pod().gpus(1).spec(priorityClassName="low"), [HIGH, LOW, NO_PODS], []
    ),
    "without a default PriorityClass the quota counts no such pod": World(POD, [priority("high", 1), NO_PODS], []),
    "of two defaults the lowest applies": World(POD, [HIGH, priority("less", 5, default=True), NO_PODS], []),
}


def cluster(world: World) -> ClusterView:
    """Return the cluster of a world."""
    return view_of(make_namespace("team"), *world.objects)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_quotas_count_what_classes_add_to_a_pod(world: World) -> None:
    context = EvaluationContext(policies=policies_of(policy(LIMITS)), view=cluster(world), now=NOW)
    messages = [finding.message for finding in evaluate_data(world.pod.build(), context).decision.findings]
    assert [message.endswith(end) for message, end in zip(messages, world.want, strict=True)] == [True] * len(messages)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_a_workload_is_warned_of_what_classes_add_to_its_pods(world: World) -> None:
    spec = {"template": {"spec": world.pod.build()["spec"]}, "replicas": 1}
    metadata = {"name": "work", "namespace": "team"}
    workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    found = review(workload, LIMITS, view=cluster(world)).findings
    assert [one.code for one in found] == ["GPU-Q301"] * len(world.want)


def test_the_overhead_of_an_injected_runtime_class_counts() -> None:
    view = view_of(make_namespace("team"), KATA, CPU)
    inject = f"{LIMITS}\ninjection: {{runtimeClassName: kata}}"
    [exceeded] = (one for one in review(POD, inject, view=view).findings if one.code == "GPU-Q301")
    assert exceeded.message.endswith("RuntimeClass kata adds 250m cpu")
    assert not review(POD, LIMITS, view=view).findings
