"""Templates of workloads under Kueue: which are right-sized at CREATE, when none is, and what comes of their pods."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.engine.invariants import gpu_pods
from tests.engine.test_growth import daemon
from tests.example_cluster import GPU_TAINT, apply_patch, codes, mig_node, review, view_of, whole_node
from tests.storage_builders import make_claim, make_volume
from webhook.cli.commands.undo import original_request
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice
from webhook.model.field_paths import json_pointer
from webhook.policy.workload_kinds import CHARGED_KINDS

SIZING = "mode: enforce\nrightSizing: {}"
TEMPLATES = "mode: enforce\nrightSizing: {templates: enforce}"
SLICE = "nvidia.com/mig-1g.10gb"
WHOLE = "nvidia.com/gpu"
QUEUE = {"kueue.x-k8s.io/queue-name": "team-queue"}
API = "kueue.x-k8s.io/v1beta2"


def flavor(name: str = "a100", labels: Json | None = None, **spec: Any) -> Json:
    """Return a ResourceFlavor."""
    return {
        "apiVersion": API,
        "kind": "ResourceFlavor",
        "metadata": {"name": name},
        "spec": {"nodeLabels": labels or {}} | spec,
    }


def cluster_queue(*flavors: Json, name: str = "all", groups: list[Json] | None = None, **spec: Any) -> Json:
    """Return a ClusterQueue: flavors as quotas by resource, with their names."""
    covered = [key for key in (flavors or ({},))[0] if key != "name"]
    quotas = [
        {"name": each["name"], "resources": [{"name": key, "nominalQuota": each[key]} for key in covered]}
        for each in flavors
    ]
    groups = [{"coveredResources": covered, "flavors": quotas}, *(groups or [])]
    return {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"resourceGroups": groups} | spec,
    }


LOCAL_QUEUE = {
    "apiVersion": API,
    "kind": "LocalQueue",
    "metadata": {"name": "team-queue", "namespace": "team"},
    "spec": {"clusterQueue": "all"},
}
QUOTAS = {"name": "a100", "cpu": "64", WHOLE: "8", SLICE: "7"}


def queues(*objects: Json, nodes: tuple[Json, ...] | None = None) -> ClusterView:
    """Return a cluster with Kueue: one flavor of all nodes and quota for whole cards and slices, unless given."""
    found = objects or (flavor(), cluster_queue(QUOTAS))
    return view_of(make_namespace("team"), *(nodes or (whole_node(), mig_node())), LOCAL_QUEUE, *found)


def small_pod() -> PodMaker:
    """Return a pod that needs 8 GiB of one GPU."""
    return make_pod().gpus(1).needs("8Gi")


def template(pod: PodMaker) -> Json:
    """Return a pod as template."""
    data = pod.build()
    return {"metadata": {"annotations": data["metadata"].get("annotations", {})}, "spec": data["spec"]}


def job(pod: PodMaker | None = None, *, labels: Json = QUEUE, metadata: Json | None = None, **spec: Any) -> Json:
    """Return a Job in the queue of its team."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team", "labels": labels} | (metadata or {}),
        "spec": {"template": template(pod or small_pod())} | spec,
    }


def pod_of(workload: Json, place: tuple[str, ...] = ("spec", "template"), **labels: str) -> Json:
    """Return a pod that a controller creates from a template, as Kueue starts it."""
    found: Any = workload
    for step in place:
        found = found[step]
    metadata = {"name": "train-x", "namespace": "team", **found.get("metadata", {})}
    metadata["labels"] = {**metadata.get("labels", {}), "kueue.x-k8s.io/podset": "main", **labels}
    metadata["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": found["spec"]}


def limits_of(workload: Json) -> Json:
    """Return the limits of the first container of a Job's template."""
    limits: Json = workload["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    return limits


def test_the_template_of_a_queued_job_is_right_sized() -> None:
    decision = review(job(), TEMPLATES, view=queues())
    after = apply_patch(job(), decision)

    assert limits_of(after) == {SLICE: "1"}
    assert codes(decision) == ["warn GPU-R101"]
    assert decision.findings[0].message.startswith(f"its template is right-sized to {SLICE}")
    assert decision.gpu_milli_before == 1000
    assert decision.gpu_milli_after == 143


def test_the_pods_of_a_right_sized_template_come_out_as_it_says() -> None:
    after = apply_patch(job(), review(job(), TEMPLATES, view=queues()))
    security = "mode: enforce\nsecurity: {deny: [forgedAnnotations]}"
    decision = review(pod_of(after), TEMPLATES, security, view=queues())

    assert decision.patch == ()
    assert decision.findings == ()
    assert decision.gpu_milli_before == decision.gpu_milli_after == 143


def test_a_second_pass_changes_nothing() -> None:
    after = apply_patch(job(), review(job(), TEMPLATES, view=queues()))
    again = review(after, TEMPLATES, view=queues())

    assert again.patch == ()
    assert again.findings == ()


def test_what_is_added_to_a_pod_of_a_right_sized_template_keeps_the_record_of_its_size() -> None:
    after = apply_patch(job(), review(job(), TEMPLATES, view=queues()))
    toleration = "mode: enforce\ninjection: {tolerations: [{key: a, operator: Exists}]}"
    pod = pod_of(after)
    changed = apply_patch(pod, review(pod, TEMPLATES, toleration, view=queues()))
    record = json.loads(changed["metadata"]["annotations"]["rightslice.dev/decision"])

    assert record["resource"] == SLICE
    assert record["changed"] == ["resources", "nodeAffinity", "tolerations"]
    assert WHOLE in str(original_request(changed))


def test_undo_knows_the_original_of_a_pod_of_a_right_sized_template() -> None:
    after = apply_patch(job(), review(job(), TEMPLATES, view=queues()))

    assert f'{WHOLE}: "1"' in str(original_request(pod_of(after))).replace("'", '"')


class Kept(NamedTuple):
    """A workload whose template stays as it is, in a cluster and under a policy."""

    workload: Json
    reason: KeepReason
    view: ClusterView = queues()
    policy: str = TEMPLATES
    operation: str = "CREATE"


def racks(*levels: str, names: str = "ab", blocks: str = "xx") -> ClusterView:
    """Return a cluster whose flavor has a topology of these levels, and two nodes with seven slices in racks."""
    nodes = [mig_node("n1"), mig_node("n2")]
    for node, rack, block in zip(nodes, names, blocks, strict=True):
        node["metadata"]["labels"] |= {"rack": rack, "block": block, "kubernetes.io/hostname": node["metadata"]["name"]}
    topology = {"apiVersion": API, "kind": "Topology", "metadata": {"name": "racks"}}
    found = topology | {"spec": {"levels": [{"nodeLabel": level} for level in levels]}}
    quota = cluster_queue(QUOTAS | {SLICE: "99"})
    return queues(flavor(topologyName="racks"), quota, *([found] if levels else []), nodes=(*nodes,))


def in_topology(required: str = "rack", group: str = "") -> PodMaker:
    """Return a small pod of which all must be in one domain of a level, and groups of a size on one node."""
    pod = small_pod()
    if required:
        pod.annotate("kueue.x-k8s.io/podset-required-topology", required)
    if group:
        pod.annotate("kueue.x-k8s.io/podset-slice-required-topology", "kubernetes.io/hostname")
        pod.annotate("kueue.x-k8s.io/podset-slice-size", group)
    return pod


HOLDER = make_pod("holder").requests(SLICE, "7").requests("nvidia.com/mig-3g.40gb", "2").spec(nodeName="mig").build()


CARDS = [make_pod(name).gpus(8).spec(nodeName=name).build() for name in ("whole", "mig")]


def full_with_classes(**classes: Json) -> ClusterView:
    """Return a cluster whose GPUs and slices are in use, with these PriorityClasses and those of every cluster."""
    found = {"system-node-critical": {"value": 2000001000}} | classes
    priorities = [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}} | fields
        for name, fields in found.items()
    ]
    return queues(flavor(), cluster_queue(QUOTAS), HOLDER, *CARDS, *priorities)


