"""Replicas of a workload are decided one after another: what one gets is not free for the next."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.builders import Json, make_namespace, make_node, make_pod
from tests.engine.test_class_offers import CLASSES, device_node, slices
from tests.engine.test_replicas import GPU_KEY, deployment, job_set, quota
from tests.example_cluster import MIXED, NO_USAGE, NOW, mig_node, policies_of, policy, request_of, review, view_of
from tests.example_cluster import whole_node as whole
from webhook.engine.decide import decide_pod
from webhook.engine.pod_context import PodDecision
from webhook.engine.workload_review import pods_of_workload
from webhook.model.assumed_pods import AssumedPod, pods_with_units
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, ReplicaCounts

SIZING = "mode: enforce\nrightSizing: {whenFull: keep}"
WAITING = "mode: enforce\nrightSizing: {whenFull: wait}"
SMALL = make_pod().gpus(1).needs("8Gi")
OTHERS_OF_APP = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [OTHERS_OF_APP]}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of each decision about a pod."""
    calls: list[object] = []

    def decide_and_note(*arguments: Any) -> PodDecision:
        calls.append(arguments)
        return decide_pod(*arguments)

    monkeypatch.setattr("webhook.engine.decide.decide_pod", decide_and_note)
    return calls


def counts_of(data: Json, *nodes: Json, text: str = SIZING) -> ReplicaCounts:
    found = review(data, text, nodes=nodes).pods
    assert found is not None
    return found


def test_ten_replicas_with_seven_free_slices_are_promised_seven() -> None:
    decision = review(deployment(10, SMALL), SIZING, nodes=[mig_node(large=0)])

    assert decision.pods == ReplicaCounts(right_sized=7, kept=3)
    assert decision.gpu_milli_before - decision.gpu_milli_after == 7 * (1000 - 143)
    [found] = [each for each in decision.findings if each.code == "GPU-R101"]
    assert found.message.startswith("7 of its 10 pods will be right-sized to nvidia.com/mig-1g.10gb")
    assert found.message.endswith("no more of these are free: of the others, 3 will keep the request")


def test_replicas_get_the_next_larger_slice_before_they_keep_whole_gpus() -> None:
    decision = review(deployment(12, SMALL), SIZING, nodes=[mig_node()])

    assert decision.pods == ReplicaCounts(right_sized=9, kept=3)
    [found] = [each for each in decision.findings if each.code == "GPU-R101"]
    others = "of the others, 2 will get nvidia.com/mig-3g.40gb, 3 will keep the request"
    assert found.message.endswith(f"no more of these are free: {others}")


def node_of_sizes(sizes: int) -> Json:
    """Return a node with one slice of each size."""
    names = {f"1g.{5 + number}gb": 5000 + 1000 * number for number in range(sizes)}
    labels = {
        f"nvidia.com/mig-{name}.{key}": text
        for name, size in names.items()
        for key, text in (("product", f"A100-MIG-{name}"), ("memory", str(size)), ("count", "1"))
    }
    return make_node("sizes", MIXED | labels, **{"nvidia.com/gpu": 8} | {f"nvidia.com/mig-{name}": 1 for name in names})


