"""templates: the pods of custom resources, with their numbers and the field of each GPU amount."""

from __future__ import annotations

import pytest

from tests.builders import Json
from tests.engine.test_templates import GPU, POD, SPEC, Case, at, gpu_counts, templates_of
from webhook.engine.gpu_requests import containers_of_every_kind
from webhook.engine.templates import PodTemplate
from webhook.model.field_paths import format_path

LIMITS = GPU["resources"]
MODEL = {"storageUri": "gs://m", "resources": LIMITS}
JOB_SET = {"replicatedJobs": [{"replicas": 2, "template": {"spec": {"parallelism": 2, "template": POD}}}]}
GROUPS = [{"name": "decode", "cliqueNames": ["leader", "worker"], "replicas": 4}]

TEMPLATE_CASES = {
    "an MPIJob of v1alpha1": Case(
        "kubeflow.org", "MPIJob", {"replicas": 4, "template": POD}, {"spec.template.spec.containers[0]": 4}
    ),
    "a ClusterTrainingRuntime": Case(
        "trainer.kubeflow.org",
        "ClusterTrainingRuntime",
        {"mlPolicy": {"numNodes": 4}, "template": {"spec": JOB_SET}},
        {"spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0]": 4},
    ),
    "an InferenceService of v1alpha2": Case(
        "serving.kserve.io",
        "InferenceService",
        {
            "default": {"predictor": {"minReplicas": 2, "tensorflow": MODEL}},
            "canary": {"predictor": {"custom": {"container": GPU}}},
        },
        {"spec.default.predictor.tensorflow": 2, "spec.canary.predictor.custom.container": 1},
    ),
    "an LLMInferenceService with prefill and workers": Case(
        "serving.kserve.io",
        "LLMInferenceService",
        {
            "replicas": 2,
            "parallelism": {"pipeline": 4},
            "template": SPEC,
            "worker": SPEC,
            "prefill": {"replicas": 3, "template": SPEC},
        },
        {"spec.template.containers[0]": 2, "spec.worker.containers[0]": 6, "spec.prefill.template.containers[0]": 3},
    ),
    "a DynamoGraphDeployment of v1beta1": Case(
        "nvidia.com",
        "DynamoGraphDeployment",
        {"components": [{"name": "w", "replicas": 2, "multinode": {"nodeCount": 4}, "podTemplate": POD}]},
        {"spec.components[0].podTemplate.spec.containers[0]": 8},
    ),
    "a RoleBasedGroup of v1alpha1": Case(
        "workloads.x-k8s.io",
        "RoleBasedGroup",
        {"roles": [{"replicas": 2, "template": POD}, {"leaderWorkerSet": {"size": 4}, "template": POD}]},
        {"spec.roles[0].template.spec.containers[0]": 2, "spec.roles[1].template.spec.containers[0]": 4},
    ),
    "a RoleBasedGroup of v1alpha2": Case(
        "workloads.x-k8s.io",
        "RoleBasedGroup",
        {
            "roles": [
                {"replicas": 2, "standalonePattern": {"template": POD}},
                {"replicas": 2, "leaderWorkerPattern": {"size": 3, "template": POD}},
            ]
        },
        {
            "spec.roles[0].standalonePattern.template.spec.containers[0]": 2,
            "spec.roles[1].leaderWorkerPattern.template.spec.containers[0]": 6,
        },
    ),
    "a PodCliqueSet: cliques of a scaling group are multiplied": Case(
        "grove.io",
        "PodCliqueSet",
        {
            "replicas": 2,
            "template": {
                "podCliqueScalingGroups": GROUPS,
                "cliques": [
                    {"name": "router", "spec": {"replicas": 3, "podSpec": SPEC}},
                    {"name": "worker", "spec": {"replicas": 3, "podSpec": SPEC}},
                ],
            },
        },
        {
            "spec.template.cliques[0].spec.podSpec.containers[0]": 6,
            "spec.template.cliques[1].spec.podSpec.containers[0]": 24,
        },
    ),
    "a StormService": Case(
        "orchestration.aibrix.ai",
        "StormService",
        {"replicas": 2, "template": {"spec": {"roles": [{"replicas": 2, "podGroupSize": 4, "template": POD}]}}},
        {"spec.template.spec.roles[0].template.spec.containers[0]": 16},
    ),
    "an AppWrapper with a Job, a Pod, and an object of an unknown kind": Case(
        "workload.codeflare.dev",
        "AppWrapper",
        {
            "components": [
                {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"parallelism": 3, "template": POD}}},
                {"template": {"apiVersion": "v1", "kind": "Pod", **POD}},
                {"template": {"apiVersion": "example.com/v1", "kind": "Trainer", "spec": {"template": POD}}},
            ]
        },
        {
            "spec.components[0].template.spec.template.spec.containers[0]": 3,
            "spec.components[1].template.spec.containers[0]": 1,
        },
    ),
    "an AppWrapper in an AppWrapper is not followed": Case(
        "workload.codeflare.dev",
        "AppWrapper",
        {
            "components": [
                {
                    "template": {
                        "apiVersion": "workload.codeflare.dev/v1beta2",
                        "kind": "AppWrapper",
                        "spec": {"components": [{"template": {"apiVersion": "v1", "kind": "Pod", **POD}}]},
                    }
                }
            ]
        },
        {},
    ),
}