def with_reserved(quotas: Json, *resources: str, **spec: Any) -> Json:
    """Return a ClusterQueue in which workloads have reserved seven or eight units of some resources."""
    amounts = [{"name": name, "total": "7" if name == SLICE else "8"} for name in resources]
    status = {"flavorsReservation": [{"name": "a100", "resources": amounts}]}
    return cluster_queue(quotas, **spec) | {"status": status}


def cohort(name: str, *flavors: Json, **spec: Any) -> Json:
    """Return a Cohort: flavors as quotas by resource, with their names."""
    groups = cluster_queue(*flavors)["spec"]["resourceGroups"] if flavors else []
    return {"apiVersion": API, "kind": "Cohort", "metadata": {"name": name}, "spec": {"resourceGroups": groups} | spec}


def lent_out(quotas: Json, *objects: Json, borrower: str = "all") -> ClusterView:
    """Return a cluster in which another queue of a cohort, without quota for slices, has reserved seven of them."""
    other = with_reserved(QUOTAS | {SLICE: "0"}, SLICE, name="borrower", cohortName=borrower)
    return queues(flavor(), cluster_queue(quotas, cohortName="all"), other, *objects)


def in_pool(node: Json, pool: str) -> Json:
    """Return a node of a pool in one zone."""
    node["metadata"]["labels"] |= {"pool": pool, "zone": "z"}
    return node


TWO_POOLS = queues(
    flavor("mig", {"pool": "a"}),
    flavor("whole", {"pool": "b"}),
    cluster_queue(QUOTAS | {"name": "mig"}, QUOTAS | {"name": "whole"}),
    nodes=(in_pool(mig_node(), "a"), in_pool(whole_node(), "b")),
)
"""A cluster with a pool of slices and one of whole cards, each with its flavor."""


