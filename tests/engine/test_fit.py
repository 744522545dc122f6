"""Right-sizing: the chosen size of one request, or the reason for keeping it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_node, make_pod
from tests.example_cluster import (
    A100,
    GPU_TAINT,
    MIXED,
    apply_patch,
    codes,
    mig_node,
    review,
    tainted,
    view_of,
    whole_node,
)
from tests.usage_builders import observed_usage, workload_usage
from webhook.engine.mutate import REPORTED_REASONS
from webhook.model.cluster_view import AssumedPod, ClusterView
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice
from webhook.model.usage import UsageView

GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
ONE = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
SHARED = "nvidia.com/gpu.shared"
HOSTNAME = "kubernetes.io/hostname"
SIZING = "mode: enforce\nrightSizing: {}"
NODES = (whole_node(), mig_node())

L40S = {"nvidia.com/gpu.product": "NVIDIA-L40S", "nvidia.com/gpu.memory": "46068", "nvidia.com/gpu.replicas": "4"}
SLICED = make_node("sliced", L40S | {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, **{SHARED: 16})
MPS = make_node(
    "mps",
    L40S | {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/mps.capable": "true"},
    **{SHARED: 16},
)


MIG_ONLY = make_node("slices", MIXED, **{SMALL: 7})


def sizing(**fields: Any) -> str:
    """Return an enforced right-sizing policy."""
    inner = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"mode: enforce\nrightSizing: {{{inner}}}"


def limit_range(**item: Any) -> Json:
    """Return a LimitRange for containers in the team's namespace."""
    spec = {"limits": [{"type": "Container"} | item]}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "lr", "namespace": "team"}, "spec": spec}


def quota(hard: dict[str, str], used: dict[str, str] | None = None) -> Json:
    """Return a counted quota in the team's namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "team"},
        "spec": {"hard": hard},
        "status": {"hard": hard, "used": used or dict.fromkeys(hard, "0")},
    }


def small() -> PodMaker:
    """Return a pod that requests one GPU and needs 8Gi."""
    return make_pod().gpus(1).needs("8Gi")


def quiet_pod(on: str = "mig", namespace: str = "team", **term: Any) -> Json:
    """Return a pod whose required anti-affinity keeps noisy pods from its node."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"noisy": "yes"}}} | term
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return make_pod("quiet").namespace(namespace).spec(nodeName=on, affinity=affinity).build()


def web(port: int = 80, **fields: Any) -> Json:
    """Return a container's port that holds a port of its host."""
    return {"containerPort": 80, "hostPort": port} | fields


def with_port(pod: PodMaker, **fields: Any) -> PodMaker:
    """Return a pod with a host port."""
    return pod.container("web", ports=[web(**fields)])


def holder(name: str = "holder", on: str = "mig", phase: str = "Running", **fields: Any) -> Json:
    """Return a pod that holds a host port of a node."""
    return with_port(make_pod(name).spec(nodeName=on), **fields).build() | {"status": {"phase": phase}}


class Case(NamedTuple):
    pod: PodMaker
    want: str | KeepReason
    nodes: tuple[Json, ...] = NODES
    policy: str = SIZING