CASES: dict[str, tuple[Json, tuple[Json, ...], str, ReplicaCounts]] = {
    "more pods than there are GPUs": (
        deployment(20, SMALL),
        (mig_node(large=0),),
        SIZING,
        ReplicaCounts(right_sized=7, kept=13),
    ),
    "pods that may wait all get slices": (
        deployment(10, SMALL),
        (mig_node(large=0),),
        WAITING,
        ReplicaCounts(right_sized=10),
    ),
    "whole GPUs without a smaller need": (
        deployment(10, make_pod().gpus(1)),
        (whole(),),
        SIZING,
        ReplicaCounts(kept=10),
    ),
    "several GPUs on one node": (
        deployment(5, make_pod().gpus(3)),
        (whole("a"), whole("b")),
        SIZING,
        ReplicaCounts(kept=5),
    ),
    "one pod": (deployment(1, SMALL), (mig_node(),), SIZING, ReplicaCounts(right_sized=1)),
    "no pod": (deployment(0, SMALL), (mig_node(),), SIZING, ReplicaCounts()),
    "a cluster without nodes": (deployment(3, SMALL), (), SIZING, ReplicaCounts(kept=3)),
    "a node selector": (
        deployment(9, make_pod().gpus(1).needs("8Gi").spec(nodeSelector={"kubernetes.io/hostname": "b"})),
        (mig_node("a", large=0), mig_node("b", small=2, large=0)),
        SIZING,
        ReplicaCounts(right_sized=2, kept=7),
    ),
    "replicas that exclude each other": (
        deployment(6, make_pod().gpus(1).needs("8Gi").spec(affinity=APART)),
        (mig_node("a", large=0), mig_node("b", large=0), mig_node("c", large=0), whole("d")),
        SIZING,
        ReplicaCounts(right_sized=3, kept=3),
    ),
    "pods with a host port": (
        deployment(3, make_pod().gpus(1).needs("8Gi").container("web", ports=[{"hostPort": 80}])),
        (mig_node("a", large=0), mig_node("b", large=0), whole("d")),
        SIZING,
        ReplicaCounts(right_sized=2, kept=1),
    ),
    "pods with a host port, two slices of different sizes": (
        deployment(4, make_pod().gpus(1).needs("8Gi").container("web", ports=[{"hostPort": 80}])),
        (mig_node("a"), mig_node("b")),
        SIZING,
        ReplicaCounts(right_sized=2, kept=2),
    ),
    "more sizes of slices than are tried": (
        deployment(30, make_pod().gpus(1).needs("4Gi")),
        (node_of_sizes(12),),
        SIZING,
        ReplicaCounts(right_sized=9, kept=21),
    ),
    "a gang": (
        job_set(3),
        (mig_node(),),
        SIZING,
        ReplicaCounts(kept=3),
    ),
    "the second template gets what the first leaves": (
        job_set(5, 5),
        (whole(),),
        SIZING,
        ReplicaCounts(kept=10),
    ),
}


@pytest.mark.parametrize(("data", "nodes", "text", "want"), CASES.values(), ids=CASES)
def test_the_pods_of_a_workload_are_counted_by_what_they_get(
    data: Json, nodes: tuple[Json, ...], text: str, want: ReplicaCounts
) -> None:
    assert counts_of(data, *nodes, text=text) == want


def test_a_quota_and_free_slices_limit_together() -> None:
    slices = "requests.nvidia.com/mig-1g.10gb"
    quotas = quota({GPU_KEY: 2, slices: 9}, {GPU_KEY: 0, slices: 0})
    view = view_of(make_namespace("team"), mig_node(large=0), quotas)
    text = "mode: enforce\nlimits: {resourceQuotas: evaluate}\nrightSizing: {}"

    decision = review(deployment(100, SMALL), text, view=view)

    assert decision.pods == ReplicaCounts(right_sized=7, kept=2, rejected=91)
    messages = {each.code: each.message for each in decision.findings}
    assert messages["GPU-Q301"].startswith("9 of 100 pods would be admitted")
    others = "no more of these are free: of the others, 2 will keep the request, 91 will be rejected"
    assert messages["GPU-R101"].endswith(others)


def test_pods_that_a_quota_rejects_are_not_promised_slices() -> None:
    slices = "requests.nvidia.com/mig-1g.10gb"
    quotas = quota({GPU_KEY: 0, slices: 3}, {GPU_KEY: 0, slices: 0})
    view = view_of(make_namespace("team"), mig_node(large=0), quotas)
    text = "mode: enforce\nlimits: {resourceQuotas: evaluate}\nrightSizing: {}"

    [found] = [each for each in review(deployment(10, SMALL), text, view=view).findings if each.code == "GPU-R101"]

    assert found.message.startswith("3 of its 10 pods will be right-sized")
    assert found.message.endswith("a quota admits no more of these: of the others, 7 will be rejected")


def test_enough_free_slices_take_one_decision(calls: list[object]) -> None:
    assert counts_of(deployment(7, SMALL), mig_node(large=0)) == ReplicaCounts(right_sized=7)
    assert len(calls) == 1