def node_affinity(key: str, value: str) -> Json:
    """Return the affinity to nodes with a label."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def checked(controller: str, **rule: Any) -> ClusterView:
    """Return a cluster whose queue has an AdmissionCheck of a controller; "" for a check that does not exist."""
    rules = {"admissionChecks": [{"name": "check"} | rule]}
    check = {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": "check"}}
    found = [check | {"spec": {"controllerName": controller}}] if controller else []
    return queues(flavor(), cluster_queue(QUOTAS, admissionChecksStrategy=rules), *found)


def kueue_configuration(**sections: Json) -> Json:
    """Return the configuration of Kueue."""
    return {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"} | sections


def configured(*objects: Json, **integrations: Any) -> ClusterView:
    """Return a cluster whose Kueue queues some kinds."""
    return queues(flavor(), cluster_queue(QUOTAS), kueue_configuration(integrations=integrations), *objects)


def owned_by(kind: str, version: str) -> Json:
    """Return the metadata of an object that another one controls."""
    return {"ownerReferences": [{"kind": kind, "name": "owner", "apiVersion": version, "controller": True}]}


STARTS_WITH_ONE = {"annotations": {"kueue.x-k8s.io/job-min-parallelism": "1"}}
OWNED = owned_by("JobSet", "jobset.x-k8s.io/v1")
WITHOUT_SLICES = {"name": "a100", "cpu": "64", WHOLE: "8"}
TO_MIG_NODES = {"nvidia.com/mig.strategy": "mixed"}
AFFINITY = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
KEPT = {
    "the policy says nothing about templates": Kept(job(), KeepReason.QUEUED, policy=SIZING),
    "a Workload exists already": Kept(
        job(labels=QUEUE | {"kueue.x-k8s.io/prebuilt-workload-name": "w"}), KeepReason.WORKLOAD_EXISTS
    ),
    "a Workload exists already, whatever the policy says about templates": Kept(
        job(labels=QUEUE | {"kueue.x-k8s.io/prebuilt-workload-name": "w"}), KeepReason.WORKLOAD_EXISTS, policy=SIZING
    ),
    "it is stored": Kept(job(metadata={"uid": "4f2"}), KeepReason.ALREADY_CHARGED),
    "it is stored, and templates are only reported": Kept(
        job(metadata={"uid": "4f2"}),
        KeepReason.QUEUED,
        policy="mode: enforce\nrightSizing: {templates: warn}",
    ),
    "it is changed": Kept(job(), KeepReason.ALREADY_CHARGED, operation="UPDATE"),
    "it is part of a JobSet, which is charged": Kept(job(metadata=OWNED), KeepReason.ALREADY_CHARGED),
    "it is part of a workload whose template is never changed": Kept(
        job(metadata=owned_by("TrainJob", "trainer.kubeflow.org/v1alpha1")), KeepReason.QUEUED_POD
    ),
    "no LocalQueue of that name": Kept(job(labels={"kueue.x-k8s.io/queue-name": "other"}), KeepReason.QUEUE_NOT_FOUND),
    "another queueing system manages its pods": Kept(
        job(small_pod().spec(schedulerName="volcano")), KeepReason.QUEUED_POD
    ),
    "another queueing system manages its pods, whatever the policy says about templates": Kept(
        job(small_pod().spec(schedulerName="volcano")), KeepReason.QUEUED_POD, policy=SIZING
    ),
    "the ClusterQueue does not cover slices": Kept(
        job(), KeepReason.NOT_ADMITTED, queues(flavor(), cluster_queue(WITHOUT_SLICES))
    ),
    "its quota is zero": Kept(job(), KeepReason.NOT_ADMITTED, queues(flavor(), cluster_queue(QUOTAS | {SLICE: 0}))),
    "its quota is less than all pods need": Kept(job(parallelism=8), KeepReason.NOT_ADMITTED),
    "the nodes have fewer slices than pods": Kept(
        job(parallelism=8), KeepReason.NO_FLAVOR_NODES, queues(flavor(), cluster_queue(QUOTAS | {SLICE: 99}))
    ),
    "the nodes are too small for all pods at once": Kept(
        job(small_pod().requests("cpu", "20"), parallelism=7), KeepReason.NO_FLAVOR_NODES
    ),
    "DaemonSets take too much CPU of the nodes with slices": Kept(
        job(small_pod().requests("cpu", "8"), parallelism=7),
        KeepReason.NO_FLAVOR_NODES,
        queues(flavor(), cluster_queue(QUOTAS), daemon(cpu="16")),
    ),
    "static pods take too much CPU of the nodes with slices": Kept(
        job(small_pod().requests("cpu", "8"), parallelism=7),
        KeepReason.NO_FLAVOR_NODES,
        queues(flavor(), cluster_queue(QUOTAS), daemon(owner="Node", cpu="16")),
    ),
    "no rack has slices for all pods": Kept(
        job(in_topology(), parallelism=8), KeepReason.NO_FLAVOR_NODES, racks("block", "rack")
    ),
    "no node has slices for all pods": Kept(
        job(in_topology("kubernetes.io/hostname"), parallelism=8),
        KeepReason.NO_FLAVOR_NODES,
        racks("rack", "kubernetes.io/hostname", names="aa"),
    ),
    "no rack of a block has slices for all pods, though another block has one of the same name": Kept(
        job(in_topology(), parallelism=8), KeepReason.NO_FLAVOR_NODES, racks("block", "rack", names="aa", blocks="xy")
    ),
    "no node has slices for each group": Kept(
        job(in_topology("block", group="8"), parallelism=8),
        KeepReason.NO_FLAVOR_NODES,
        racks("block", "kubernetes.io/hostname"),
    ),
    "its nodes lack a level of the topology": Kept(job(), KeepReason.NO_FLAVOR_NODES, racks("room", "rack")),
    "the topology does not exist": Kept(job(), KeepReason.UNMODELED_CONSTRAINT, racks()),
    "levels that are not read": Kept(
        job(in_topology("").annotate("kueue.x-k8s.io/podset-slice-required-topology-constraints", "[]")),
        KeepReason.UNMODELED_CONSTRAINT,
        racks("block"),
    ),
    "the flavor has no topology, which its pods request": Kept(job(in_topology()), KeepReason.NOT_ADMITTED),
    "new nodes are provisioned for it": Kept(
        job(), KeepReason.RUNS_ELSEWHERE, checked("kueue.x-k8s.io/provisioning-request")
    ),
    "it runs in another cluster": Kept(job(), KeepReason.RUNS_ELSEWHERE, checked("kueue.x-k8s.io/multikueue")),
    "its admission check does not exist": Kept(job(), KeepReason.RUNS_ELSEWHERE, checked("")),
    "another cluster manages it": Kept(job(managedBy="kueue.x-k8s.io/multikueue"), KeepReason.RUNS_ELSEWHERE),
    "Kueue does not queue its kind, and no slice is free": Kept(
        job(), KeepReason.NO_FREE_CAPACITY, configured(HOLDER, frameworks=["jobset.x-k8s.io/jobset"])
    ),
    "no slice is free now": Kept(job(), KeepReason.NO_FREE_CAPACITY, queues(flavor(), cluster_queue(QUOTAS), HOLDER)),
    "no slice is free now, and the scheduler may preempt pods of the lowest priority for whole GPUs": Kept(
        job(), KeepReason.NO_FREE_CAPACITY, full_with_classes(spare={"value": -10})
    ),
    "no slice is free now, and its PriorityClass may preempt pods for whole GPUs": Kept(
        job(small_pod().spec(priorityClassName="high")),
        KeepReason.NO_FREE_CAPACITY,
        full_with_classes(high={"value": 10}),
    ),
    "no slice is free now, and a PriorityClass that is not known may preempt pods for whole GPUs": Kept(
        job(small_pod().spec(priorityClassName="other")), KeepReason.NO_FREE_CAPACITY, full_with_classes()
    ),
    "too little CPU is free now beside the slices": Kept(
        job(small_pod().requests("cpu", "16")),
        KeepReason.NO_FREE_CAPACITY,
        queues(flavor(), cluster_queue(QUOTAS), make_pod("o").requests("cpu", "60").spec(nodeName="mig").build()),
    ),
    "the quota for slices is used up now": Kept(
        job(), KeepReason.QUEUE_QUOTA_IN_USE, queues(flavor(), with_reserved(QUOTAS, SLICE))
    ),
    "the quota for slices is used up, and whole GPUs may be borrowed": Kept(
        job(),
        KeepReason.QUEUE_QUOTA_IN_USE,
        queues(
            flavor(),
            with_reserved(QUOTAS | {WHOLE: "0"}, SLICE, cohortName="all"),
            cluster_queue(QUOTAS, name="lender", cohortName="all"),
        ),
    ),
    "the quota for slices is used up, and the queue may preempt workloads for whole GPUs": Kept(
        job(),
        KeepReason.QUEUE_QUOTA_IN_USE,
        queues(flavor(), with_reserved(QUOTAS, SLICE, WHOLE, preemption={"withinClusterQueue": "LowerPriority"})),
    ),
    "the quota for slices is used up, and fewer pods may start with whole GPUs": Kept(
        job(metadata=STARTS_WITH_ONE, parallelism=9, completions=9),
        KeepReason.QUEUE_QUOTA_IN_USE,
        queues(
            flavor(), with_reserved(QUOTAS | {SLICE: "14"}, SLICE), nodes=(whole_node(), mig_node(), mig_node("m2"))
        ),
    ),
    "the quota for slices is lent out": Kept(job(), KeepReason.QUEUE_QUOTA_IN_USE, lent_out(QUOTAS)),
    "the quota for slices is lent out of a cohort above its own": Kept(
        job(), KeepReason.QUEUE_QUOTA_IN_USE, lent_out(QUOTAS, cohort("all", parentName="top"), borrower="top")
    ),
    "a Cohort lends quota in a flavor without slices": Kept(
        job(),
        KeepReason.NO_FLAVOR_NODES,
        queues(
            flavor("whole", {"no": "node"}),
            flavor("mig", TO_MIG_NODES),
            cluster_queue(QUOTAS | {"name": "whole", SLICE: 0}, QUOTAS | {"name": "mig"}, cohortName="all"),
            cohort("all", {"name": "whole", SLICE: 10}),
        ),
    ),
    "a slice is charged more than a whole GPU": Kept(
        job(),
        KeepReason.NOT_ADMITTED,
        queues(
            flavor(),
            cluster_queue({"name": "a100", "gpu-milli": 8000}),
            kueue_configuration(
                resources={
                    "transformations": [
                        {"input": name, "strategy": "Replace", "outputs": {"gpu-milli": milli}}
                        for name, milli in ((SLICE, 200), ("nvidia.com/mig-3g.40gb", 300), (WHOLE, 100))
                    ]
                }
            ),
        ),
    ),
    "the affinity of the pods names only labels that the flavor without slices does not": Kept(
        job(small_pod().spec(affinity=node_affinity("zone", "z"))),
        KeepReason.NO_FLAVOR_NODES,
        TWO_POOLS,
    ),
    "the flavor selects nodes without slices": Kept(
        job(), KeepReason.NO_FLAVOR_NODES, queues(flavor(labels={"no": "node"}), cluster_queue(QUOTAS))
    ),
    "one of two flavors that may be chosen has no slices": Kept(
        job(),
        KeepReason.NO_FLAVOR_NODES,
        queues(
            flavor("mig", TO_MIG_NODES),
            flavor("old", {"no": "node"}),
            cluster_queue(QUOTAS | {"name": "mig"}, QUOTAS | {"name": "old"}),
        ),
    ),
    "a flavor for its CPUs leads to other nodes": Kept(
        job(),
        KeepReason.NO_FLAVOR_NODES,
        queues(
            flavor("mig", TO_MIG_NODES),
            flavor("cpus", {"no": "node"}),
            cluster_queue(
                {"name": "mig", WHOLE: 8, SLICE: 7},
                groups=[
                    {
                        "coveredResources": ["cpu"],
                        "flavors": [{"name": "cpus", "resources": [{"name": "cpu", "nominalQuota": 9}]}],
                    }
                ],
            ),
        ),
    ),
    "several GPUs": Kept(job(make_pod().gpus(2).needs("8Gi")), KeepReason.MULTIPLE_GPUS),
    "affinity to other pods": Kept(job(small_pod().spec(affinity=AFFINITY)), KeepReason.UNMODELED_CONSTRAINT),
    "ranks of one job": Kept(job(small_pod().env("WORLD_SIZE", "4")), KeepReason.GANG_MEMBER),
    "the pods opt out": Kept(job(small_pod().annotate("rightslice.dev/keep", "true")), KeepReason.OPTED_OUT),
}


def test_a_label_of_a_queue_on_the_template_alone_queues_the_pods_and_not_their_workload() -> None:
    workload = job(labels={})
    workload["spec"]["template"]["metadata"]["labels"] = QUEUE

    assert review(workload, TEMPLATES, view=queues()).keep_reason == "QueuedPod"


def test_the_advice_about_queued_workloads_right_sizes_them() -> None:
    stored = job(metadata={"uid": "4f2"})

    assert review(job(), SIZING, view=queues()).keep_reason == "QueuedWorkload"
    assert review(stored, TEMPLATES, view=queues()).keep_reason == "AlreadyCharged"
    assert limits_of(apply_patch(job(), review(job(), TEMPLATES, view=queues()))) == {SLICE: "1"}


@pytest.mark.parametrize("queue", [QUEUE, {}], ids=["queued", "without a queue"])
def test_the_advice_about_workers_of_one_job_right_sizes_the_only_worker(queue: Json) -> None:
    kept = review(job_set(1, labels=queue, pod=small_pod()), TEMPLATES, view=queues())
    followed = review(job_set(1, labels=queue), TEMPLATES, view=queues())

    assert kept.keep_reason == "GangMember"
    assert 'rightslice.dev/gang-size: "1"' in kept.findings[0].fix
    assert isinstance(followed.outcome, OfferChoice)


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT)
def test_a_template_that_is_kept(case: Kept) -> None:
    decision = review(case.workload, case.policy, view=case.view, operation=case.operation)

    assert isinstance(decision.outcome, KeepRequest)
    assert decision.outcome.reason is case.reason
    assert decision.patch == ()


TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
TOLERATION = {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}
CHANGED = {
    "a Job of a CronJob": (
        job(metadata={"ownerReferences": [{"kind": "CronJob", "name": "c", "controller": True}]}),
        queues(),
    ),
    "an owner that does not control it": (
        job(metadata={"ownerReferences": [{"kind": "ConfigMap", "name": "c"}]}),
        queues(),
    ),
    "DaemonSets leave enough of the nodes with slices": (
        job(small_pod().requests("cpu", "6"), parallelism=7),
        queues(flavor(), cluster_queue(QUOTAS), daemon(cpu="16")),
    ),
    "one rack has slices for all pods": (job(in_topology(), parallelism=8), racks("rack", names="aa")),
    "each node has slices for a group": (
        job(in_topology("block", group="4"), parallelism=8),
        racks("block", "kubernetes.io/hostname"),
    ),
    "any nodes of a topology": (job(parallelism=14), racks("block", "rack")),
    "a flavor with a topology is skipped, because the pods request none": (
        job(),
        queues(
            flavor("racks", {"no": "node"}, topologyName="racks"),
            flavor(),
            cluster_queue(QUOTAS | {"name": "racks"}, QUOTAS),
        ),
    ),
    "a check that does not choose nodes": (job(), checked("example.com/budget")),
    "new nodes are provisioned for another flavor": (
        job(),
        checked("kueue.x-k8s.io/provisioning-request", onFlavors=["other"]),
    ),
    "Kueue queues its kind": (job(), configured(frameworks=["batch/job"])),
    "Kueue queues Jobs, as its configuration names no kind": (job(), configured()),
    "another controller queues its kind": (
        job(),
        configured(frameworks=["jobset.x-k8s.io/jobset"], externalFrameworks=["Job.v1.batch"]),
    ),
    "no slice is free now, and no whole GPU either": (job(), queues(flavor(), cluster_queue(QUOTAS), HOLDER, *CARDS)),
    "no slice or whole GPU is free, and no pod has a lower priority": (
        job(),
        full_with_classes(high={"value": 10}),
    ),
    "no slice or whole GPU is free, and pods without a PriorityClass get the lowest": (
        job(),
        full_with_classes(usual={"value": 10, "globalDefault": True}, high={"value": 20}),
    ),
    "no slice or whole GPU is free, and its PriorityClass preempts no pods": (
        job(small_pod().spec(priorityClassName="patient")),
        full_with_classes(patient={"value": 10, "preemptionPolicy": "Never"}),
    ),
    "no slice or whole GPU is free, and the pods preempt none": (
        job(small_pod().spec(priorityClassName="high", preemptionPolicy="Never")),
        full_with_classes(high={"value": 10}),
    ),
    "no quota is free now, neither for slices nor for whole GPUs": (
        job(),
        queues(flavor(), with_reserved(QUOTAS, SLICE, WHOLE)),
    ),
    "the queue has no quota for whole GPUs": (
        job(),
        queues(flavor(), with_reserved(QUOTAS | {WHOLE: "0"}, SLICE)),
    ),
    "quota for one more is free": (job(), queues(flavor(), with_reserved(QUOTAS | {SLICE: "8"}, SLICE))),
    "quota for one more is neither reserved nor lent": (job(), lent_out(QUOTAS | {SLICE: "8"})),
    "a Cohort has quota for what its queues have borrowed": (
        job(),
        lent_out(QUOTAS, cohort("all", {"name": "a100", SLICE: 7})),
    ),
    "a flavor without quota for slices has no slices": (
        job(),
        queues(
            flavor("whole", {"no": "node"}),
            flavor("mig", TO_MIG_NODES),
            cluster_queue(QUOTAS | {"name": "whole", SLICE: 0}, QUOTAS | {"name": "mig"}),
        ),
    ),
    "a flavor whose labels the pods do not select has no slices": (
        job(small_pod().spec(nodeSelector={"pool": "a", "zone": "z"})),
        TWO_POOLS,
    ),
    "a flavor that the affinity of the pods excludes has no slices": (
        job(small_pod().spec(affinity=node_affinity("pool", "a"))),
        TWO_POOLS,
    ),
    "the flavor tolerates the taint of its nodes": (
        job(),
        queues(
            flavor(nodeTaints=[TAINT], tolerations=[TOLERATION]),
            cluster_queue(QUOTAS),
            nodes=(whole_node(), mig_node() | {"spec": {"taints": [TAINT]}}),
        ),
    ),
    "one budget in thousandths": (
        job(),
        queues(
            flavor(),
            cluster_queue({"name": "a100", "example.com/gpu-milli": 8000}),
            kueue_configuration(
                resources={
                    "transformations": [
                        {"input": SLICE, "strategy": "Replace", "outputs": {"example.com/gpu-milli": 143}}
                    ]
                }
            ),
        ),
    ),
    "a template without metadata": (
        job() | {"spec": {"template": {"spec": make_pod().gpus(1).build()["spec"]}}},
        queues(),
    ),
}


@pytest.mark.parametrize(("workload", "view"), CHANGED.values(), ids=CHANGED)
def test_a_template_that_is_right_sized(workload: Json, view: ClusterView) -> None:
    default = "mode: enforce\nrightSizing: {templates: enforce, default: {memory: 8Gi}}"
    decision = review(workload, default, view=view)

    after = limits_of(apply_patch(workload, decision))
    assert after.get(SLICE) == "1"
    assert WHOLE not in after


@pytest.mark.parametrize("objects", [(cluster_queue(QUOTAS), HOLDER), (with_reserved(QUOTAS, SLICE),)])
def test_a_template_whose_pods_may_wait_is_right_sized_while_all_slices_are_in_use(objects: tuple[Json, ...]) -> None:
    waiting = "mode: enforce\nrightSizing: {templates: enforce, whenFull: wait}"
    decision = review(job(), waiting, view=queues(flavor(), *objects))

    assert limits_of(apply_patch(job(), decision)) == {SLICE: "1"}


ELSEWHERE = LOCAL_QUEUE | {"metadata": {"name": "team-queue", "namespace": "other"}}
NAMED = {
    "no LocalQueue": (view_of(mig_node()), 1, "LocalQueue team/team-queue"),
    "a LocalQueue of another namespace": (
        view_of(mig_node(), ELSEWHERE),
        1,
        "LocalQueue team/team-queue; found other/team-queue",
    ),
    "no ClusterQueue": (view_of(mig_node(), LOCAL_QUEUE), 1, "ClusterQueue all of LocalQueue team/team-queue"),
    "no flavor": (
        queues(cluster_queue(QUOTAS)),
        1,
        "in ClusterQueue all: its ResourceFlavor a100 was not found, so it admits nothing",
    ),
    "a resource that is not covered": (
        queues(flavor(), cluster_queue(WITHOUT_SLICES)),
        1,
        f"its coveredResources do not contain {SLICE}",
    ),
    "a charge above the quota, of a resource that need not be covered": (
        queues(
            flavor(),
            cluster_queue({"name": "a100", "gpu-milli": 100}),
            kueue_configuration(
                resources={
                    "quotaCheckStrategy": "IgnoreUndeclared",
                    "transformations": [{"input": SLICE, "outputs": {"gpu-milli": 143}}],
                }
            ),
        ),
        1,
        "it charges 143 of gpu-milli, and its largest nominal quota is 100",
    ),
    "an excluded resource": (
        queues(
            flavor(), cluster_queue(QUOTAS), kueue_configuration(resources={"excludeResourcePrefixes": ["nvidia.com/"]})
        ),
        1,
        f"it charges nothing for {SLICE}",
    ),
    "a taint of the flavor": (
        queues(flavor(nodeTaints=[TAINT]), cluster_queue(QUOTAS)),
        1,
        "its flavor a100 has the taint team=a:NoSchedule, which the pods do not tolerate",
    ),
    "too little quota": (queues(), 8, f"it charges 8 of {SLICE}, and its largest nominal quota is 7"),
}


@pytest.mark.parametrize(("view", "pods", "words"), NAMED.values(), ids=NAMED)
def test_a_reason_names_what_is_missing_with_what_was_found(view: ClusterView, pods: int, words: str) -> None:
    only = "mode: enforce\nrightSizing: {templates: enforce, default: {memory: 8Gi}, forms: [mig]}"
    outcome = review(job(parallelism=pods), only, view=view).outcome

    assert isinstance(outcome, KeepRequest)
    assert words in outcome.detail


def test_a_reason_names_the_level_that_the_topology_of_a_flavor_lacks() -> None:
    outcome = review(job(in_topology("zone")), TEMPLATES, view=racks("block", "rack")).outcome

    assert isinstance(outcome, KeepRequest)
    assert "its flavor a100 has Topology racks, and the pods request one with zone" in outcome.detail


def cron_job(queue: Json) -> Json:
    """Return a CronJob whose Jobs have the label of a queue."""
    created = {"metadata": {"labels": queue}, "spec": job()["spec"]}
    about = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "team"}}
    return about | {"spec": {"schedule": "0 1 * * *", "jobTemplate": created}}


def test_a_cron_job_reports_what_happens_to_its_jobs_and_is_not_changed() -> None:
    decision = review(cron_job(QUEUE), TEMPLATES, view=queues())

    assert decision.patch == ()
    assert decision.findings[0].message.startswith(f"its pods will be right-sized to {SLICE}")


def test_a_cron_job_whose_queue_would_not_admit_slices_says_why() -> None:
    outcome = review(cron_job(QUEUE), TEMPLATES, view=queues(flavor(), cluster_queue(WITHOUT_SLICES))).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.NOT_ADMITTED


def test_the_pods_of_a_kind_that_kueue_does_not_queue_are_right_sized_as_without_a_queue() -> None:
    view = configured(frameworks=["jobset.x-k8s.io/jobset"])
    decision = review(job(), TEMPLATES, view=view)

    assert decision.patch == ()
    assert decision.findings[0].message.startswith(f"its pods will be right-sized to {SLICE}")


def test_a_cron_job_whose_jobs_kueue_does_not_queue_is_right_sized_as_without_a_queue() -> None:
    decision = review(cron_job(QUEUE), TEMPLATES, view=configured(frameworks=["jobset.x-k8s.io/jobset"]))

    assert decision.findings[0].message.startswith(f"its pods will be right-sized to {SLICE}")


GROW = "mode: enforce\nrightSizing: {templates: enforce, whenFull: grow}"
ZONE = "topology.kubernetes.io/zone"
GROUP_LABEL = "cloud.google.com/gke-nodepool"
MIG = dict(mig_node()["metadata"]["labels"])
SIZES = {"cpu": "32", "memory": "128Gi", SLICE: "7"}
ANY_FLAVOR = (flavor(), cluster_queue(QUOTAS | {SLICE: "99", "cpu": "999"}))


def new_group(**spec: Any) -> Json:
    """Return the settings of a node group without nodes, whose new nodes have seven slices."""
    group = {"name": "slices", "labels": {"pool": "slices"}, "agentLabels": MIG, "resources": SIZES} | spec
    about = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "NodeGroups", "metadata": {"name": "groups"}}
    return {**about, "nodeGroups": [group]}


def machines(replicas: int, size: int) -> Json:
    """Return a group of Cluster API that may have so many machines."""
    capacity = "capacity.cluster-autoscaler.kubernetes.io/"
    labels = ",".join(f"{key}={value}" for key, value in MIG.items())
    written = {"cpu": "32", "memory": "128Gi", "gpu-type": SLICE, "gpu-count": "7", "labels": labels}
    annotations = {f"{capacity}{key}": value for key, value in written.items()}
    annotations["cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"] = str(size)
    about = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment"}
    metadata = {"name": "slices", "namespace": "default", "annotations": annotations}
    return {**about, "metadata": metadata, "spec": {"replicas": replicas}}


def from_zero(*objects: Json, nodes: tuple[Json, ...] = (whole_node(),)) -> ClusterView:
    """Return a cluster with a queue, whose live nodes have no slices unless given."""
    return queues(*(objects if any(one["kind"] == "ClusterQueue" for one in objects) else (*ANY_FLAVOR, *objects)),
                  nodes=nodes)  # fmt: skip


def grouped(node: Json) -> Json:
    """Return a node of a node pool of GKE."""
    node["metadata"]["labels"][GROUP_LABEL] = "slices"
    return node


class Grown(NamedTuple):
    """A workload, in a cluster where only new nodes have enough slices."""

    workload: Json
    view: ClusterView
    want: KeepReason | None = None
    policy: str = GROW


TO_POOL = {"pool": "slices"}
QUOTA = cluster_queue(QUOTAS | {SLICE: "99", "cpu": "999"})
VOLUME = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def volume_in(zone: str) -> tuple[Json, Json]:
    """Return a volume that nodes of a zone reach, and the claim that has it."""
    return make_claim("data", volume="pv"), make_volume("pv", claim="data", zones=(zone,), phase="Bound")


GROWN = {
    "a group without nodes": Grown(job(), from_zero(new_group())),
    "more pods than one new node runs": Grown(job(parallelism=50, completions=50), from_zero(new_group())),
    "a policy that keeps": Grown(job(), from_zero(new_group()), KeepReason.NO_OFFER, TEMPLATES),
    "a group that does not grow": Grown(job(), from_zero(new_group(grows=False)), KeepReason.NO_GROWTH),
    "a group that does not grow, and a flavor of other nodes": Grown(
        job(), from_zero(flavor(labels={"pool": "other"}), QUOTA, new_group(grows=False)), KeepReason.NO_OFFER
    ),
    "machines as many as the pods need": Grown(job(parallelism=14), from_zero(machines(1, 3))),
    "fewer machines than the pods need": Grown(
        job(parallelism=15), from_zero(machines(1, 3)), KeepReason.NO_FLAVOR_NODES
    ),
    "live and new nodes together": Grown(
        job(parallelism=14), from_zero(machines(2, 3), nodes=(whole_node(), mig_node()))
    ),
    "fewer live and new nodes than the pods need": Grown(
        job(parallelism=15),
        from_zero(machines(2, 3), nodes=(whole_node(), mig_node())),
        KeepReason.NO_FLAVOR_NODES,
    ),
    "copies of a live node": Grown(job(parallelism=50), from_zero(nodes=(whole_node(), grouped(mig_node()))), None),
    "pods that a new node is too small for": Grown(
        job(small_pod().requests("cpu", "64")), from_zero(new_group()), KeepReason.NO_FLAVOR_NODES
    ),
    "a flavor of the new nodes": Grown(job(), from_zero(flavor(labels=TO_POOL), QUOTA, new_group())),
    "a flavor of other nodes": Grown(
        job(), from_zero(flavor(labels={"pool": "other"}), QUOTA, new_group()), KeepReason.NO_FLAVOR_NODES
    ),
    "a flavor with a label that agents add later": Grown(
        job(), from_zero(flavor(labels=TO_MIG_NODES), QUOTA, new_group()), KeepReason.NO_FLAVOR_NODES
    ),
    "a flavor with a topology": Grown(
        job(), from_zero(flavor(topologyName="racks"), QUOTA, new_group()), KeepReason.UNMODELED_CONSTRAINT
    ),
    "a taint that the flavor tolerates": Grown(
        job(), from_zero(flavor(tolerations=[TOLERATION]), QUOTA, new_group(taints=[TAINT]))
    ),
    "a taint that nothing tolerates": Grown(job(), from_zero(new_group(taints=[TAINT])), KeepReason.NO_FLAVOR_NODES),
    "a GPU taint, which pods are made to tolerate only if live nodes have it": Grown(
        job(),
        from_zero(new_group(taints=[GPU_TAINT])),
        KeepReason.NO_FLAVOR_NODES,
        GROW + "\ninjection: {tolerations: auto}",
    ),
    "a zone of the new nodes": Grown(
        job(small_pod().spec(nodeSelector={ZONE: "b"})), from_zero(new_group(labels={ZONE: "b"}))
    ),
    "another zone": Grown(
        job(small_pod().spec(nodeSelector={ZONE: "a"})),
        from_zero(new_group(labels={ZONE: "b"})),
        KeepReason.NO_FLAVOR_NODES,
    ),
    "a volume in the zone of the new nodes": Grown(
        job(small_pod().spec(volumes=VOLUME)), from_zero(new_group(labels={ZONE: "b"}), *volume_in("b"))
    ),
    "a volume in another zone": Grown(
        job(small_pod().spec(volumes=VOLUME)),
        from_zero(new_group(labels={ZONE: "b"}), *volume_in("a")),
        KeepReason.NO_FLAVOR_NODES,
    ),
}


@pytest.mark.parametrize("case", GROWN.values(), ids=GROWN)
def test_a_template_whose_slices_only_new_nodes_have(case: Grown) -> None:
    decision = review(case.workload, case.policy, view=case.view)
    if case.want is None:
        changed = apply_patch(case.workload, decision)
        assert limits_of(changed) == {SLICE: "1"}
        assert "affinity" not in changed["spec"]["template"]["spec"]
        assert [each.code for each in decision.findings] == ["GPU-R101"]
    else:
        assert isinstance(decision.outcome, KeepRequest)
        assert decision.outcome.reason is case.want


MODES = {
    "warn": ("mode: enforce\nrightSizing: {templates: warn}", ["warn GPU-R102"]),
    "audit": ("mode: enforce\nrightSizing: {templates: audit}", ["audit GPU-R102"]),
    "enforced in a section that only warns": (
        "mode: enforce\nrightSizing: {mode: warn, templates: enforce}",
        ["warn GPU-R102"],
    ),
}


@pytest.mark.parametrize(("policy", "want"), MODES.values(), ids=MODES)
def test_templates_in_another_mode_are_reported_and_kept(policy: str, want: list[str]) -> None:
    decision = review(job(), policy, view=queues())

    assert codes(decision) == want
    assert decision.patch == ()


def test_of_two_policies_the_more_careful_decides_about_templates() -> None:
    assert review(job(), TEMPLATES, SIZING, view=queues()).patch == ()


def ray_cluster(head: PodMaker, worker: PodMaker) -> Json:
    """Return a RayCluster in the queue, whose pods are single workers."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "ray", "namespace": "team", "labels": QUEUE},
        "spec": {
            "headGroupSpec": {"template": template(head)},
            "workerGroupSpecs": [{"replicas": 1, "template": template(worker)}],
        },
    }


