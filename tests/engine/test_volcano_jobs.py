"""Jobs of Volcano: which templates are right-sized at CREATE, when none is, and what comes of their pods."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import MIXED, apply_patch, codes, review, view_of, whole_node
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import KeepReason, KeepRequest
from webhook.model.fleet import Fleet
from webhook.model.pods import ObjectMeta
from webhook.model.volcano_queues import VolcanoQueue, VolcanoQueues, VolcanoQueueSpec

SIZING = "mode: enforce\nrightSizing: {}"
TEMPLATES = "mode: enforce\nrightSizing: {templates: enforce}"
SLICE, WHOLE = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"
NODES = (whole_node(), make_node("mig", MIXED, **{SLICE: 7}))


def queue(name: str = "default", **spec: Any) -> Json:
    """Return a Queue of Volcano."""
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def cluster(*objects: Json) -> ClusterView:
    """Return a cluster with seven slices, and with the default queue unless queues are given."""
    return view_of(make_namespace("team"), *NODES, *(objects or (queue(),)))


def small_pod() -> PodMaker:
    """Return a pod that needs 8 GiB of one GPU."""
    return make_pod().gpus(1).needs("8Gi")


def task(pod: PodMaker | None = None, replicas: int = 1, **fields: Any) -> Json:
    """Return a task of a Job."""
    data = (pod or small_pod()).build()
    metadata = {key: data["metadata"][key] for key in ("labels", "annotations") if key in data["metadata"]}
    template = {"metadata": metadata, "spec": data["spec"]}
    return {"name": "main", "replicas": replicas, "template": template} | fields


def job(*tasks: Json, metadata: Json | None = None, **spec: Any) -> Json:
    """Return a Job of Volcano, as its own webhook stores it."""
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team"} | (metadata or {}),
        "spec": {"schedulerName": "volcano", "tasks": list(tasks or (task(),))} | spec,
    }


def limits_of(workload: Json, index: int = 0) -> Json:
    """Return the limits of the first container of a task."""
    limits: Json = workload["spec"]["tasks"][index]["template"]["spec"]["containers"][0]["resources"]["limits"]
    return limits


SIZED = {
    "one pod in the default queue": (job(), cluster()),
    "one pod in a queue of its own, with quota for slices": (
        job(queue="team"),
        cluster(queue("default"), queue("team", capability={WHOLE: "4", SLICE: "2"})),
    ),
    "a scheduler that is not written down yet": (job(schedulerName="volcano"), cluster()),
    "independent pods, as many as one node has slices": (job(task(replicas=7), minAvailable=1), cluster()),
    "another task without GPUs": (job(task(), task(make_pod()), minAvailable=1), cluster()),
    "a queue whose parent has quota for slices": (
        job(queue="team"),
        cluster(queue("team", parent="all"), queue("all", capability={SLICE: "2"})),
    ),
    "a part of the cluster by weight": (job(queue="team"), cluster(queue("team"), *map(queue, "abcdef"))),
    "a part of the cluster, and guarantees of others": (
        job(queue="team"),
        cluster(queue("team"), queue("a", guarantee={"resource": {SLICE: "5"}})),
    ),
}


@pytest.mark.parametrize(("workload", "view"), SIZED.values(), ids=SIZED)
def test_the_template_of_a_job_is_right_sized_before_its_pod_group_is_made(workload: Json, view: ClusterView) -> None:
    decision = review(workload, TEMPLATES, view=view)

    assert limits_of(apply_patch(workload, decision)) == {SLICE: "1"}
    assert "warn GPU-R101" in codes(decision)


def test_the_pods_of_a_right_sized_template_come_out_as_it_says() -> None:
    after = apply_patch(job(), review(job(), TEMPLATES, view=cluster()))
    template = after["spec"]["tasks"][0]["template"]
    annotations = template["metadata"]["annotations"] | {"scheduling.k8s.io/group-name": "train"}
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "controller": True}
    metadata = {"name": "train-0", "namespace": "team", "annotations": annotations, "ownerReferences": [owner]}
    spec = template["spec"] | {"schedulerName": "volcano"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    assert review(pod, TEMPLATES, view=cluster()).patch == ()
    again = review(after, TEMPLATES, view=cluster())
    assert again.patch == ()


class Kept(NamedTuple):
    """A Job whose template stays as it is, in a cluster and under a policy."""

    workload: Json
    reason: KeepReason
    view: ClusterView = cluster()
    policy: str = TEMPLATES
    operation: str = "CREATE"


HOLDER = make_pod("holder").requests(SLICE, "7").spec(nodeName="mig").build()
KEPT = {
    "the policy says nothing about templates": Kept(job(), KeepReason.QUEUED, policy=SIZING),
    "it is stored": Kept(job(metadata={"uid": "4f2"}), KeepReason.ALREADY_CHARGED),
    "it is changed": Kept(job(), KeepReason.ALREADY_CHARGED, operation="UPDATE"),
    "there is no such queue": Kept(job(queue="other"), KeepReason.QUEUE_NOT_FOUND),
    "another scheduler starts it": Kept(job(schedulerName="other"), KeepReason.QUEUED_POD),
    "its pods are in a queue of Kueue, too": Kept(
        job(task(small_pod().label("kueue.x-k8s.io/queue-name", "q"))), KeepReason.QUEUED_POD, cluster()
    ),
    "Volcano starts all its pods at once": Kept(job(task(replicas=2)), KeepReason.GANG_MEMBER),
    "a minAvailable of 0 means all its pods": Kept(job(task(replicas=2), minAvailable=0), KeepReason.GANG_MEMBER),
    "Volcano starts some of its pods at once": Kept(job(task(replicas=3), minAvailable=2), KeepReason.GANG_MEMBER),
    "its pods get a volume from the Job": Kept(
        job(volumes=[{"mountPath": "/data", "volumeClaimName": "data"}]), KeepReason.UNMODELED_CONSTRAINT
    ),
    "its pods need one NUMA node": Kept(
        job(task(topologyPolicy="single-numa-node")), KeepReason.UNMODELED_CONSTRAINT
    ),
    "its pods must be near in the network": Kept(
        job(networkTopology={"mode": "hard"}), KeepReason.UNMODELED_CONSTRAINT
    ),
    "its queue uses some nodes only": Kept(
        job(),
        KeepReason.UNMODELED_CONSTRAINT,
        cluster(queue(affinity={"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["a"]}})),
    ),
    "the capability of its queue has no slices": Kept(
        job(), KeepReason.NOT_ADMITTED, cluster(queue(capability={WHOLE: "8"}))
    ),
    "the capability of the queue's parent has no slices": Kept(
        job(), KeepReason.NOT_ADMITTED, cluster(queue(parent="all"), queue("all", capability={WHOLE: "8"}))
    ),
    "its queue deserves whole cards only": Kept(job(), KeepReason.NOT_ADMITTED, cluster(queue(deserved={WHOLE: "4"}))),
    "its queue has a guarantee of whole cards only": Kept(
        job(), KeepReason.NOT_ADMITTED, cluster(queue(guarantee={"resource": {WHOLE: "4"}}))
    ),
    "the capability is less than all its pods need": Kept(
        job(task(replicas=3), minAvailable=1), KeepReason.NOT_ADMITTED, cluster(queue(capability={SLICE: "2"}))
    ),
    "its queue's part of the cluster is less than a slice": Kept(
        job(), KeepReason.NOT_ADMITTED, cluster(queue(), queue("a", weight=9))
    ),
    "guarantees of other queues leave no slice": Kept(
        job(), KeepReason.NOT_ADMITTED, cluster(queue(), queue("a", guarantee={"resource": {SLICE: "6"}}))
    ),
    "no slice is free": Kept(job(), KeepReason.NO_FREE_CAPACITY, cluster(queue(), HOLDER)),
    "the nodes have fewer slices than it has pods": Kept(
        job(task(replicas=8), minAvailable=1), KeepReason.NOT_ADMITTED
    ),
    "the node is too small for all its pods": Kept(
        job(task(small_pod().requests("cpu", "20"), replicas=7), minAvailable=1), KeepReason.NO_FREE_CAPACITY
    ),
    "its pods exclude each other by a host port": Kept(
        job(task(small_pod().container("web", ports=[{"containerPort": 80, "hostPort": 80}]), replicas=2),
            minAvailable=1),
        KeepReason.NO_FREE_CAPACITY,
    ),
    "another task keeps whole cards": Kept(
        job(task(), task(make_pod().gpus(1)), minAvailable=1), KeepReason.OTHER_POD_SET
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_a_template_stays_as_it_is(case: Kept) -> None:
    decision = review(case.workload, case.policy, view=case.view, operation=case.operation)

    assert decision.patch == ()
    assert isinstance(decision.outcome, KeepRequest)
    assert decision.outcome.reason is case.reason


def deployment(pod: PodMaker) -> Json:
    """Return a Deployment, of whose first pod Volcano makes a PodGroup."""
    data = pod.build()
    template = {"metadata": data["metadata"], "spec": data["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"replicas": 2, "template": template},
    }


PLAIN: dict[str, tuple[Json, str]] = {
    "a pod": (small_pod().spec(schedulerName="volcano").build(), "schedulerName volcano"),
    "a pod of a PodGroup that its user made": (
        small_pod().annotate("scheduling.k8s.io/group-name", "g").build(),
        "annotation scheduling.k8s.io/group-name",
    ),
    "a pod of a PodGroup, by Volcano's own name": (
        small_pod().annotate("scheduling.volcano.sh/group-name", "g").build(),
        "annotation scheduling.volcano.sh/group-name",
    ),
    "a pod of a queue": (
        small_pod().annotate("scheduling.volcano.sh/queue-name", "q").build(),
        "annotation scheduling.volcano.sh/queue-name",
    ),
    "a Deployment": (deployment(small_pod().spec(schedulerName="volcano")), "schedulerName volcano"),
}
POLICIES = {
    "templates": TEMPLATES,
    "templates, and groups grow": "mode: enforce\nrightSizing: {templates: enforce, whenFull: grow}",
    "templates, and pods may wait": "mode: enforce\nrightSizing: {templates: enforce, whenFull: wait}",
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize(("workload", "sign"), PLAIN.values(), ids=PLAIN)
def test_pods_of_volcano_without_a_job_keep_what_their_pod_group_is_made_of(
    workload: Json, sign: str, policy: str
) -> None:
    """Its PodGroup has the requests of the first pod for all pods, or what its user wrote."""
    decision = review(workload, policy, view=cluster(queue(capability={WHOLE: "8"})))
    assert decision.outcome == KeepRequest(KeepReason.QUEUED_POD, sign)
    assert decision.patch == ()


AMOUNTS = st.integers(0, 20)


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(1, 9), AMOUNTS), max_size=4), AMOUNTS)
def test_queues_are_never_sure_of_more_than_there_is(weight: int, others: list[tuple[int, int]], own: int) -> None:
    """The shares of all queues, whose guarantees the cluster has, are together at most what the nodes advertise."""
    fleet: Fleet = cluster().fleet
    specs = [VolcanoQueueSpec(weight=weight, capability={SLICE: str(own)})] if own else [VolcanoQueueSpec(weight)]
    specs += [VolcanoQueueSpec(weight) for weight, _ in others]
    queues = [VolcanoQueue(ObjectMeta(name=str(i)), spec) for i, spec in enumerate(specs)]
    found = [VolcanoQueues(queues).find(each.metadata.name, fleet, 1) for each in queues]
    shares = [each.least_share(SLICE) for each in found if each is not None]

    assert len(shares) == len(queues)
    assert sum(shares) <= 7
    assert not own or shares[0] <= own