CASES = {
    "8Gi fits the smallest slice": Case(small(), SMALL),
    "exactly a slice's memory fits": Case(make_pod().gpus(1).needs("9728Mi"), SMALL),
    "one MiB more needs the next": Case(make_pod().gpus(1).needs("9729Mi"), LARGE),
    "compute counts too": Case(make_pod().gpus(1).needs("8Gi", "30%"), LARGE),
    "more than any slice has": Case(make_pod().gpus(1).needs("60Gi"), KeepReason.NO_OFFER),
    "no declared need": Case(make_pod().gpus(1), KeepReason.NO_EVIDENCE),
    "compute alone is no evidence of memory": Case(make_pod().gpus(1).needs(compute="10%"), KeepReason.NO_EVIDENCE),
    "an unreadable declaration is no evidence": Case(make_pod().gpus(1).needs("eight"), KeepReason.NO_EVIDENCE),
    "the policy's default": Case(make_pod().gpus(1), SMALL, policy=sizing(default="{memory: 8Gi}")),
    "a default that the policy does not accept": Case(
        make_pod().gpus(1), KeepReason.NO_EVIDENCE, policy=sizing(default="{memory: 8Gi}", evidence="[declared]")
    ),
    "too small a saving": Case(
        make_pod().gpus(1).needs("30Gi"), KeepReason.SAVING_TOO_SMALL, policy=sizing(minSavingPercent=60)
    ),
    "the user opts out": Case(small().annotate("rightslice.dev/keep", "true"), KeepReason.OPTED_OUT),
    "the user opts out in other words": Case(small().annotate("rightslice.dev/keep", "True"), KeepReason.OPTED_OUT),
    "the user opts out of opting out": Case(small().annotate("rightslice.dev/keep", "false"), SMALL),
    "two GPUs stay whole": Case(make_pod().gpus(2).needs("8Gi"), KeepReason.MULTIPLE_GPUS),
    "two containers with a GPU each stay whole": Case(
        small().container("second", resources=ONE), KeepReason.MULTIPLE_GPUS
    ),
    "a sidecar with a GPU next to another stays whole": Case(
        small().container("side", kind="initContainers", restartPolicy="Always", resources=ONE),
        KeepReason.MULTIPLE_GPUS,
    ),
    "an init container with two GPUs keeps them": Case(
        small().container("warm", kind="initContainers", resources={"limits": {GPU: "2"}}), KeepReason.MULTIPLE_GPUS
    ),
    "one GPU after another counts as one": Case(small().container("warm", kind="initContainers", resources=ONE), SMALL),
    "a slice requested is ignored": Case(make_pod().requests(SMALL, "1").needs("4Gi"), KeepReason.NO_WHOLE_GPU),
    "two kinds stay": Case(small().requests(SMALL, "1"), KeepReason.MIXED_RESOURCES),
    "an unknown name stays": Case(small().requests("nvidia.com/gpumem", "1"), KeepReason.MIXED_RESOURCES),
    "a fraction stays": Case(make_pod().gpus("0.5").needs("8Gi"), KeepReason.INVALID_AMOUNT),
    "requests that differ from limits stay": Case(
        small().spec(containers=[{"name": "a", "resources": {"limits": {GPU: "1"}, "requests": {GPU: "2"}}}]),
        KeepReason.INVALID_AMOUNT,
    ),
    "a DaemonSet's pod": Case(small().owned_by("DaemonSet", "agent"), KeepReason.DAEMON_SET),
    "a static pod": Case(small().annotate("kubernetes.io/config.mirror", "x"), KeepReason.MIRROR),
    "a pod with a node": Case(small().spec(nodeName="whole"), KeepReason.BOUND),
    "a pod with claims": Case(small().spec(resourceClaims=[{"name": "c"}]), KeepReason.RESOURCE_CLAIMS),
    "a queued pod": Case(small().label("kueue.x-k8s.io/queue-name", "q"), KeepReason.QUEUED_POD),
    "a queued pod of a Job": Case(
        small().label("kueue.x-k8s.io/queue-name", "q").owned_by("Job", "j"), KeepReason.QUEUED
    ),
    "a queued pod that may wait for a slice": Case(
        small().label("kueue.x-k8s.io/queue-name", "q"), KeepReason.QUEUED_POD, policy=sizing(whenFull="wait")
    ),
    "a pod with a scheduling gate": Case(
        small().spec(schedulingGates=[{"name": "example.com/budget"}]), KeepReason.SCHEDULING_GATED
    ),
    "a pod of the second scheduler": Case(small().spec(schedulerName="rightslice"), SMALL),
    "no node matches": Case(small(), KeepReason.NO_OFFER, (whole_node(),)),
    "all slices taken by allocatable": Case(small(), LARGE, (whole_node(), mig_node(small=0))),
    "the node's selector rules slices out": Case(
        small().spec(nodeSelector={"kubernetes.io/hostname": "whole"}), KeepReason.UNREACHABLE
    ),
    "running pods' anti-affinity on every node with slices": Case(
        small().label("noisy", "yes"), KeepReason.ANTI_AFFINITY, (*NODES, quiet_pod())
    ),
    "running pods' anti-affinity that means other pods": Case(
        small().label("noisy", "no"), SMALL, (*NODES, quiet_pod())
    ),
    "running pods' anti-affinity on one node of two": Case(
        small().label("noisy", "yes"), SMALL, (*NODES, mig_node("other"), quiet_pod())
    ),
    "a waiting pod's anti-affinity, which may get the only node with slices": Case(
        small().label("noisy", "yes"), KeepReason.ANTI_AFFINITY, (*NODES, quiet_pod(on=""))
    ),
    "a waiting pod's anti-affinity, which leaves one node of two": Case(
        small().label("noisy", "yes"), SMALL, (*NODES, mig_node("other"), quiet_pod(on=""))
    ),
    "anti-affinity of pods of another namespace to pods of their own": Case(
        small().label("noisy", "yes"), SMALL, (*NODES, quiet_pod(namespace="other"))
    ),
    "anti-affinity of pods of another namespace to pods of all": Case(
        small().label("noisy", "yes"),
        KeepReason.ANTI_AFFINITY,
        (*NODES, quiet_pod(namespace="other", namespaceSelector={})),
    ),
    "anti-affinity to a label that the policy adds": Case(
        small(),
        KeepReason.ANTI_AFFINITY,
        (*NODES, quiet_pod()),
        policy=f"{SIZING}\ninjection: {{labels: {{noisy: 'yes'}}}}",
    ),
    "anti-affinity to pods without a label that the policy adds": Case(
        small(),
        KeepReason.ANTI_AFFINITY,
        (*NODES, quiet_pod(labelSelector={"matchExpressions": [{"key": "noisy", "operator": "DoesNotExist"}]})),
    ),
    "a host port that is free": Case(with_port(small()), SMALL),
    "a host port that a pod holds on the only node with slices": Case(
        with_port(small()), KeepReason.HOST_PORT, (*NODES, holder())
    ),
    "another host port on the node with slices": Case(with_port(small()), SMALL, (*NODES, holder(port=81))),
    "the same host port on a node without slices": Case(with_port(small()), SMALL, (*NODES, holder(on="whole"))),
    "a host port of a pod that has ended": Case(with_port(small()), SMALL, (*NODES, holder(phase="Succeeded"))),
    "a host port in use on one node of two": Case(with_port(small()), SMALL, (*NODES, mig_node("other"), holder())),
    "a host port that a waiting pod may take on any node": Case(
        with_port(small()), KeepReason.HOST_PORT, (*NODES, mig_node("other"), holder(on="", phase="Pending"))
    ),
    "a host port in use for a pod that may wait": Case(
        with_port(small()), SMALL, (*NODES, holder()), policy=sizing(whenFull="wait")
    ),
    "a taint that is not tolerated": Case(small(), KeepReason.UNREACHABLE, (tainted(mig_node(), GPU_TAINT),)),
    "a taint that the pod tolerates": Case(
        small().spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        SMALL,
        (tainted(mig_node(), GPU_TAINT),),
    ),
    "a GPU taint that the policy tolerates for it": Case(
        small(), SMALL, (tainted(mig_node(), GPU_TAINT),), SIZING + "\ninjection: {tolerations: auto}"
    ),
    "a GPU taint of every node that a policy in audit mode would tolerate for it": Case(
        small(),
        SMALL,
        (tainted(whole_node(), GPU_TAINT), tainted(mig_node(), GPU_TAINT)),
        "mode: audit\nrightSizing: {}\ninjection: {tolerations: auto}",
    ),
    "a taint that reserves nodes is never tolerated for it": Case(
        small(),
        KeepReason.UNREACHABLE,
        (tainted(mig_node(), {"key": "team", "value": "b", "effect": "NoSchedule"}),),
        SIZING + "\ninjection: {tolerations: auto}",
    ),
    "no CPU left next to the slices": Case(small().requests("cpu", "100"), KeepReason.UNREACHABLE),
    "no time slicing where hardware isolation is required": Case(small(), KeepReason.FORM_NOT_ALLOWED, (SLICED,)),
    "time slicing where the policy allows it": Case(small(), SHARED, (SLICED,), sizing(isolation="none")),
    "MPS requires less isolation than time slicing": Case(small(), SHARED, (MPS,), sizing(isolation="memory")),
    "MPS is not hardware isolation": Case(small(), KeepReason.FORM_NOT_ALLOWED, (MPS,)),
    "forms are tried in order": Case(
        small(), SHARED, (MIG_ONLY, SLICED), sizing(isolation="none", forms="[timeSlicing, mig]")
    ),
    "a form that the policy does not list is not chosen": Case(
        small(), KeepReason.FORM_NOT_ALLOWED, policy=sizing(isolation="memory", forms="[mps]")
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fit(case: Case) -> None:
    outcome = review(case.pod, case.policy, nodes=case.nodes).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == case.want


KEEPS = {
    "true": ["audit GPU-R103"],
    "false": ["warn GPU-R101"],
    "True": ["audit GPU-R103", "warn GPU-R104"],
    "yes": ["audit GPU-R103", "warn GPU-R104"],
    "": ["audit GPU-R103", "warn GPU-R104"],
}


@pytest.mark.parametrize(("said", "want"), KEEPS.items(), ids=KEEPS)
def test_an_opt_out_with_another_value_counts_and_is_reported(said: str, want: list[str]) -> None:
    decision = review(small().annotate("rightslice.dev/keep", said), SIZING, nodes=NODES)
    assert [code for code in codes(decision) if "GPU-R" in code] == want


QUEUED = {
    "Kueue": (small().label("kueue.x-k8s.io/queue-name", "q"), "label kueue.x-k8s.io/queue-name"),
    "Volcano, a pod group": (
        small().annotate("scheduling.k8s.io/group-name", "g"),
        "annotation scheduling.k8s.io/group-name",
    ),
    "Volcano, a queue": (
        small().annotate("scheduling.volcano.sh/queue-name", "q"),
        "annotation scheduling.volcano.sh/queue-name",
    ),
    "Volcano, its scheduler": (small().spec(schedulerName="volcano"), "schedulerName volcano"),
    "YuniKorn": (small().label("yunikorn.apache.org/app-id", "a"), "label yunikorn.apache.org/app-id"),
    "YuniKorn, by annotation": (
        small().annotate("yunikorn.apache.org/task-group-name", "g"),
        "annotation yunikorn.apache.org/task-group-name",
    ),
    "YuniKorn, its scheduler": (small().spec(schedulerName="yunikorn"), "schedulerName yunikorn"),
    "KAI": (small().label("kai.scheduler/queue", "q"), "label kai.scheduler/queue"),
    "KAI, its older label": (small().label("runai/queue", "q"), "label runai/queue"),
    "KAI, its scheduler": (small().spec(schedulerName="kai-scheduler"), "schedulerName kai-scheduler"),
    "coscheduling": (small().label("scheduling.x-k8s.io/pod-group", "g"), "label scheduling.x-k8s.io/pod-group"),
}


@pytest.mark.parametrize(("pod", "sign"), QUEUED.values(), ids=QUEUED)
def test_a_pod_queued_by_another_system_keeps_its_gpu_and_the_reason_names_the_queue(pod: PodMaker, sign: str) -> None:
    reason = KeepReason.CHARGED_AS_WHOLE if "kai" in sign or "runai" in sign else KeepReason.QUEUED_POD
    assert review(pod, SIZING, nodes=NODES).outcome == KeepRequest(reason, sign)


QUEUED_TOO = sizing(templates="enforce")


def in_job(kind: str = "Job") -> PodMaker:
    """Return a small pod of a workload, with a label that Kueue writes on pods whose template it has charged."""
    return small().label("kueue.x-k8s.io/podset", "main").owned_by(kind, "w")


OF_TEMPLATES: dict[str, tuple[PodMaker, KeepReason, str]] = {
    "of a Job": (in_job(), KeepReason.QUEUED, SIZING),
    "of a Job, and templates are only reported": (in_job(), KeepReason.QUEUED, sizing(templates="warn")),
    "of a Job that was charged before templates were right-sized": (in_job(), KeepReason.ALREADY_CHARGED, QUEUED_TOO),
    "of a Deployment": (
        in_job().label("pod-template-hash", "5d").owned_by("ReplicaSet", "w-5d"),
        KeepReason.ALREADY_CHARGED,
        QUEUED_TOO,
    ),
    "of a ReplicaSet alone, whose template is never changed": (
        in_job("ReplicaSet"),
        KeepReason.QUEUED_POD,
        QUEUED_TOO,
    ),
    "of a Workflow, which has a template that is never changed": (
        in_job("Workflow"),
        KeepReason.QUEUED_POD,
        QUEUED_TOO,
    ),
    "of a Job of YuniKorn, which charges pods": (
        small().label("yunikorn.apache.org/app-id", "a").owned_by("Job", "w"),
        KeepReason.QUEUED_POD,
        SIZING,
    ),
    "of a Job in two queueing systems": (in_job().spec(schedulerName="volcano"), KeepReason.QUEUED_POD, SIZING),
    "of a Job of KAI, whose template Kueue charges": (
        in_job().spec(schedulerName="kai-scheduler"),
        KeepReason.QUEUED,
        SIZING,
    ),
    "of a Job of KAI, whose template Kueue has charged": (
        in_job().spec(schedulerName="kai-scheduler"),
        KeepReason.ALREADY_CHARGED,
        QUEUED_TOO,
    ),
    "of a Job of Volcano": (
        small().spec(schedulerName="volcano").owned_by("Job", "w", "batch.volcano.sh/v1alpha1"),
        KeepReason.ALREADY_CHARGED,
        QUEUED_TOO,
    ),
    "of a Job of a group that no queue charges": (
        small().label("kueue.x-k8s.io/podset", "main").owned_by("Job", "w", "foo.io/v1"),
        KeepReason.QUEUED_POD,
        QUEUED_TOO,
    ),
    "of such a Job with the name of one of a CronJob": (
        small().label("kueue.x-k8s.io/podset", "main").owned_by("Job", "w-29912345", "foo.io/v1"),
        KeepReason.QUEUED_POD,
        QUEUED_TOO,
    ),
    "of a CronJob": (
        small().label("kueue.x-k8s.io/podset", "main").owned_by("Job", "w-29912345"),
        KeepReason.ALREADY_CHARGED,
        QUEUED_TOO,
    ),
    "of a Kubernetes Job that Volcano schedules": (
        small().spec(schedulerName="volcano").owned_by("Job", "w"),
        KeepReason.QUEUED_POD,
        QUEUED_TOO,
    ),
}


@pytest.mark.parametrize(("pod", "reason", "policy"), OF_TEMPLATES.values(), ids=OF_TEMPLATES)
def test_the_reason_of_a_queued_pod_says_whether_its_template_would_be_right_sized(
    pod: PodMaker, reason: KeepReason, policy: str
) -> None:
    outcome = review(pod, policy, nodes=NODES).outcome
    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is reason


def test_no_setting_is_advised_where_none_helps() -> None:
    for reason in (KeepReason.QUEUED_POD, KeepReason.ALREADY_CHARGED, KeepReason.SCHEDULER_SHARD):
        assert "rightSizing" not in reason.fix


SHARED_TOO = sizing(templates="enforce", isolation="none")


def kai() -> PodMaker:
    """Return a small pod of a queue of KAI."""
    return small().label("kai.scheduler/queue", "q").spec(schedulerName="kai-scheduler")


def large_holder() -> Json:
    """Return a pod that holds all larger slices of the node with slices."""
    return make_pod("holder").requests(LARGE, "2").spec(nodeName="mig").build()


KAI = {
    "a slice with one compute slice is charged as the card was": Case(kai(), SMALL, policy=QUEUED_TOO),
    "a larger slice is charged as several GPUs": Case(
        kai().needs("20Gi"), KeepReason.NO_EQUAL_CHARGE, policy=QUEUED_TOO
    ),
    "a share is charged as nothing": Case(kai(), KeepReason.NO_EQUAL_CHARGE, (SLICED,), SHARED_TOO),
    "a larger slice is charged as several GPUs, free or not": Case(
        kai().needs("20Gi"), KeepReason.NO_EQUAL_CHARGE, (whole_node(), mig_node(), large_holder()), QUEUED_TOO
    ),
    "a policy that only warns of templates does not change pods in queues": Case(
        kai(), KeepReason.CHARGED_AS_WHOLE, policy=sizing(templates="warn")
    ),
    "a pod of another shard may run on other nodes only": Case(
        kai().label("kai.scheduler/node-pool", "a"), KeepReason.SCHEDULER_SHARD, policy=QUEUED_TOO
    ),
    "a pod of another shard, whatever the policy says about templates": Case(
        kai().label("kai.scheduler/node-pool", "a"), KeepReason.SCHEDULER_SHARD
    ),
    "nodes of another shard are not used for the pod": Case(
        kai(),
        KeepReason.SCHEDULER_SHARD,
        (make_node("slices", MIXED | {"kai.scheduler/node-pool": "a"}, **{SMALL: 7}),),
        QUEUED_TOO,
    ),
    "no slice is free": Case(kai(), KeepReason.NO_OFFER, (whole_node(),), QUEUED_TOO),
    "memory that KAI would charge besides the slice": Case(
        kai().annotate("gpu-memory", "8192"), KeepReason.FRACTION_REQUESTED, policy=QUEUED_TOO
    ),
    "a fraction that KAI would charge besides the slice": Case(
        kai().annotate("gpu-fraction", "0.5"), KeepReason.FRACTION_REQUESTED, policy=QUEUED_TOO
    ),
    "memory of one container that KAI would charge besides the slice": Case(
        kai().annotate("nvidia.com/container.main.gpu-memory.request", "8Gi"),
        KeepReason.FRACTION_REQUESTED,
        policy=QUEUED_TOO,
    ),
    "memory that an unknown scheduler may charge": Case(
        small().annotate("gpu-memory", "8192").spec(schedulerName="other"), KeepReason.FRACTION_REQUESTED
    ),
}


@pytest.mark.parametrize("case", KAI.values(), ids=KAI)
def test_a_pod_in_a_queue_of_kai_gets_what_kai_charges_as_one_gpu(case: Case) -> None:
    outcome = review(case.pod, case.policy, nodes=case.nodes).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == case.want


def for_kai(key: str, value: str) -> PodMaker:
    """Return a pod of the default scheduler that states its need as for KAI."""
    return make_pod().gpus(1).annotate(key, value)


STATED_FOR_KAI = {
    "memory in MiB": Case(for_kai("gpu-memory", "8192"), SMALL),
    "more memory than the smallest slice has": Case(for_kai("gpu-memory", "20000"), KeepReason.NO_OFFER),
    "memory that may be GiB": Case(for_kai("gpu-memory", "16"), KeepReason.NO_EVIDENCE),
    "memory with a unit, which KAI rejects": Case(for_kai("gpu-memory", "8Gi"), KeepReason.NO_EVIDENCE),
    "memory that is no number": Case(for_kai("gpu-memory", "eight"), KeepReason.NO_EVIDENCE),
    "a fraction of the largest card": Case(for_kai("gpu-fraction", "0.1"), SMALL),
    "a fraction that no slice has": Case(for_kai("gpu-fraction", "0.5"), KeepReason.NO_OFFER),
    "a fraction of more than the slice's compute": Case(for_kai("gpu-fraction", "0.15"), KeepReason.NO_OFFER),
    "a whole card": Case(for_kai("gpu-fraction", "1"), KeepReason.NO_EVIDENCE),
    "no number": Case(for_kai("gpu-fraction", "half"), KeepReason.NO_EVIDENCE),
    "a need declared for Rightslice counts": Case(for_kai("gpu-memory", "2048").needs("20000Mi"), KeepReason.NO_OFFER),
}


@pytest.mark.parametrize("case", STATED_FOR_KAI.values(), ids=STATED_FOR_KAI)
def test_annotations_for_kai_state_the_need_where_no_scheduler_reads_them(case: Case) -> None:
    nodes = (make_node("slices", MIXED, **{GPU: 1, SMALL: 7}),)
    outcome = review(case.pod, case.policy, nodes=nodes).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == case.want


@pytest.mark.parametrize(("key", "value"), [("gpu-memory", "eight"), ("gpu-memory", "8Gi"), ("gpu-fraction", "half")])
def test_an_annotation_for_kai_that_is_no_number_is_a_finding(key: str, value: str) -> None:
    decision = review(for_kai(key, value), sizing())
    (finding,) = [each for each in decision.findings if each.code == "GPU-R104"]
    assert finding.path == ("metadata", "annotations", key)
    assert repr(value) in finding.message


LIMITED = {
    "no LimitRange names GPUs: the key is removed": ((), {SMALL: "1"}),
    "a maximum on GPUs: the key becomes zero": (
        (limit_range(max={GPU: "4"}, default={GPU: "0"}, defaultRequest={GPU: "0"}),),
        {GPU: "0", SMALL: "1"},
    ),
    "a minimum on GPUs: nothing changes": ((limit_range(min={GPU: "1"}),), {GPU: "1"}),
    "a ratio on GPUs: nothing changes": ((limit_range(maxLimitRequestRatio={GPU: "1"}),), {GPU: "1"}),
    "a maximum of zero small slices: the next larger": ((limit_range(max={SMALL: "0"}),), {LARGE: "1"}),
    "a maximum of zero slices: nothing changes": ((limit_range(max={SMALL: "0", LARGE: "0"}),), {GPU: "1"}),
    "a quota on GPUs alone: nothing changes": ((quota({f"requests.{GPU}": "8"}),), {GPU: "1"}),
    "a quota on both": ((quota({f"requests.{GPU}": "8", f"requests.{SMALL}": "8"}),), {SMALL: "1"}),
    "a quota whose slices are used up": (
        (quota({f"requests.{GPU}": "8", f"requests.{SMALL}": "1"}, {f"requests.{SMALL}": "1"}),),
        {GPU: "1"},
    ),
}


@pytest.mark.parametrize(("objects", "want"), LIMITED.values(), ids=LIMITED)
def test_limit_ranges_and_quotas_determine_the_rewrite(objects: tuple[Json, ...], want: dict[str, str]) -> None:
    decision = review(small(), SIZING, nodes=(*NODES, *objects))
    resources = apply_patch(small(), decision)["spec"]["containers"][0]["resources"]
    assert resources["limits"] == want
    assert resources["requests"] == want


def test_a_quota_without_capacity_for_a_slice_is_named() -> None:
    both = {f"requests.{GPU}": "8", f"requests.{SMALL}": "1", f"requests.{LARGE}": "0"}
    decision = review(small(), SIZING, nodes=(*NODES, quota(both, {f"requests.{SMALL}": "1"})))
    assert decision.outcome == KeepRequest(KeepReason.QUOTA_EXCEEDED, f"{SMALL} in quota team")
    assert codes(decision) == ["warn GPU-R103"]
    assert decision.warnings[0].fix == "Wait until pods that use the quota end, or ask for a higher quota."


NOTHING_TO_DO = {
    KeepReason.SAVING_TOO_SMALL,
    KeepReason.ANTI_AFFINITY,
    KeepReason.POD_AFFINITY,
    KeepReason.TOPOLOGY_SPREAD,
    KeepReason.HOST_PORT,
    KeepReason.UNREACHABLE,
}
"""Reasons that neither the user nor a policy should change; the message of MEMORY_FRACTION says what to write."""


def test_every_reported_reason_that_can_be_acted_on_has_a_fix() -> None:
    silent = {reason for reason in REPORTED_REASONS if not reason.fix}
    assert silent == NOTHING_TO_DO | {KeepReason.MEMORY_FRACTION}


def test_a_request_without_a_limit_is_not_called_an_odd_number() -> None:
    pod = small().spec(containers=[{"name": "a", "resources": {"requests": {GPU: "1"}}}])
    outcome = review(pod, SIZING, nodes=NODES).outcome
    assert str(outcome) == "its GPU amount is not one whole number, equal in limits and requests"


NONE_GIVEN = {
    "none unless it is requested": (limit_range(max={SMALL: "4"}, default={SMALL: "0"}), {SMALL: "1"}),
    "none at all": (limit_range(max={SMALL: "0"}, default={SMALL: "0"}), {LARGE: "1", SMALL: "0"}),
}


@pytest.mark.parametrize(("given", "want"), NONE_GIVEN.values(), ids=NONE_GIVEN)
def test_a_slice_that_a_limit_range_sets_to_zero_is_not_chosen(given: Json, want: dict[str, str]) -> None:
    """Seen on a real control plane: the zero was applied last, and the pod lost its GPU."""
    pod = small().requests(SMALL, "0")

    resources = apply_patch(pod, review(pod, SIZING, nodes=(*NODES, given)))["spec"]["containers"][0]["resources"]

    assert resources == {"limits": want, "requests": want}


def test_a_policy_limit_on_slices_keeps_the_request() -> None:
    limits = 'mode: enforce\nlimits: {perPod: [{resource: "nvidia.com/mig-*", max: 0}]}'
    outcome = review(small(), SIZING, limits, nodes=NODES).outcome
    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.LIMITS


def about(resource: str, rest: str = "limits: {perPod: [{resource: memory, max: 16Gi}]}", mode: str = "enforce") -> str:
    """Return a policy that matches pods that request one resource."""
    return f'mode: {mode}\nmatch: {{resources: ["{resource}"]}}\n{rest}'


def narrowed(field: str) -> str:
    """Return a policy for slices that matches only some pods."""
    return about("nvidia.com/mig-*").replace("match: {", f"match: {{{field}, ")


LABELED = narrowed("objectSelector: {matchLabels: {tier: slices}}")
CONDITIONAL = narrowed("matchConditions: [{name: c, expression: 'request.dryRun'}]")

NEWCOMERS = {
    "a policy for slices matches the smaller request": (
        small(),
        (about("nvidia.com/mig-*"),),
        KeepReason.NEW_POLICY,
    ),
    "a policy only for the smallest slice: the next larger": (small(), (about(SMALL),), LARGE),
    "a policy for shares: a slice": (small(), (about(SHARED),), SMALL),
    "a policy for whole GPUs no longer matches": (small(), (about(GPU),), SMALL),
    "a policy for both matched before": (
        small(),
        (about("nvidia.com/*"),),
        SMALL,
    ),
    "a policy in audit mode denies nothing": (small(), (about("nvidia.com/mig-*", mode="warn"),), SMALL),
    "a policy in audit mode with an enforced section": (
        small(),
        (about("nvidia.com/mig-*", "limits: {mode: enforce, perPod: [{resource: memory, max: 16Gi}]}", "audit"),),
        KeepReason.NEW_POLICY,
    ),
    "a policy for updates": (small(), (narrowed("operations: [UPDATE]"),), SMALL),
    "a policy for pods with another label": (small(), (LABELED,), SMALL),
    "a policy for pods with its label": (small().label("tier", "slices"), (LABELED,), KeepReason.NEW_POLICY),
    "a policy whose condition may hold after the change": (small(), (CONDITIONAL,), KeepReason.NEW_POLICY),
}


@pytest.mark.parametrize(("pod", "policies", "want"), NEWCOMERS.values(), ids=NEWCOMERS)
def test_a_smaller_request_must_match_no_further_policy(
    pod: PodMaker, policies: tuple[str, ...], want: str | KeepReason
) -> None:
    outcome = review(pod, SIZING, *policies, nodes=NODES).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == want


def test_a_pod_that_a_policy_for_slices_would_reject_keeps_its_gpu_and_the_reason_names_the_policy() -> None:
    pod = small().requests("memory", "32Gi")
    first = review(pod, SIZING, about("nvidia.com/mig-*"), nodes=NODES)
    assert first.patch == ()
    assert str(first.outcome).endswith(f"policy test-1 matches {SMALL} and not {GPU}")


TOGETHER = "mode: enforce\nsecurity: {deny: [sharedProcessNamespace]}"
COMMON = {
    "rejected on a share": (TOGETHER, (SLICED,), KeepReason.SHARED_PROCESSES),
    "rejected on an MPS share": (TOGETHER, (MPS,), KeepReason.SHARED_PROCESSES),
    "a slice is not shared": (TOGETHER, (SLICED, mig_node()), SMALL),
    "no policy rejects it": (TOGETHER.replace("sharedProcessNamespace", "privileged"), (SLICED,), SHARED),
    "rejected only by a policy in audit mode": (TOGETHER.replace("enforce", "warn"), (SLICED,), SHARED),
}


@pytest.mark.parametrize(("guard", "nodes", "want"), COMMON.values(), ids=COMMON)
def test_one_process_namespace_and_a_share(guard: str, nodes: tuple[Json, ...], want: str | KeepReason) -> None:
    pod = small().spec(shareProcessNamespace=True)
    decision = review(pod, sizing(isolation="none", forms="[timeSlicing, mps, mig]"), guard, nodes=nodes)
    outcome = decision.outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == want
    assert review(apply_patch(pod, decision), guard, nodes=nodes).denials == ()


IMAGE = "nvidia/cuda:12.4.1-base-ubuntu22.04"
TOO_NEW = IMAGE.replace("12.4.1", "12.9.1")
OTHER_GPU = {"nvidia.com/gpu.compute.major": "9"}
RESERVED = {"key": "team", "value": "b", "effect": "NoSchedule"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def driven(driver: str, **labels: str) -> Json:
    """Return labels of A100 nodes with another driver without a CUDA version, or with no known driver."""
    silent = {key: value for key, value in MIXED.items() if ".cuda." not in key and "/cuda." not in key}
    return silent | ({"nvidia.com/cuda.driver-version.full": driver} if driver else {}) | labels


def cards(driver: str, name: str = "cards", **labels: str) -> Json:
    return make_node(name, driven(driver, **labels), **{GPU: 8})


def slices(driver: str, name: str = "slices", **labels: str) -> Json:
    return make_node(name, driven(driver, **labels), **{SMALL: 7})


def new_cards(driver: str, **labels: str) -> Json:
    """Return settings with a group without nodes, whose new nodes have whole cards."""
    group = {"name": "new", "labels": labels, "agentLabels": driven(driver), "resources": {"cpu": "32", GPU: "8"}}
    about = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "NodeGroups", "metadata": {"name": "groups"}}
    return about | {"nodeGroups": [group]}


def image(name: str = IMAGE, **variables: str) -> PodMaker:
    pod = small().image(name)
    for key, value in variables.items():
        pod.env(key, value)
    return pod


class Landing(NamedTuple):
    """A pod, the nodes, and the expected result."""

    pod: PodMaker
    nodes: tuple[Json, ...]
    want: str | KeepReason


FROM_570 = (cards("570.124.06"), slices("470.82.01"))
LANDINGS = {
    "the slice's driver fits": Landing(image(), (cards("570.124.06"), slices("550.54.15")), SMALL),
    "only whole cards have a driver for it": Landing(
        image(), (cards("550.54.15"), slices("535.183.01")), KeepReason.DRIVER
    ),
    "no node has a driver for it, all have the same": Landing(
        image(TOO_NEW), (cards("535.183.01"), slices("535.183.01")), SMALL
    ),
    "no node has a driver for it, the slice's is older": Landing(
        image(TOO_NEW), (cards("550.54.15"), slices("535.183.01")), KeepReason.DRIVER
    ),
    "no node has a driver for it, those of some slices are even older": Landing(
        image(), (cards("535.183.01"), slices("535.183.01"), slices("470.82.01", "old")), KeepReason.DRIVER
    ),
    "the slice's driver is not known": Landing(image(), (cards("570.124.06"), slices("")), KeepReason.DRIVER),
    "the driver of one of two nodes is not known": Landing(
        image(), (cards("570.124.06"), slices("570.124.06"), slices("", "silent")), KeepReason.DRIVER
    ),
    "no driver is known": Landing(image(), (cards(""), slices("")), SMALL),
    "the check at run time is off, the image is unchanged": Landing(
        image(NVIDIA_DISABLE_REQUIRE="1"), FROM_570, KeepReason.DRIVER
    ),
    "the check is off for a variable's requirement": Landing(
        image("app", NVIDIA_DISABLE_REQUIRE="true", NVIDIA_REQUIRE_CUDA="cuda>=12.8"), FROM_570, KeepReason.DRIVER
    ),
    "a requirement of drivers next to the image's CUDA": Landing(
        image(NVIDIA_REQUIRE_DRIVER="driver>=450"), FROM_570, KeepReason.DRIVER
    ),
    "a requirement of GPUs next to the image's CUDA": Landing(
        image(NVIDIA_REQUIRE_ARCH="arch>=7.0"), FROM_570, KeepReason.DRIVER
    ),
    "an invalid requirement": Landing(image("app", NVIDIA_REQUIRE_CUDA="foo"), FROM_570, KeepReason.DRIVER),
    "a version from another variable": Landing(image("app", CUDA_VERSION="$(V)"), FROM_570, KeepReason.DRIVER),
    "the pod's own version takes precedence over the image's": Landing(
        image().annotate("rightslice.dev/cuda", ">=11.4"), FROM_570, SMALL
    ),
    "a taint keeps the pod off the older cards": Landing(
        image(),
        (cards("570.124.06"), tainted(cards("535.183.01", "old"), RESERVED), slices("535.183.01")),
        KeepReason.DRIVER,
    ),
    "an init container needs more than the other": Landing(
        image().container(
            "warm", kind="initContainers", image="nvidia/cuda:12.8.1-base", resources={"limits": {GPU: "1"}}
        ),
        (cards("560.35.05"), slices("535.104.05")),
        KeepReason.DRIVER,
    ),
    "CUDA not known, a driver as new": Landing(image("app"), (cards("535.183.01"), slices("570.124.06")), SMALL),
    "CUDA not known, an older driver": Landing(image("app"), FROM_570, KeepReason.DRIVER),
    "CUDA not known, the pod may also run on the older driver": Landing(
        image("app"), (*FROM_570, cards("470.82.01", "old")), SMALL
    ),
    "CUDA not known, the pod selects the newer driver": Landing(
        image("app").spec(nodeSelector={"zone": "a"}),
        (cards("570.124.06", zone="a"), slices("470.82.01", zone="a"), cards("470.82.01", "old")),
        KeepReason.DRIVER,
    ),
    "CUDA not known, a taint keeps the pod off all whole cards": Landing(
        image("app"), (tainted(cards("570.124.06"), RESERVED), slices("470.82.01")), SMALL
    ),
    "CUDA not known, all whole cards are on a cordoned node": Landing(
        image("app"), (tainted(cards("570.124.06"), CORDONED), slices("470.82.01")), KeepReason.DRIVER
    ),
    "CUDA not known, a group may add whole cards with a newer driver": Landing(
        image("app"), (slices("470.82.01"), new_cards("570.124.06")), KeepReason.DRIVER
    ),
    "CUDA not known, a group may add whole cards with the same driver": Landing(
        image("app"), (slices("470.82.01"), new_cards("470.82.01")), SMALL
    ),
    "CUDA not known, a group may add whole cards that the pod may not use": Landing(
        image("app").spec(nodeSelector={"zone": "a"}),
        (slices("470.82.01", zone="a"), new_cards("570.124.06", zone="b")),
        SMALL,
    ),
    "CUDA not known, another GPU": Landing(
        image("app"), (cards("570.124.06", **OTHER_GPU), slices("570.124.06")), KeepReason.DRIVER
    ),
    "CUDA known, another GPU that it has kernels for": Landing(
        image(), (cards("570.124.06", **OTHER_GPU), slices("570.124.06")), SMALL
    ),
}


@pytest.mark.parametrize("landing", LANDINGS.values(), ids=LANDINGS)
def test_a_smaller_gpu_is_sure_to_run_the_image(landing: Landing) -> None:
    outcome = review(landing.pod, SIZING, nodes=landing.nodes).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == landing.want


def card(name: str, product: str, driver: str, major: str, minor: str, **gpus: int) -> Json:
    """Return a node with cards, whole or in four shares."""
    shared = (
        {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"} if SHARED in gpus else {}
    )
    labels = {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": "46068",
        "nvidia.com/gpu.compute.major": major,
        "nvidia.com/gpu.compute.minor": minor,
        "nvidia.com/cuda.driver-version.full": driver,
    }
    return make_node(name, labels | shared, **gpus)


H100 = card("h100", "NVIDIA-H100-80GB-HBM3", "580.95.05", "9", "0", **{GPU: 4})
TWO_PRODUCTS = {
    "one has no kernels for it": card("v100", "Tesla-V100-SXM2-32GB", "580.95.05", "7", "0", **{SHARED: 4}),
    "one has an older driver": card("l40s", "NVIDIA-L40S", "535.104.05", "8", "9", **{SHARED: 4}),
}


@pytest.mark.parametrize("unfit", TWO_PRODUCTS.values(), ids=TWO_PRODUCTS)
def test_only_the_product_that_runs_the_image_is_chosen(unfit: Json) -> None:
    good = card("l4", "NVIDIA-L4", "580.95.05", "8", "9", **{SHARED: 4})
    pod = image("nvidia/cuda:13.0.1-base-ubuntu24.04")
    outcome = review(pod, sizing(isolation="none", forms="[timeSlicing]"), nodes=(H100, unfit, good)).outcome
    assert isinstance(outcome, OfferChoice)
    assert [offer.product for offer in outcome.offers] == ["NVIDIA-L4"]


CAPABILITIES = {
    "it draws": ("compute,utility, graphics", (mig_node(),), KeepReason.GRAPHICS),
    "video decoding": ("video", (mig_node(),), KeepReason.GRAPHICS),
    "compute": ("compute,utility", (mig_node(),), SMALL),
    "all capabilities": ("all", (mig_node(),), SMALL),
    "graphics on a share": ("graphics", (MIG_ONLY, SLICED), SHARED),
    "a value from another variable may be graphics": ("$(CAPS)", (mig_node(),), KeepReason.GRAPHICS),
}


@pytest.mark.parametrize(("value", "nodes", "want"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_a_pod_with_driver_capabilities(value: str, nodes: tuple[Json, ...], want: str | KeepReason) -> None:
    pod = small().env("NVIDIA_DRIVER_CAPABILITIES", value)
    outcome = review(pod, sizing(isolation="none", forms="[mig, timeSlicing]"), nodes=nodes).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == want


def test_driver_capabilities_from_another_source_may_be_graphics() -> None:
    pod = small()
    source = {"configMapKeyRef": {"name": "settings", "key": "capabilities"}}
    pod.main["env"] = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "valueFrom": source}]
    outcome = review(pod, SIZING, nodes=NODES).outcome
    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.GRAPHICS


def test_a_limit_on_whole_gpus_admits_a_pod_only_while_it_can_become_a_slice() -> None:
    limits = 'mode: enforce\nlimits: {perPod: [{resource: "nvidia.com/gpu", max: 0}]}'
    final = small()
    final.data["metadata"]["uid"] = "0a1b"

    assert review(small(), SIZING, limits, nodes=NODES).denials == ()
    assert [found.code for found in review(final, SIZING, limits, nodes=NODES).denials] == ["GPU-L103"]


def test_every_requesting_container_gets_the_same_form() -> None:
    pod = small()
    for name in ("fetch", "warm"):
        pod.container(name, kind="initContainers", resources=ONE)
    after = apply_patch(pod, review(pod, SIZING, nodes=NODES))["spec"]
    limits = [c["resources"]["limits"] for c in (*after["containers"], *after["initContainers"])]
    assert limits == [{SMALL: "1"}] * 3


def test_a_slice_is_added_with_the_affinity_for_its_product() -> None:
    a30 = make_node("a30", {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/mig.strategy": "mixed"}, **{SMALL: 4})
    after = apply_patch(small(), review(small(), SIZING, nodes=(mig_node(), a30)))
    terms = after["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms == {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A100-SXM4-80GB"]}
                ]
            }
        ]
    }