def single(pod: PodMaker) -> PodMaker:
    """Return the pod with the statement that it works alone."""
    return pod.annotate("rightslice.dev/gang-size", "1")


def test_all_templates_of_a_workload_are_right_sized_together() -> None:
    workload = ray_cluster(single(small_pod()), single(small_pod()))
    after = apply_patch(workload, review(workload, TEMPLATES, view=queues()))

    for group in (after["spec"]["headGroupSpec"], after["spec"]["workerGroupSpecs"][0]):
        assert group["template"]["spec"]["containers"][0]["resources"]["limits"] == {SLICE: "1"}


def replicas_of(key: str, role: str = "Worker") -> Json:
    """Return the specification of a training job with one pod."""
    return {key: {role: {"replicas": 1, "template": template(single(small_pod()))}}}


RAY_GROUPS = ray_cluster(single(small_pod()), single(small_pod()))["spec"]
DEPLOYED = {"replicas": 1, "selector": {}, "template": template(single(small_pod()))}
JOBS = {"name": "main", "replicas": 1, "template": {"spec": {"template": template(single(small_pod()))}}}

QUEUED_KINDS: dict[tuple[str, str], Json] = {
    ("apps", "Deployment"): DEPLOYED,
    ("apps", "StatefulSet"): DEPLOYED,
    ("batch", "Job"): {"template": template(single(small_pod()))},
    ("jobset.x-k8s.io", "JobSet"): {"replicatedJobs": [JOBS]},
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): {
        "replicas": 2,
        "leaderWorkerTemplate": {"size": 1, "workerTemplate": template(single(small_pod()))},
    },
    ("ray.io", "RayCluster"): RAY_GROUPS,
    ("ray.io", "RayJob"): {"entrypoint": "python train.py", "rayClusterSpec": RAY_GROUPS},
    ("kubeflow.org", "PyTorchJob"): replicas_of("pytorchReplicaSpecs", "Master"),
    ("kubeflow.org", "TFJob"): replicas_of("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): replicas_of("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): replicas_of("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): replicas_of("jaxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): replicas_of("mpiReplicaSpecs"),
    ("workload.codeflare.dev", "AppWrapper"): {"components": [{"template": job(single(small_pod()), labels={})}]},
}
"""The specification of each kind that Kueue charges, with pods that need 8 GiB of one GPU."""


