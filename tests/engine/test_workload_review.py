"""Workloads: what is reported at `kubectl apply`, at which field, and for how many pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.builders import Json, PodMaker, make_namespace, make_pod
from tests.engine.decisions import ENV, FOUR, NODES, SIZING, bad, exempt
from tests.example_cluster import NO_USAGE, NOW, codes, policies_of, request_of, review, view_of, whole_node
from webhook.cache.bundled_files import bundled_folder
from webhook.engine.decide import decide
from webhook.model.decisions import Decision, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import format_path


def workload(kind: str, pod: PodMaker, group: str = "apps/v1", **spec: Any) -> Json:
    """Return a workload whose template is a pod."""
    data = pod.build()
    template = {"metadata": {"labels": {"app": "a"}} | _notes(data), "spec": data["spec"]}
    metadata = {"name": "work", "namespace": "team"}
    whole: Json = {"apiVersion": group, "kind": kind, "metadata": metadata, "spec": {"template": template} | spec}
    if kind == "CronJob":
        whole["spec"] = {"jobTemplate": {"spec": {"template": template} | spec}}
    return whole


def _notes(data: Json) -> Json:
    notes = data["metadata"].get("annotations")
    return {"annotations": notes} if notes else {}


PLACES = {
    "Deployment": (workload("Deployment", bad()), "spec.template.spec"),
    "StatefulSet": (workload("StatefulSet", bad()), "spec.template.spec"),
    "DaemonSet": (workload("DaemonSet", bad()), "spec.template.spec"),
    "Job": (workload("Job", bad(), "batch/v1"), "spec.template.spec"),
    "CronJob": (workload("CronJob", bad(), "batch/v1"), "spec.jobTemplate.spec.template.spec"),
}


@pytest.mark.parametrize(("data", "place"), PLACES.values(), ids=PLACES)
def test_a_workload_is_warned_at_its_own_field_and_never_rejected(data: Json, place: str) -> None:
    decision = review(data, ENV, FOUR, nodes=[whole_node()])
    assert codes(decision) == ["warn GPU-S101", "warn GPU-L103"]
    assert [format_path(found.path) for found in decision.findings] == [
        f"{place}.containers[0].env[0]",
        f"{place}.containers[0].resources.limits['nvidia.com/gpu']",
    ]
    assert decision.denials == ()
    assert decision.patch == ()


def test_an_audit_finding_of_a_workload_stays_an_audit_finding() -> None:
    assert codes(review(workload("Deployment", bad()), ENV.replace("enforce", "audit"))) == ["audit GPU-S101"]


def test_a_workload_is_unchanged_and_gets_the_projection_of_its_pods() -> None:
    data = workload("Deployment", make_pod().gpus(1).needs("8Gi"), replicas=3)
    decision = review(data, SIZING, nodes=NODES)
    assert codes(decision) == ["warn GPU-R101"]
    assert decision.patch == ()
    assert not decision.applied
    assert isinstance(decision.outcome, OfferChoice)
    assert decision.outcome.resource == "nvidia.com/mig-1g.10gb"


def test_the_outcome_of_a_workload_is_that_of_its_first_template_with_gpus() -> None:
    head, worker = {"spec": make_pod().build()["spec"]}, {"spec": make_pod().gpus(1).build()["spec"]}
    spec = {"headGroupSpec": {"template": head}, "workerGroupSpecs": [{"groupName": "gpu", "template": worker}]}
    metadata = {"name": "ray", "namespace": "team"}
    data = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}

    assert review(data, SIZING, nodes=NODES).keep_reason == "GangMember"


def test_the_annotations_of_a_notebook_are_those_of_its_pod() -> None:
    spec = {"template": {"spec": make_pod().gpus(1).build()["spec"]}}
    metadata = {"name": "ana", "namespace": "team", "annotations": {"rightslice.dev/gpu-memory": "8Gi"}}
    data = {"apiVersion": "kubeflow.org/v1", "kind": "Notebook", "metadata": metadata, "spec": spec}
    decision = review(data, SIZING, nodes=NODES)

    assert codes(decision) == ["warn GPU-R101"]
    assert format_path(decision.findings[0].path).startswith("spec.template.spec.containers[0].resources")


REFUSED_PODS = {
    "rejected by a policy that is enforced": (ENV, [True]),
    "recorded by a policy in audit mode": (ENV.replace("enforce", "audit"), [False]),
    "warned about by a policy in warn mode": (ENV.replace("enforce", "warn"), [False]),
}


@pytest.mark.parametrize(("policy", "want"), REFUSED_PODS.values(), ids=REFUSED_PODS)
def test_a_finding_of_a_workload_refers_to_its_pods(policy: str, want: list[bool]) -> None:
    findings = review(workload("Deployment", bad()), policy).findings
    assert [found.denies_pods for found in findings] == want
    assert all(found.mode is not PolicyMode.ENFORCE for found in findings)


def test_pods_that_will_be_rejected_save_nothing() -> None:
    pod = make_pod().gpus(1).needs("8Gi").env("NVIDIA_VISIBLE_DEVICES", "all")
    decision = review(workload("Deployment", pod, replicas=3), SIZING, ENV, nodes=NODES)
    assert decision.gpu_milli_after == decision.gpu_milli_before == 3000


@pytest.mark.parametrize(("replicas", "before"), [(0, 0), (1, 1000), (3, 3000)])
def test_gpu_milli_of_a_workload_is_the_sum_of_its_pods(replicas: int, before: int) -> None:
    data = workload("Deployment", make_pod().gpus(1).needs("8Gi"), replicas=replicas)
    decision = review(data, SIZING, nodes=NODES)
    single = review(make_pod().gpus(1).needs("8Gi"), SIZING, nodes=NODES)
    assert decision.gpu_milli_before == before
    assert decision.gpu_milli_after == single.gpu_milli_after * replicas


def test_the_pods_of_a_daemon_set_are_never_right_sized() -> None:
    decision = review(workload("DaemonSet", make_pod().gpus(1).needs("8Gi")), SIZING, nodes=NODES)
    assert decision.outcome == KeepRequest(KeepReason.DAEMON_SET)
    assert codes(decision) == ["warn GPU-R103"]


def test_an_exemption_by_template_labels_is_reported_at_the_template_field() -> None:
    exemption = exempt(match="{namespaces: [team], objectSelector: {matchLabels: {app: a}}}")
    decision = review(workload("Deployment", bad()), ENV + exemption)
    assert codes(decision) == []
    assert [format_path(taken.finding.path) for taken in decision.exempted] == [
        "spec.template.spec.containers[0].env[0]"
    ]


def test_each_template_of_a_workload_is_evaluated_and_its_policies_are_named_once() -> None:
    template = {"spec": bad().build()["spec"]}
    tasks = [{"name": "a", "replicas": 2, "template": template}, {"name": "b", "template": template}]
    data = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {}, "spec": {"tasks": tasks}}
    decision = review(data, ENV)
    assert [format_path(found.path) for found in decision.findings] == [
        "spec.tasks[0].template.spec.containers[0].env[0]",
        "spec.tasks[1].template.spec.containers[0].env[0]",
    ]
    assert decision.policies == ("test-0",)
    assert decision.gpu_milli_before == 24_000


NOTHING_IN_IT = {
    "a kind without pods": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}},
    "a Deployment without a template": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}},
    "a template that is not a map": {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"template": "x"}},
    "a template whose containers are not a list": {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {"spec": {"containers": 5}}},
    },
}


@pytest.mark.parametrize("data", NOTHING_IN_IT.values(), ids=NOTHING_IN_IT)
def test_an_object_without_a_pod_has_no_findings(data: Json) -> None:
    decision = review(data, ENV, FOUR)
    assert decision == Decision()


def when(expression: str, fails: str = "Ignore") -> str:
    """Return a policy that matches if a match condition holds."""
    condition = {"name": "a", "expression": expression}
    return f"failurePolicy: {fails}\nmatch: {{matchConditions: [{json.dumps(condition)}]}}\n{ENV}"


POD_HAS = {
    "its kind": "object.kind == 'Pod' && object.apiVersion == 'v1' && "
    "request.kind == {'group': '', 'version': 'v1', 'kind': 'Pod'}",
    "its namespace": "object.metadata.namespace == 'team' && request.namespace == 'team'",
    "the template's labels": "object.metadata.labels.app == 'a'",
    "the workload as its owner": "object.metadata.ownerReferences.exists(o, o.controller && o.name == 'work')",
    "its containers": "object.spec.containers.all(c, c.name == 'main')",
    "the requests that limits set": "object.spec.containers.all(c, c.resources.requests['nvidia.com/gpu'] == '8')",
    "no name yet": "!has(object.metadata.name) && !has(object.metadata.uid) && request.name == ''",
    "no previous object": "oldObject == null && request.operation == 'CREATE'",
}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("expression", POD_HAS.values(), ids=POD_HAS)
def test_a_match_condition_evaluates_the_future_pod(expression: str, operation: str) -> None:
    data = workload("Deployment", bad())
    for fails in ("Ignore", "Fail"):
        decision = review(data, when(expression, fails), operation=operation, load_old_object=lambda: data)
        assert codes(decision) == ["warn GPU-S101"]


FORMS: dict[str, tuple[str, str, Json]] = {
    "a template without metadata": ("kubeflow.org/v1", "Notebook", {"template": {"spec": bad().build()["spec"]}}),
    "a bare spec": ("serving.kserve.io/v1beta1", "InferenceService", {"predictor": bad().build()["spec"]}),
    "a step of a workflow": (
        "argoproj.io/v1alpha1",
        "Workflow",
        {"templates": [{"name": "step", "container": bad().build()["spec"]["containers"][0]}]},
    ),
    "a predictor": (
        "serving.kserve.io/v1beta1",
        "InferenceService",
        {"predictor": {"model": bad().build()["spec"]["containers"][0]}},
    ),
}


@pytest.mark.parametrize(("group", "kind", "spec"), FORMS.values(), ids=FORMS)
def test_a_match_condition_sees_the_pod_of_every_form(group: str, kind: str, spec: Json) -> None:
    data = {"apiVersion": group, "kind": kind, "metadata": {"name": "work"}, "spec": spec}
    expression = "object.kind == 'Pod' && object.spec.containers.exists(c, c.env[0].value == 'all')"
    assert codes(review(data, when(expression, "Fail"))) == ["warn GPU-S101"]


def test_a_match_condition_sees_that_workflow_steps_are_not_restarted() -> None:
    group, kind, spec = FORMS["a step of a workflow"]
    data = {"apiVersion": group, "kind": kind, "metadata": {"name": "work"}, "spec": spec}
    assert codes(review(data, when("object.spec.restartPolicy == 'Never'", "Fail"))) == ["warn GPU-S101"]


@pytest.mark.parametrize(("restart", "matches"), [("Never", False), ("Always", True)])
def test_the_notebook_policy_reports_the_same_for_workloads_and_pods(restart: str, matches: bool) -> None:
    policies = policies_of((bundled_folder("policies") / "notebooks-time-sliced.yaml").read_text())
    view = view_of(make_namespace("team", **{"rightslice.dev/workload": "notebooks"}), *NODES)
    pod = make_pod().gpus(1).needs("8Gi").spec(restartPolicy=restart)
    for data in (pod.build(), workload("Job", pod, "batch/v1")):
        decision = decide(request_of(data), policies, view, NO_USAGE, NOW)
        assert [line.endswith("GPU-R101") for line in codes(decision)] == [True] * matches


def group_workload(kind: str, group: str, inner: Json) -> Json:
    """Return a workload whose controller labels its pods as a group."""
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "work", "namespace": "team"}, "spec": inner}


ONE_GPU: Json = {"metadata": make_pod().needs("8Gi").build()["metadata"], "spec": make_pod().gpus(1).build()["spec"]}
SETS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
GANGS: dict[str, tuple[Json, str]] = {
    "workers of a PyTorchJob": (
        group_workload(
            "PyTorchJob",
            "kubeflow.org/v1",
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": ONE_GPU}}},
        ),
        "label training.kubeflow.org/job-name",
    ),
    "pods of a LeaderWorkerSet with groups of two": (
        group_workload(SETS[1], SETS[0], {"leaderWorkerTemplate": {"size": 2, "workerTemplate": ONE_GPU}}),
        "label leaderworkerset.sigs.k8s.io/group-key",
    ),
    "pods of a LeaderWorkerSet with groups of one": (
        group_workload(SETS[1], SETS[0], {"leaderWorkerTemplate": {"size": 1, "workerTemplate": ONE_GPU}}),
        "",
    ),
}


@pytest.mark.parametrize(("data", "sign"), GANGS.values(), ids=GANGS)
def test_the_forecast_knows_which_pods_will_be_a_gang(data: Json, sign: str) -> None:
    outcome = review(data, SIZING, nodes=NODES).outcome

    if sign:
        assert outcome == KeepRequest(KeepReason.GANG_MEMBER, sign)
    else:
        assert isinstance(outcome, OfferChoice)
