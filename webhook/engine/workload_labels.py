"""The labels that identify the pods of one workload, and the constraint that spreads them over hosts."""

from __future__ import annotations

from collections.abc import Mapping

from webhook.engine.mutation import Json
from webhook.model.pods import Pod
from webhook.policy.template_paths import WorkloadKind

HOSTNAME = "kubernetes.io/hostname"

WORKLOAD_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "ray.io/cluster",
    "batch.kubernetes.io/job-name",
    "job-name",
    "pod-template-hash",
    "controller-revision-hash",
)
"""Labels that controllers set on all pods of one workload, the largest group first."""

_BUILT_IN_LABELS: Mapping[WorkloadKind, str] = {
    ("apps", "Deployment"): "pod-template-hash",
    ("apps", "StatefulSet"): "controller-revision-hash",
    ("apps", "DaemonSet"): "controller-revision-hash",
    ("batch", "Job"): "batch.kubernetes.io/job-name",
    ("batch", "CronJob"): "batch.kubernetes.io/job-name",
}
"""The label of the pods of each built-in kind."""


def expected_pod_labels(kind: WorkloadKind) -> dict[str, str]:
    """Return the label that the pods of a workload will have; empty, because its value is not known yet."""
    return {_BUILT_IN_LABELS[kind]: ""} if kind in _BUILT_IN_LABELS else {}


def workload_label_key(pod: Pod) -> str:
    """Return the label that all pods of the pod's workload have; "" for a pod without controller."""
    for owner in pod.metadata.owner_references:
        if owner.controller:
            labels = pod.metadata.labels
            for key in WORKLOAD_LABELS:
                if key in labels:
                    return key
    return ""


def host_spread_constraint(pod: Pod, *, required: bool) -> Json | None:
    """Return a constraint that spreads the pods of one workload; None for a single pod, and where the pod has one."""
    key = workload_label_key(pod)
    if not key or any(each.topology_key == HOSTNAME for each in pod.spec.topology_spread_constraints):
        return None
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
        "labelSelector": {"matchLabels": {key: pod.metadata.labels[key]}},
    }