def limits_in(value: Any) -> list[Json]:
    """Return the limits of all containers in an object."""
    if isinstance(value, list):
        return [found for each in value for found in limits_in(each)]
    if not isinstance(value, dict):
        return []
    own = [value["limits"]] if "limits" in value else []
    return own + [found for each in value.values() for found in limits_in(each)]


@pytest.mark.parametrize("kind", QUEUED_KINDS, ids=lambda kind: "/".join(kind))
def test_every_template_of_a_queued_kind_is_right_sized_when_it_is_created(kind: tuple[str, str]) -> None:
    group, name = kind
    metadata = {"name": "train", "namespace": "team", "labels": QUEUE}
    workload = {"apiVersion": f"{group}/v1", "kind": name, "metadata": metadata, "spec": QUEUED_KINDS[kind]}
    after = apply_patch(workload, review(workload, TEMPLATES, view=queues()))

    assert {WHOLE} == {key for each in limits_in(workload) for key in each}
    assert limits_in(after) == [{SLICE: "1"}] * len(limits_in(workload))


def test_every_kind_that_kueue_charges_by_its_templates_is_among_them() -> None:
    """A CronJob is charged by its Jobs, and Volcano charges its Jobs itself."""
    assert set(QUEUED_KINDS) == CHARGED_KINDS - {("batch", "CronJob"), ("batch.volcano.sh", "Job")}