@pytest.mark.parametrize("case", TEMPLATE_CASES.values(), ids=TEMPLATE_CASES)
def test_a_kind_with_pod_templates(case: Case) -> None:
    data = {"kind": case.kind, "spec": case.spec}
    found = templates_of(case.group, case.kind, data)
    assert gpu_counts(found) == case.want
    for template in found:
        for path, container in containers_of_every_kind(template.pod.spec):
            assert at(data, template.field_path(path))["resources"]["limits"] == container.resources.limits


def test_an_app_wrapper_with_too_many_components_has_an_error() -> None:
    pod = {"template": {"apiVersion": "v1", "kind": "Pod", **POD}}
    found = templates_of("workload.codeflare.dev", "AppWrapper", {"spec": {"components": [pod] * 1001}})
    errors = [(template.error_path, template.error) for template in found if template.error]
    assert errors == [(("spec", "components"), "must have at most 1000 members, found more")]


FIELD_CASES = {
    "a TrainJob": Case(
        "trainer.kubeflow.org",
        "TrainJob",
        {"trainer": {"numNodes": 2, "image": "x", "resourcesPerNode": LIMITS}},
        {"spec.trainer.resourcesPerNode.limits['nvidia.com/gpu']": 2},
    ),
    "a NIMService": Case(
        "apps.nvidia.com",
        "NIMService",
        {"replicas": 2, "image": {"repository": "x"}, "resources": LIMITS, "nodeSelector": {"a": "b"}},
        {"spec.resources.limits['nvidia.com/gpu']": 2},
    ),
    "a NIMPipeline: a service that is switched off has no pods": Case(
        "apps.nvidia.com",
        "NIMPipeline",
        {
            "services": [
                {"enabled": True, "spec": {"replicas": 3, "resources": LIMITS}},
                {"enabled": False, "spec": {"replicas": 3, "resources": LIMITS}},
            ]
        },
        {
            "spec.services[0].spec.resources.limits['nvidia.com/gpu']": 3,
            "spec.services[1].spec.resources.limits['nvidia.com/gpu']": 0,
        },
    ),
    "a DynamoGraphDeployment": Case(
        "nvidia.com",
        "DynamoGraphDeployment",
        {
            "services": {
                "Frontend": {"replicas": 1},
                "Worker": {
                    "replicas": 2,
                    "multinode": {"nodeCount": 2},
                    "resources": {"limits": {"gpu": "1", "custom": {"rdma/ib": "1"}}},
                    "extraPodSpec": {"mainContainer": {"image": "x"}},
                },
            }
        },
        {"spec.services.Worker.resources.limits.gpu": 4},
    ),
    "a SparkApplication": Case(
        "sparkoperator.k8s.io",
        "SparkApplication",
        {
            "driver": {"cores": 1},
            "executor": {"instances": 5, "memory": "512m", "gpu": {"name": "nvidia.com/gpu", "quantity": 1}},
        },
        {"spec.executor.gpu.quantity": 5},
    ),
    "a ServingRuntime": Case(
        "serving.kserve.io",
        "ServingRuntime",
        {"annotations": {"a": "b"}, "supportedModelFormats": [], **SPEC},
        {"spec.containers[0].resources.limits['nvidia.com/gpu']": 1},
    ),
    "a VLLMRuntime": Case(
        "production-stack.vllm.ai",
        "VLLMRuntime",
        {"deploymentConfig": {"replicas": 2, "image": {"name": "x"}, "resources": {"cpu": "4", "gpu": "1"}}},
        {"spec.deploymentConfig.resources.gpu": 2},
    ),
}


@pytest.mark.parametrize("case", FIELD_CASES.values(), ids=FIELD_CASES)
def test_a_kind_without_pod_templates(case: Case) -> None:
    found = templates_of(case.group, case.kind, {"kind": case.kind, "spec": case.spec})
    assert [each.error for each in found if each.error] == []
    assert gpu_fields(found) == case.want


def gpu_fields(found: list[PodTemplate]) -> dict[str, int]:
    return {
        format_path(template.field_path((*path, "resources", "limits", "nvidia.com/gpu"))): template.replicas
        for template in found
        for path, container in containers_of_every_kind(template.pod.spec)
        if "nvidia.com/gpu" in container.resources.limits
    }


def test_a_named_gpu_type_is_the_resource_that_pods_request() -> None:
    data: Json = {
        "spec": {"services": {"W": {"resources": {"limits": {"gpu": "1", "gpuType": "nvidia.com/mig-1g.5gb"}}}}}
    }
    (template,) = templates_of("nvidia.com", "DynamoGraphDeployment", data)
    assert template.pod.spec.containers[0].resources.limits == {"nvidia.com/mig-1g.5gb": "1"}


def test_a_pod_keeps_what_its_kind_has_beside_the_container() -> None:
    spec: Json = {"nodeSelector": {"a": "b"}, "annotations": {"x": "y"}, "image": {"repository": "r"}, "env": []}
    (template,) = templates_of("apps.nvidia.com", "NIMService", {"spec": spec})
    pod = template.pod
    assert (pod.spec.node_selector, pod.metadata.annotations, pod.spec.containers[0].image) == (
        {"a": "b"},
        {"x": "y"},
        "r",
    )
    assert template.field_path(("spec", "nodeSelector", "a")) == ("spec", "nodeSelector", "a")
    assert template.field_path(("metadata", "annotations", "x")) == ("spec", "annotations", "x")