def test_a_policy_that_denies_whole_gpus_is_reported_for_the_pods_without_a_slice() -> None:
    limits = "mode: enforce\nlimits: {perPod: [{resource: nvidia.com/gpu, max: 0}]}"
    found = review(deployment(10, SMALL), SIZING, limits, nodes=[mig_node(large=0)])

    [denial] = [each for each in found.findings if each.denies_pods]
    assert denial.message.startswith("7 of 10 pods would be admitted, then: ")
    assert "quota" not in denial.fix
    assert found.pods == ReplicaCounts(right_sized=7, rejected=3)


def test_a_million_replicas_take_as_few_decisions_as_ten(calls: list[object]) -> None:
    numbers = []
    for replicas in (100, 1_000_000):
        calls.clear()
        assert counts_of(deployment(replicas, SMALL), mig_node()).right_sized == 9
        numbers.append(len(calls))

    assert numbers[0] == numbers[1] <= 12


def test_devices_of_a_class_are_looked_at_for_the_first_of_many_replicas(calls: list[object]) -> None:
    objects = [make_namespace("team"), device_node(), slices(), *CLASSES]

    found = review(deployment(5000, SMALL), SIZING, view=view_of(*objects)).pods

    assert found == ReplicaCounts(right_sized=5000)
    assert len(calls) == 1


def one_by_one(data: Json, text: str, view: ClusterView) -> list[Decision]:
    """Return the decisions about pods that are created one after another, each assumed before the next."""
    policies, decisions = policies_of(policy(text, "test-0")), []
    for template, request, pod in pods_of_workload(request_of(data), policies, view):
        for _ in range(template.replicas):
            decision = decide_pod(request, pod, policies, view, NO_USAGE, NOW).decision
            decisions.append(decision)
            for assumed in pods_with_units(decision.pending_use, AssumedPod("", "", 0, 0, math.inf)):
                view = view.with_assumed(assumed, 0.0)
    return decisions


NODES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2), st.integers(1, 8), st.booleans()),
    min_size=1,
    max_size=4,
)
"""Whole GPUs, small and large slices, cores, and whether the node is cordoned."""


def node_of(name: str, cards: int, small: int, large: int, cores: int, cordoned: bool) -> Json:
    gpus = {"nvidia.com/gpu": cards, "nvidia.com/mig-1g.10gb": small, "nvidia.com/mig-3g.40gb": large}
    node = make_node(name, MIXED, cpu=cores, **gpus)
    return node | {"spec": {"unschedulable": cordoned}}


@settings(max_examples=60)
@example([(3, 4, 2, 8, False)], 12, "8Gi", "1", False, 1)
@given(
    NODES,
    st.integers(2, 14),
    st.sampled_from(["8Gi", "30Gi", "70Gi"]),
    st.sampled_from(["100m", "1", "3"]),
    st.booleans(),
    st.integers(1, 2),
)
def test_the_counts_are_those_of_pods_decided_and_assumed_one_by_one(
    nodes: list[tuple[int, int, int, int, bool]], replicas: int, need: str, cpu: str, waits: bool, templates: int
) -> None:
    view = view_of(make_namespace("team"), *(node_of(f"n{i}", *each) for i, each in enumerate(nodes)))
    pod = make_pod().gpus(1).needs(need).requests("cpu", cpu)
    text = WAITING if waits else SIZING
    data = deployment(replicas, pod) if templates == 1 else two_jobs(replicas, pod.build())

    found, each = review(data, text, view=view), one_by_one(data, text, view)

    right_sized = sum(one.applied for one in each)
    assert found.pods is not None
    assert found.pods[:3] == (right_sized, len(each) - right_sized, 0)
    assert found.gpu_milli_after == sum(one.gpu_milli_after for one in each)


def two_jobs(replicas: int, pod: Json) -> Json:
    data = job_set(replicas, 3)
    annotations = pod["metadata"]["annotations"] | {"rightslice.dev/gang-size": "1"}
    for job in data["spec"]["replicatedJobs"]:
        job["template"]["spec"]["template"] = {"metadata": {"annotations": annotations}, "spec": pod["spec"]}
    return data