def test_a_template_without_gpus_does_not_matter() -> None:
    workload = ray_cluster(make_pod(), single(small_pod()))
    after = apply_patch(workload, review(workload, TEMPLATES, view=queues()))

    assert after["spec"]["headGroupSpec"] == workload["spec"]["headGroupSpec"]
    assert after["spec"]["workerGroupSpecs"][0] != workload["spec"]["workerGroupSpecs"][0]


def test_no_template_is_right_sized_if_another_one_keeps_whole_gpus() -> None:
    workload = ray_cluster(make_pod().gpus(4).needs("8Gi"), single(small_pod()))
    decision = review(workload, TEMPLATES, view=queues())

    assert decision.patch == ()
    assert [str(one.outcome) for _, _, one in decision.templates] == [
        str(KeepRequest(KeepReason.MULTIPLE_GPUS)),
        str(KeepRequest(KeepReason.OTHER_POD_SET, "spec.headGroupSpec.template")),
    ]


def test_the_queue_must_admit_all_templates_together() -> None:
    view = queues(flavor(), cluster_queue(QUOTAS | {SLICE: 1}))
    decision = review(ray_cluster(single(small_pod()), single(small_pod())), TEMPLATES, view=view)

    assert decision.patch == ()
    assert {one.outcome.reason for _, _, one in decision.templates if isinstance(one.outcome, KeepRequest)} == {
        KeepReason.NOT_ADMITTED
    }


