"""Forecasts for the pods of a workload: a slice is predicted only where all that decides about it is known."""

from __future__ import annotations

import pytest

from tests.builders import Json, make_pod
from tests.engine.decisions import NODES, SIZING
from tests.example_cluster import review
from webhook.model.decisions import KeepReason, KeepRequest, OfferChoice

POD = make_pod().gpus(1).needs("8Gi").build()
TEMPLATE = {"metadata": {"annotations": POD["metadata"]["annotations"]}, "spec": POD["spec"]}
QUEUE = {"kueue.x-k8s.io/queue-name": "q"}
LIMITS = {"limits": {"nvidia.com/gpu": "1"}}
NOTES = {"rightslice.dev/gpu-memory": "8Gi"}


def workload(api_version: str, kind: str, spec: Json, **metadata: Json) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "w", "namespace": "team", **metadata},
        "spec": spec,
    }


JOB = workload("batch/v1", "Job", {"template": TEMPLATE})
QUEUED_JOB = workload("batch/v1", "Job", {"template": TEMPLATE}, labels=QUEUE)
SLICED = {
    "a Deployment": workload("apps/v1", "Deployment", {"template": TEMPLATE}),
    "a Job": JOB,
    "a Job in an AppWrapper": workload(
        "workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": JOB}]}
    ),
    "a Job with a label that is no queue": workload("batch/v1", "Job", {"template": TEMPLATE}, labels={"team": "q"}),
}


@pytest.mark.parametrize("data", SLICED.values(), ids=SLICED)
def test_pods_that_are_known_get_a_slice(data: Json) -> None:
    assert isinstance(review(data, SIZING, nodes=NODES).outcome, OfferChoice)


KEPT: dict[str, tuple[Json, KeepReason, str]] = {
    "a Job with a Kueue label": (QUEUED_JOB, KeepReason.QUEUED, "label kueue.x-k8s.io/queue-name"),
    "a Deployment with a Kueue label": (
        workload("apps/v1", "Deployment", {"template": TEMPLATE}, labels=QUEUE),
        KeepReason.QUEUED,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a JobSet with a Kueue label": (
        workload(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}]},
            labels=QUEUE,
        ),
        KeepReason.QUEUED,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a RayCluster with a Kueue label": (
        workload("ray.io/v1", "RayCluster", {"workerGroupSpecs": [{"template": TEMPLATE}]}, labels=QUEUE),
        KeepReason.QUEUED,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a CronJob whose Jobs have a Kueue label": (
        workload(
            "batch/v1", "CronJob", {"jobTemplate": {"metadata": {"labels": QUEUE}, "spec": {"template": TEMPLATE}}}
        ),
        KeepReason.QUEUED,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a Job with a Kueue label in an AppWrapper": (
        workload("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": QUEUED_JOB}]}),
        KeepReason.QUEUED_POD,
        "label kueue.x-k8s.io/queue-name",
    ),
    "an AppWrapper with a Kueue label": (
        workload("workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": JOB}]}, labels=QUEUE),
        KeepReason.QUEUED,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a Deployment with a queue annotation of Volcano": (
        workload(
            "apps/v1", "Deployment", {"template": TEMPLATE}, annotations={"scheduling.volcano.sh/queue-name": "q"}
        ),
        KeepReason.QUEUED_POD,
        "annotation scheduling.volcano.sh/queue-name",
    ),
    "a Volcano Job": (
        workload("batch.volcano.sh/v1alpha1", "Job", {"tasks": [{"replicas": 1, "template": TEMPLATE}]}),
        KeepReason.QUEUED,
        "annotation scheduling.k8s.io/group-name",
    ),
    "a TrainJob with a Kueue label, whose template is never changed": (
        workload(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {"trainer": {"numNodes": 1, "image": "x", "resourcesPerNode": LIMITS}},
            labels=QUEUE,
        ),
        KeepReason.QUEUED_POD,
        "label kueue.x-k8s.io/queue-name",
    ),
    "a model whose image comes from a runtime": (
        workload(
            "serving.kserve.io/v1beta1",
            "InferenceService",
            {
                "predictor": {
                    "annotations": NOTES,
                    "model": {"modelFormat": {"name": "tensorflow"}, "resources": LIMITS},
                }
            },
        ),
        KeepReason.POD_UNKNOWN,
        "their image is not in the object",
    ),
    "a PodCliqueSet, whose pods are a gang": (
        workload(
            "grove.io/v1alpha1",
            "PodCliqueSet",
            {"template": {"cliques": [{"name": "a", "spec": {"podSpec": POD["spec"]}}]}},
        ),
        KeepReason.GANG_MEMBER,
        "label grove.io/podgang",
    ),
    "a service that its controller completes": (
        workload(
            "nvidia.com/v1alpha1",
            "DynamoGraphDeployment",
            {
                "services": {
                    "W": {
                        "resources": {"limits": {"gpu": "1"}},
                        "extraPodMetadata": {"annotations": NOTES},
                        "extraPodSpec": {"mainContainer": {"image": "x"}},
                    }
                }
            },
        ),
        KeepReason.POD_UNKNOWN,
        "the controller of DynamoGraphDeployment completes them",
    ),
    "roles of several pods": (
        workload(
            "workloads.x-k8s.io/v1alpha1",
            "RoleBasedGroup",
            {"roles": [{"leaderWorkerSet": {"size": 2}, "template": TEMPLATE}]},
        ),
        KeepReason.GANG_MEMBER,
        "label leaderworkerset.sigs.k8s.io/group-key",
    ),
}


@pytest.mark.parametrize(("data", "reason", "detail"), KEPT.values(), ids=KEPT)
def test_other_pods_are_not_promised_a_slice(data: Json, reason: KeepReason, detail: str) -> None:
    decision = review(data, SIZING, nodes=NODES)
    assert decision.outcome == KeepRequest(reason, detail)
    assert decision.gpu_milli_after == decision.gpu_milli_before > 0


def test_a_pod_without_an_image_is_not_a_forecast() -> None:
    """The API server rejects it; what is decided about it does not matter, but a pod never has unknown parts."""
    pod = make_pod().gpus(1).needs("8Gi").build()
    del pod["spec"]["containers"][0]["image"]
    assert isinstance(review(pod, SIZING, nodes=NODES).outcome, OfferChoice)
