"""Paths of the pod templates of well-known workload kinds.

Most paths lead to a pod template (an object with `spec.containers`). Argo's lead to its own templates, and KServe's to
a pod spec whose main container is under `model`.

Sources: the CRDs of Kubeflow trainer v1 and v2, KubeRay, LeaderWorkerSet, JobSet, Kubeflow notebooks, Argo,
KServe, Knative, Volcano.
"""

from __future__ import annotations

from collections.abc import Mapping

TemplatePath = tuple[str, ...]
"""Keys from the object's root to a pod template; "*" matches every member of a list or map."""

WorkloadKind = tuple[str, str]
"""API group and kind."""

_TEMPLATE: tuple[TemplatePath, ...] = (("spec", "template"),)
_JOB_TEMPLATE: TemplatePath = ("spec", "jobTemplate", "spec", "template")
_RAY_CLUSTER: tuple[TemplatePath, ...] = (
    ("headGroupSpec", "template"),
    ("workerGroupSpecs", "*", "template"),
)
_LEADER_WORKER: tuple[TemplatePath, ...] = (
    ("spec", "leaderWorkerTemplate", "leaderTemplate"),
    ("spec", "leaderWorkerTemplate", "workerTemplate"),
)
_ARGO: tuple[TemplatePath, ...] = (("templates", "*"),)


def _prefix_paths(prefix: TemplatePath, paths: tuple[TemplatePath, ...]) -> tuple[TemplatePath, ...]:
    return tuple(prefix + path for path in paths)


def _replica_paths(key: str) -> tuple[TemplatePath, ...]:
    return (("spec", key, "*", "template"),)


WORKLOAD_TEMPLATES: Mapping[WorkloadKind, tuple[TemplatePath, ...]] = {
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("", "ReplicationController"): _TEMPLATE,
    ("", "PodTemplate"): (("template",),),
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): (_JOB_TEMPLATE,),
    ("batch.volcano.sh", "Job"): (("spec", "tasks", "*", "template"),),
    ("jobset.x-k8s.io", "JobSet"): (("spec", "replicatedJobs", "*", "template", "spec", "template"),),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): _LEADER_WORKER,
    ("ray.io", "RayCluster"): _prefix_paths(("spec",), _RAY_CLUSTER),
    ("ray.io", "RayJob"): (
        *_prefix_paths(("spec", "rayClusterSpec"), _RAY_CLUSTER),
        ("spec", "submitterPodTemplate"),
    ),
    ("ray.io", "RayService"): _prefix_paths(("spec", "rayClusterConfig"), _RAY_CLUSTER),
    ("kubeflow.org", "PyTorchJob"): _replica_paths("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _replica_paths("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _replica_paths("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _replica_paths("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _replica_paths("jaxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _replica_paths("mpiReplicaSpecs"),
    ("kubeflow.org", "Notebook"): _TEMPLATE,
    ("argoproj.io", "Workflow"): _prefix_paths(("spec",), _ARGO),
    ("argoproj.io", "WorkflowTemplate"): _prefix_paths(("spec",), _ARGO),
    ("argoproj.io", "ClusterWorkflowTemplate"): _prefix_paths(("spec",), _ARGO),
    ("argoproj.io", "CronWorkflow"): _prefix_paths(("spec", "workflowSpec"), _ARGO),
    ("argoproj.io", "Rollout"): _TEMPLATE,
    ("serving.knative.dev", "Service"): _TEMPLATE,
    ("serving.kserve.io", "InferenceService"): (
        ("spec", "predictor"),
        ("spec", "predictor", "workerSpec"),
        ("spec", "transformer"),
    ),
}
"""TrainJob is missing on purpose: it overrides fields of a runtime's template and contains none."""