OWNED_FIELDS = ("resources", "env", "args", "command")


@given(gpu_pods(), st.sampled_from(["enforce", "warn"]))
def test_the_patch_touches_only_what_right_sizing_owns(pod: Json, mode: str) -> None:
    """It applies, and is empty unless templates are enforced."""
    workload = job() | {"spec": {"template": {key: pod[key] for key in ("metadata", "spec") if key in pod}}}
    policy = f"mode: enforce\nrightSizing: {{templates: {mode}, default: {{memory: 8Gi}}, isolation: none}}"
    decision = review(workload, policy, view=queues())
    after = apply_patch(workload, decision)
    root = json_pointer(("spec", "template"))
    steps = [operation["path"].removeprefix(root).split("/")[1:] for operation in decision.patch]

    assert all(step[0] == "metadata" or step[1] == "affinity" or step[3] in OWNED_FIELDS for step in steps)
    assert without_owned_fields(after) == without_owned_fields(workload)
    assert not decision.patch or mode == "enforce"


def without_owned_fields(workload: Json) -> Json:
    """Return the pod of a template without the fields that right-sizing owns: of resources only those of GPUs."""
    spec = {key: value for key, value in workload["spec"]["template"]["spec"].items() if key != "affinity"}
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [
                {key: value for key, value in each.items() if key not in OWNED_FIELDS}
                | {"resources": other_amounts(each)}
                for each in spec[kind]
            ]
    return spec


