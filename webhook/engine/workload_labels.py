"""The pods of one workload: what tells them from others, and what spreads them over hosts."""

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
"""Labels that controllers give to all pods of one workload, the widest first."""

_BUILT_IN_LABELS: Mapping[WorkloadKind, str] = {
    ("apps", "Deployment"): "pod-template-hash",
    ("apps", "StatefulSet"): "controller-revision-hash",
    ("apps", "DaemonSet"): "controller-revision-hash",
    ("batch", "Job"): "batch.kubernetes.io/job-name",
    ("batch", "CronJob"): "batch.kubernetes.io/job-name",
}
"""Which of them the pods of a built-in kind will carry."""


def expected_pod_labels(kind: WorkloadKind) -> dict[str, str]:
    """The label that the pods of a workload will carry; empty, for what its controller will write is not known yet."""
    return {_BUILT_IN_LABELS[kind]: ""} if kind in _BUILT_IN_LABELS else {}


def workload_label_key(pod: Pod) -> str:
    """The label that all pods of the workload carry that a pod belongs to; "" for a pod on its own."""
    owners = pod.metadata.owner_references
    if not owners or not any(owner.controller for owner in owners):
        return ""
    return next((key for key in WORKLOAD_LABELS if key in pod.metadata.labels), "")


def workload_selector(pod: Pod) -> Json | None:
    """A label selector for all pods of the workload that a pod belongs to; None for a pod on its own."""
    key = workload_label_key(pod)
    return {"matchLabels": {key: pod.metadata.labels[key]}} if key else None


def host_spread_constraint(pod: Pod, *, required: bool) -> Json | None:
    """What spreads the pods of one workload; None for a pod on its own, and where the user spreads them already."""
    selector = workload_selector(pod)
    if selector is None or any(have.topology_key == HOSTNAME for have in pod.spec.topology_spread_constraints):
        return None
    return {
        "maxSkew": 1,
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule" if required else "ScheduleAnyway",
        "labelSelector": selector,
    }