def test_a_single_strategy_slice_is_selected_by_affinity_alone() -> None:
    labels = A100 | {
        "nvidia.com/mig.strategy": "single",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
        "nvidia.com/gpu.memory": "9728",
        "nvidia.com/gpu.count": "56",
    }
    decision = review(small(), SIZING, nodes=(whole_node(), make_node("single", labels, **{GPU: 56})))
    after = apply_patch(small(), decision)
    assert after["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}
    assert "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb" in str(after["spec"]["affinity"])
    assert (decision.gpu_milli_before, decision.gpu_milli_after) == (1000, 143)


def worker(index: int) -> PodMaker:
    """Return one of 40 equal NCCL ranks."""
    labels = {"training.kubeflow.org/job-name": "ddp", "training.kubeflow.org/replica-index": str(index)}
    pod = small().command("torchrun", "--nnodes=40", "--nproc_per_node=1", "train.py", "--backend=nccl")
    for key, value in labels.items():
        pod.label(key, value)
    return pod


def test_the_workers_of_one_job_keep_equal_cards_while_slices_run_out() -> None:
    view = view_of(make_namespace("team"), whole_node(), mig_node(small=1, large=1))
    outcomes = []
    for index in range(4):
        outcomes.append(review(worker(index), SIZING, view=view).outcome)
        view = view.with_assumed(AssumedPod(f"u{index}", SMALL, view.fleet.all_nodes, 1, expires_at=30.0), now=0.0)

    assert set(outcomes) == {KeepRequest(KeepReason.GANG_MEMBER, "--nnodes=40")}


def test_equal_replicas_without_a_sign_are_right_sized_one_by_one() -> None:
    pod = small().label("pod-template-hash", "abc").owned_by("ReplicaSet", "serve-abc")

    assert isinstance(review(pod, SIZING, nodes=NODES).outcome, OfferChoice)


ANY_SHARE = sizing(isolation="none")
VLLM = ("vllm/vllm-openai:v0.9.1",)
TAKERS = {
    "vLLM gets a slice that its fraction fills": Case(small().image(*VLLM), SMALL),
    "vLLM gets no time-sliced share": Case(small().image(*VLLM), KeepReason.NO_MEMORY_LIMIT, (SLICED,), ANY_SHARE),
    "JAX gets none either": Case(
        small().image("quay.io/jupyter/jax-notebook:cuda12"), KeepReason.NO_MEMORY_LIMIT, (SLICED,), ANY_SHARE
    ),
    "what allocates on demand gets one": Case(
        small().env("TF_FORCE_GPU_ALLOW_GROWTH", "true").image("tensorflow/tensorflow:2.17.0-gpu"),
        SHARED,
        (SLICED,),
        ANY_SHARE,
    ),
    "what is not known gets one": Case(small(), SHARED, (SLICED,), ANY_SHARE),
    "a small fraction of a whole card is too little of the smallest slice": Case(
        small().image(*VLLM).command("vllm", "serve", "--gpu-memory-utilization=0.25"), LARGE
    ),
    "and of every slice": Case(
        small().image(*VLLM).command("vllm", "serve", "--gpu-memory-utilization=0.1"), KeepReason.MEMORY_FRACTION
    ),
    "an MPS share ends what takes more than its limit": Case(
        small().image(*VLLM), KeepReason.MEMORY_FRACTION, (MPS,), ANY_SHARE
    ),
    "a fraction of the whole card within an MPS share's limit": Case(
        small().image(*VLLM).command("--gpu-memory-utilization=0.2"), SHARED, (MPS,), ANY_SHARE
    ),
    "a stated fraction that cannot be read may not cover the need": Case(
        small().image(*VLLM).command("sh", "-c", "vllm serve --gpu-memory-utilization $U"), KeepReason.MEMORY_FRACTION
    ),
    "and neither may what a file says": Case(
        small().image(*VLLM).command("vllm", "serve", "--config=/c.yaml"), KeepReason.MEMORY_FRACTION
    ),
    "an unknown fraction suits a slice": Case(small().image("lmsysorg/sglang:v0.4.1"), SMALL),
    "and no share of a card": Case(
        small().image("lmsysorg/sglang:v0.4.1"), KeepReason.MEMORY_FRACTION, (MPS,), ANY_SHARE
    ),
}


@pytest.mark.parametrize("case", TAKERS.values(), ids=TAKERS)
def test_a_framework_that_takes_a_fraction_of_what_it_sees(case: Case) -> None:
    outcome = review(case.pod, case.policy, nodes=case.nodes).outcome

    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == case.want


def test_the_reason_says_what_to_write_for_the_slice() -> None:
    pod = small().image(*VLLM).command("vllm", "serve", "m", "--gpu-memory-utilization=0.1")
    outcome = review(pod, SIZING, nodes=NODES).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.detail == (
        "vLLM takes 0.1 of the 9728Mi that it sees on nvidia.com/mig-1g.10gb, and needs 8Gi; "
        "write --gpu-memory-utilization=0.85"
    )
    followed = small().image(*VLLM).command("vllm", "serve", "m", "--gpu-memory-utilization=0.85")
    assert isinstance(review(followed, SIZING, nodes=NODES).outcome, OfferChoice)


def test_a_workload_that_always_fills_its_card_gets_no_time_sliced_share() -> None:
    usage = workload_usage("Deployment/serve", main=observed_usage(40_000, preallocates=True))
    served = make_pod().gpus(1).label("pod-template-hash", "abc").owned_by("ReplicaSet", "serve-abc")
    outcome = review(served.needs("8Gi"), ANY_SHARE, nodes=(SLICED,), usage=usage).outcome

    assert isinstance(outcome, KeepRequest)
    assert outcome.reason is KeepReason.NO_MEMORY_LIMIT


def test_recently_admitted_pods_count_against_free_slices() -> None:
    view = view_of(make_namespace("team"), mig_node(small=1, large=0))
    assert isinstance(review(small(), SIZING, view=view).outcome, OfferChoice)
    taken = view.with_assumed(AssumedPod("uid", SMALL, view.fleet.all_nodes, 1, expires_at=30.0), now=0.0)
    assert review(small(), SIZING, view=taken).outcome == KeepRequest(
        KeepReason.NO_FREE_CAPACITY,
        f"{SMALL}: node mig has one free, but pods that wait or were just admitted may take it",
    )


def test_a_policy_may_wait_for_a_slice() -> None:
    view = view_of(make_namespace("team"), mig_node(small=1, large=0))
    taken = view.with_assumed(AssumedPod("uid", SMALL, view.fleet.all_nodes, 1, expires_at=30.0), now=0.0)
    assert isinstance(review(small(), sizing(whenFull="wait"), view=taken).outcome, OfferChoice)


SERVED = make_pod().gpus(1).label("pod-template-hash", "abc").owned_by("ReplicaSet", "serve-abc")
USES = {
    "observed usage fits": (workload_usage("Deployment/serve", main=observed_usage(8000)), SMALL),
    "it may need more": (workload_usage("Deployment/serve", main=observed_usage(11_000)), LARGE),
    "it may need more than any slice": (
        workload_usage("Deployment/serve", main=observed_usage(60_000)),
        KeepReason.NO_OFFER,
    ),
    "a framework that preallocates is no evidence": (
        workload_usage("Deployment/serve", main=observed_usage(8000, preallocates=True)),
        KeepReason.PREALLOCATES,
    ),
    "another workload's usage is no evidence": (UsageView(), KeepReason.NO_EVIDENCE),
}


@pytest.mark.parametrize(("usage", "want"), USES.values(), ids=USES)
def test_need_from_observed_usage(usage: UsageView, want: str | KeepReason) -> None:
    outcome = review(SERVED, SIZING, nodes=NODES, usage=usage).outcome
    assert (outcome.resource if isinstance(outcome, OfferChoice) else outcome.reason) == want


COMPUTE = {
    "compute excludes the smallest": (small().needs("8Gi", "30%"), "8Gi declared, and 30% of a GPU's compute"),
    "compute that the smallest has": (small().needs("8Gi", "10%"), "8Gi declared"),
    "memory alone excludes the smallest": (small().needs("30Gi", "30%"), "30Gi declared"),
    "compute above every slice": (small().needs("8Gi", "90%"), "8Gi declared, and 90% of a GPU's compute"),
}


@pytest.mark.parametrize(("pod", "want"), COMPUTE.values(), ids=COMPUTE)
def test_the_reason_names_compute_where_it_narrowed_the_choice(pod: PodMaker, want: str) -> None:
    outcome = review(pod, SIZING, nodes=NODES).outcome
    assert (outcome.need.words if isinstance(outcome, OfferChoice) else outcome.detail) == want


def test_a_declared_need_takes_precedence_over_observed_usage() -> None:
    pod = make_pod().gpus(1).label("pod-template-hash", "abc").owned_by("ReplicaSet", "serve-abc").needs("30Gi")
    outcome = review(
        pod, SIZING, nodes=NODES, usage=workload_usage("Deployment/serve", main=observed_usage(4000))
    ).outcome
    assert isinstance(outcome, OfferChoice)
    assert (outcome.resource, outcome.need.words) == (LARGE, "30Gi declared")


def test_several_policies_are_merged_to_the_most_conservative_values() -> None:
    loose = sizing(isolation="none", forms="[timeSlicing, mig]")
    strict = sizing(isolation="hardware", forms="[mig]")
    outcome = review(small(), loose, strict, nodes=(mig_node(), SLICED)).outcome
    assert isinstance(outcome, OfferChoice)
    assert outcome.resource == SMALL
    assert outcome.policy == "test-0, test-1"


def test_a_policy_in_audit_mode_changes_nothing_and_reports() -> None:
    decision = review(small(), "rightSizing: {mode: warn}", nodes=NODES)
    assert decision.patch == ()
    assert [(finding.code, finding.fix) for finding in decision.warnings] == [
        ("GPU-R102", 'To keep a whole GPU once this is enforced, annotate the pod with rightslice.dev/keep: "true".')
    ]
    assert isinstance(decision.outcome, OfferChoice)
    assert not decision.applied
    assert decision.gpu_milli_before == decision.gpu_milli_after == 1000


def test_a_stale_view_right_sizes_nothing() -> None:
    view = ClusterView(view_of(*NODES).fleet, stale=True)
    assert review(small(), SIZING, view=view).outcome == KeepRequest(KeepReason.STALE_VIEW)


def test_the_record_holds_the_original_request_and_the_reason() -> None:
    notes = apply_patch(small(), review(small(), SIZING, nodes=NODES))["metadata"]["annotations"]
    assert (
        notes["rightslice.dev/original-resources"]
        == '{"main":{"limits":{"nvidia.com/gpu":"1"},"requests":{"nvidia.com/gpu":"1"}}}'
    )
    assert '"need":"8Gi declared"' in notes["rightslice.dev/decision"]
    assert '"policies":["test-0"]' in notes["rightslice.dev/decision"]


def test_the_record_holds_policy_changes_and_allocated_gpus() -> None:
    adding = "mode: enforce\ninjection: {tolerations: auto}"
    accounting = "mode: enforce\nlimits: {accounting: native, accountingScheduler: configured}"
    silent = "mode: warn\ninjection: {tolerations: auto}"
    nodes = (whole_node(), tainted(mig_node(), GPU_TAINT))
    decision = review(small(), SIZING, adding, accounting, silent, nodes=nodes)
    record = json.loads(apply_patch(small(), decision)["metadata"]["annotations"]["rightslice.dev/decision"])

    assert record["policies"] == ["test-0", "test-1", "test-2", "test-3"]
    assert record["changedBy"] == {
        "test-0": ["resources", "nodeAffinity"],
        "test-1": ["tolerations"],
        "test-2": ["accounting"],
    }
    assert record["gpuMilli"] == 143


def test_mixed_labels_match_the_node_facts() -> None:
    """The builders' node offers the slices that the cases rely on: 1/7 and half of a card."""
    fleet = view_of(make_node("n", MIXED, **{SMALL: 7, LARGE: 2})).fleet
    assert [(offer.resource, offer.memory_mib, offer.gpu_milli) for offer in fleet.offers] == [
        (SMALL, 9728, 143),
        (LARGE, 40192, 500),
    ]


def test_an_ambiguous_resource_name_is_not_chosen() -> None:
    labels = L40S | {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.count": "1"}
    nodes = (make_node("plain", labels, **{SHARED: 4}), make_node("several-models", labels, **{SHARED: 16}))
    assert review(small(), sizing(isolation="none"), nodes=nodes).outcome == KeepRequest(
        KeepReason.AMBIGUOUS_NAME, SHARED
    )


def test_a_need_beyond_every_gpu_is_reported() -> None:
    assert review(make_pod().gpus(1).needs("90Gi"), SIZING, nodes=NODES).outcome == KeepRequest(
        KeepReason.NEED_TOO_LARGE, "90Gi declared"
    )


def test_a_saving_below_the_strictest_minimum_is_reported_with_both_figures() -> None:
    outcome = review(small(), sizing(minSavingPercent=20), sizing(minSavingPercent=90), nodes=NODES).outcome
    assert outcome == KeepRequest(
        KeepReason.SAVING_TOO_SMALL, f"8Gi declared, {SMALL} saves 85.7% of a GPU, the policy requires 90% or more"
    )


WHOLE_SLICE = make_node("seven", MIXED, **{"nvidia.com/mig-7g.80gb": 1})


def test_a_slice_of_a_whole_card_saves_nothing() -> None:
    outcome = review(make_pod().gpus(1).needs("60Gi"), sizing(minSavingPercent=0), nodes=(WHOLE_SLICE,)).outcome
    assert isinstance(outcome, KeepRequest)
    assert str(outcome).endswith("nvidia.com/mig-7g.80gb saves 0% of a GPU, the policy requires 1% or more")


NAMELESS = make_node("nameless", {"nvidia.com/gpu.present": "true"}, **{GPU: 4})
STRANGE = make_node("strange", {"nvidia.com/gpu.product": "NVIDIA-X9"}, **{GPU: 4})
UNKNOWN = {
    "a card without labels": ((NAMELESS,), "8Gi", KeepReason.SIZE_UNKNOWN, GPU),
    "an unknown product": ((STRANGE,), "8Gi", KeepReason.SIZE_UNKNOWN, "NVIDIA-X9"),
    "next to cards that are too small": ((whole_node(), STRANGE), "90Gi", KeepReason.SIZE_UNKNOWN, "NVIDIA-X9"),
    "next to a card that is large enough": ((whole_node(), STRANGE), "8Gi", KeepReason.NO_OFFER, "8Gi declared"),
    "every size is known": ((whole_node(),), "90Gi", KeepReason.NEED_TOO_LARGE, "90Gi declared"),
}


@pytest.mark.parametrize(("nodes", "need", "why", "words"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_size_is_not_reported_as_too_small(
    nodes: tuple[Json, ...], need: str, why: KeepReason, words: str
) -> None:
    outcome = review(make_pod().gpus(1).needs(need), SIZING, nodes=nodes).outcome
    assert isinstance(outcome, KeepRequest)
    assert (outcome.reason, words in outcome.detail) == (why, True)


def test_a_pod_moved_to_shares_of_the_same_name_is_ignored_in_the_second_pass() -> None:
    labels = L40S | {"nvidia.com/gpu.product": "NVIDIA-L40S-SHARED", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    node = make_node("turns", labels, **{GPU: 16})
    first = review(small(), sizing(isolation="none"), nodes=(node,))
    assert first.applied
    assert review(apply_patch(small(), first), sizing(isolation="none"), nodes=(node,)).patch == ()