def other_amounts(container: Json) -> Json:
    """Return the amounts of a container that are not of GPUs."""
    resources = container.get("resources") or {}
    return {
        side: others
        for side in ("limits", "requests")
        if (others := {name: one for name, one in (resources.get(side) or {}).items() if "nvidia.com" not in name})
    }


def job_set(*pods: int, labels: Json = QUEUE, pod: PodMaker | None = None) -> Json:
    """Return a JobSet with a job for each number of pods."""
    jobs = [
        {
            "name": f"j{index}",
            "template": {"spec": job(pod or single(small_pod()), parallelism=count, completions=count)["spec"]},
        }
        for index, count in enumerate(pods)
    ]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": "team", "labels": labels},
        "spec": {"replicatedJobs": jobs},
    }


TOGETHER: dict[str, tuple[tuple[int, ...], ClusterView, bool]] = {
    "all slices": ((4, 3), queues(), True),
    "more than all": ((4, 4), queues(flavor(), cluster_queue(QUOTAS | {SLICE: "99"})), False),
    "more than are free now": (
        (2, 2),
        queues(flavor(), cluster_queue(QUOTAS), make_pod("p").requests(SLICE, "4").spec(nodeName="mig").build()),
        False,
    ),
    "all that are free now": (
        (2, 1),
        queues(flavor(), cluster_queue(QUOTAS), make_pod("p").requests(SLICE, "4").spec(nodeName="mig").build()),
        True,
    ),
}


@pytest.mark.parametrize(("pods", "view", "is_changed"), TOGETHER.values(), ids=TOGETHER)
def test_the_templates_of_a_workload_share_the_slices_of_its_queue(
    pods: tuple[int, ...], view: ClusterView, *, is_changed: bool
) -> None:
    decision = review(job_set(*pods), TEMPLATES, view=view)
    assert bool(decision.patch) is is_changed
    assert {str(each.outcome.reason) for *_, each in decision.templates if isinstance(each.outcome, KeepRequest)} <= {
        KeepReason.NO_FLAVOR_NODES,
        KeepReason.NO_FREE_CAPACITY,
        KeepReason.OTHER_POD_SET,
    }


def test_the_pods_of_an_earlier_template_hold_their_slices() -> None:
    last = [review(job_set(*pods, labels={}), SIZING, view=queues()).templates[-1][2] for pods in ((6, 1), (7, 1))]
    assert [each.outcome.resource for each in last if isinstance(each.outcome, OfferChoice)] == [
        SLICE,
        "nvidia.com/mig-3g.40gb",
    ]
