"""templates: the pods of a workload, each field with its path in the workload."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.builders import Json
from webhook.engine.gpu_requests import containers_of_every_kind
from webhook.engine.templates import PodTemplate, read_templates
from webhook.model.admission import AdmissionRequest
from webhook.model.field_paths import format_path
from webhook.model.pods import HostPathVolumeSource
from webhook.policy.workload_kinds import WORKLOAD_KINDS, PodSource, WorkloadTemplates

GPU = {"name": "main", "image": "example/app:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
SPEC = {"containers": [GPU]}
POD = {"metadata": {"annotations": {"a": "b"}}, "spec": SPEC}


def templates_of(group: str, kind: str, data: Any, *sources: PodSource) -> list[PodTemplate]:
    request = AdmissionRequest("CREATE", group, kind, "team", "x", None, lambda: data)
    kinds = {**WORKLOAD_KINDS, (group, kind): WorkloadTemplates(sources)} if sources else WORKLOAD_KINDS
    return list(read_templates(request, kinds))


class Case(NamedTuple):
    group: str
    kind: str
    spec: Json
    want: dict[str, int]
    """Replicas by the path of the container that requests the GPU."""


CASES = {
    "a Deployment": Case(
        "apps", "Deployment", {"replicas": 3, "template": POD}, {"spec.template.spec.containers[0]": 3}
    ),
    "a Deployment without replicas": Case(
        "apps", "Deployment", {"template": POD}, {"spec.template.spec.containers[0]": 1}
    ),
    "a Deployment scaled to nothing": Case(
        "apps", "Deployment", {"replicas": 0, "template": POD}, {"spec.template.spec.containers[0]": 0}
    ),
    "a Job with more parallelism than completions": Case(
        "batch", "Job", {"parallelism": 8, "completions": 2, "template": POD}, {"spec.template.spec.containers[0]": 2}
    ),
    "a CronJob": Case(
        "batch",
        "CronJob",
        {"jobTemplate": {"spec": {"parallelism": 2, "template": POD}}},
        {"spec.jobTemplate.spec.template.spec.containers[0]": 2},
    ),
    "a JobSet: replicas of parallel jobs": Case(
        "jobset.x-k8s.io",
        "JobSet",
        {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 4, "template": POD}}}]},
        {"spec.replicatedJobs[0].template.spec.template.spec.containers[0]": 8},
    ),
    "a RayCluster: head and groups of several hosts": Case(
        "ray.io",
        "RayCluster",
        {
            "headGroupSpec": {"template": POD},
            "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 3, "template": POD}, {"template": POD}],
        },
        {
            "spec.headGroupSpec.template.spec.containers[0]": 1,
            "spec.workerGroupSpecs[0].template.spec.containers[0]": 6,
            "spec.workerGroupSpecs[1].template.spec.containers[0]": 1,
        },
    ),
    "a RayCluster's group has its fewest replicas at least": Case(
        "ray.io",
        "RayCluster",
        {
            "workerGroupSpecs": [
                {"minReplicas": 3, "template": POD},
                {"replicas": 1, "minReplicas": 2, "numOfHosts": 2, "template": POD},
                {"replicas": 4, "minReplicas": 2, "template": POD},
            ]
        },
        {
            "spec.workerGroupSpecs[0].template.spec.containers[0]": 3,
            "spec.workerGroupSpecs[1].template.spec.containers[0]": 4,
            "spec.workerGroupSpecs[2].template.spec.containers[0]": 4,
        },
    ),
    "a service of Knative runs its fewest pods": Case(
        "serving.knative.dev",
        "Service",
        {"template": {**POD, "metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "3"}}}},
        {"spec.template.spec.containers[0]": 3},
    ),
    "a service of Knative that scales to zero runs a pod under load": Case(
        "serving.knative.dev",
        "Service",
        {"template": {**POD, "metadata": {"annotations": {"autoscaling.knative.dev/min-scale": "0"}}}},
        {"spec.template.spec.containers[0]": 1},
    ),
    "a predictor of KServe with workers: it is one of the stages": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 2, **SPEC, "workerSpec": {"pipelineParallelSize": 4, **SPEC}}},
        {"spec.predictor.containers[0]": 2, "spec.predictor.workerSpec.containers[0]": 6},
    ),
    "a PyTorchJob": Case(
        "kubeflow.org",
        "PyTorchJob",
        {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"replicas": 7, "template": POD}}},
        {
            "spec.pytorchReplicaSpecs.Master.template.spec.containers[0]": 1,
            "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]": 7,
        },
    ),
    "a LeaderWorkerSet: the leader is one of the group": Case(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": POD, "workerTemplate": POD}},
        {
            "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0]": 2,
            "spec.leaderWorkerTemplate.workerTemplate.spec.containers[0]": 6,
        },
    ),
    "a LeaderWorkerSet whose worker template is also the leader's": Case(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": POD}},
        {"spec.leaderWorkerTemplate.workerTemplate.spec.containers[0]": 8},
    ),
    "a LeaderWorkerSet of one pod, which is the leader": Case(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        {"replicas": 2, "leaderWorkerTemplate": {"size": 1, "leaderTemplate": POD, "workerTemplate": POD}},
        {
            "spec.leaderWorkerTemplate.leaderTemplate.spec.containers[0]": 2,
            "spec.leaderWorkerTemplate.workerTemplate.spec.containers[0]": 0,
        },
    ),
    "an LLMInferenceService whose base sets the number of workers": Case(
        "serving.kserve.io",
        "LLMInferenceService",
        {"template": SPEC, "worker": SPEC},
        {"spec.template.containers[0]": 1, "spec.worker.containers[0]": 1},
    ),
    "an LLMInferenceService without pipeline stages besides the leader": Case(
        "serving.kserve.io",
        "LLMInferenceService",
        {"template": SPEC, "worker": SPEC, "parallelism": {"pipeline": 1}},
        {"spec.template.containers[0]": 1, "spec.worker.containers[0]": 0},
    ),
    "an LLMInferenceService whose eight ranks are two to a pod: a leader and three workers": Case(
        "serving.kserve.io",
        "LLMInferenceService",
        {"replicas": 5, "template": SPEC, "worker": SPEC, "parallelism": {"data": 8, "dataLocal": 2}},
        {"spec.template.containers[0]": 5, "spec.worker.containers[0]": 15},
    ),
    "an LLMInferenceService whose ranks all share the leader's pod": Case(
        "serving.kserve.io",
        "LLMInferenceService",
        {"template": SPEC, "worker": SPEC, "parallelism": {"dataLocal": 8}},
        {"spec.template.containers[0]": 1, "spec.worker.containers[0]": 0},
    ),
    "a Notebook": Case("kubeflow.org", "Notebook", {"template": POD}, {"spec.template.spec.containers[0]": 1}),
    "a Workflow: container, script, and set": Case(
        "argoproj.io",
        "Workflow",
        {
            "parallelism": 9,
            "templates": [
                {"name": "plan", "steps": [[{"name": "a", "template": "train"}]]},
                {"name": "train", "container": GPU, "sidecars": [{"name": "log", "image": "x"}]},
                {"name": "code", "script": {**GPU, "source": "print()"}},
                {"name": "set", "containerSet": {"containers": [{"name": "a", "image": "x"}, GPU]}},
                {"name": "beside", "container": {"image": "x"}, "sidecars": [GPU]},
            ],
        },
        {
            "spec.templates[1].container": 1,
            "spec.templates[2].script": 1,
            "spec.templates[3].containerSet.containers[1]": 1,
            "spec.templates[4].sidecars[0]": 1,
        },
    ),
    "a CronWorkflow": Case(
        "argoproj.io",
        "CronWorkflow",
        {"workflowSpec": {"templates": [{"name": "train", "container": GPU}]}},
        {"spec.workflowSpec.templates[0].container": 1},
    ),
    "an InferenceService with a model": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 2, "model": {"modelFormat": {"name": "x"}, "resources": GPU["resources"]}}},
        {"spec.predictor.model": 2},
    ),
    "an InferenceService with a framework and a helper": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"containers": [GPU], "pytorch": {"storageUri": "pvc://x"}}},
        {"spec.predictor.containers[0]": 1},
    ),
    "an InferenceService with a container": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 3, **SPEC}},
        {"spec.predictor.containers[0]": 3},
    ),
    "an InferenceService that scales to zero": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 0, **SPEC}},
        {"spec.predictor.containers[0]": 1},
    ),
    "an InferenceService with workers and a transformer": Case(
        "serving.kserve.io",
        "InferenceService",
        {"predictor": {"minReplicas": 2, **SPEC, "workerSpec": SPEC}, "transformer": {"minReplicas": 4, **SPEC}},
        {
            "spec.predictor.containers[0]": 2,
            "spec.predictor.workerSpec.containers[0]": 2,
            "spec.transformer.containers[0]": 4,
        },
    ),
    "a Volcano Job": Case(
        "batch.volcano.sh",
        "Job",
        {"tasks": [{"replicas": 2, "template": POD}]},
        {"spec.tasks[0].template.spec.containers[0]": 2},
    ),
}


def gpu_counts(found: list[PodTemplate]) -> dict[str, int]:
    return {
        format_path(template.field_path(path)): template.replicas
        for template in found
        for path, container in containers_of_every_kind(template.pod.spec)
        if "nvidia.com/gpu" in container.resources.limits
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_workload(case: Case) -> None:
    found = templates_of(case.group, case.kind, {"kind": case.kind, "spec": case.spec})
    assert gpu_counts(found) == case.want
    assert [template.error for template in found if template.error] == []


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_path_of_a_container_leads_back_to_it(case: Case) -> None:
    data = {"kind": case.kind, "spec": case.spec}
    for template in templates_of(case.group, case.kind, data):
        for path, container in containers_of_every_kind(template.pod.spec):
            assert (
                at(data, template.field_path(path)).get("resources", {}).get("limits", {}) == container.resources.limits
            )


def at(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def test_fields_beside_the_containers_have_their_paths() -> None:
    (template,) = templates_of("apps", "Deployment", {"spec": {"template": POD}})
    assert template.path == ("spec", "template")
    assert template.spec_path == ("spec", "template", "spec")
    assert template.field_path(("metadata", "annotations", "a")) == ("spec", "template", "metadata", "annotations", "a")
    assert template.field_path(("spec", "tolerations")) == ("spec", "template", "spec", "tolerations")


def test_workflow_pod_defaults() -> None:
    data = {
        "spec": {
            "volumes": [{"name": "all", "hostPath": {"path": "/dev"}}],
            "nodeSelector": {"a": "b"},
            "podMetadata": {"annotations": {"x": "general", "y": "general"}},
            "templates": [
                {
                    "container": GPU,
                    "volumes": [{"name": "own", "hostPath": {"path": "/data"}}],
                    "metadata": {"annotations": {"x": "own"}},
                    "initContainers": [{"name": "i", "image": "x"}],
                }
            ],
        }
    }
    (template,) = templates_of("argoproj.io", "Workflow", data)
    spec, annotations = template.pod.spec, template.pod.metadata.annotations
    assert [volume.host_path for volume in spec.volumes] == [
        HostPathVolumeSource("/dev"),
        HostPathVolumeSource("/data"),
    ]
    assert spec.node_selector == {"a": "b"}
    assert annotations == {"x": "own", "y": "general"}
    places = {
        ("spec", "volumes", 0, "hostPath"): "spec.volumes[0].hostPath",
        ("spec", "volumes", 1, "hostPath"): "spec.templates[0].volumes[0].hostPath",
        ("spec", "nodeSelector"): "spec.nodeSelector",
        ("spec", "initContainers", 0): "spec.templates[0].initContainers[0]",
        ("metadata", "annotations", "x"): "spec.templates[0].metadata.annotations.x",
        ("metadata", "annotations", "y"): "spec.podMetadata.annotations.y",
    }
    assert {path: format_path(template.field_path(path)) for path in places} == places
