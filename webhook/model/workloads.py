"""Workload names: a common name for pods of one kind over time, under which their usage is recorded.

At admission only a pod's controller and labels are known, and recorded usage must get the same name, so both sides use
these functions. Runs of one thing are one workload: the Jobs of a CronJob, the Workflows of a CronWorkflow. A Workflow
with a generateName keeps its whole name: its pods do not show that the end of "train-x7k2p" was generated and that of
"train-llm9b" was not, and unrelated workloads must never share usage.
"""

from __future__ import annotations

import re

from webhook.model.pods import Pod

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""The JobSet of a pod's Job. A Kubeflow TrainJob's JobSet has the TrainJob's name."""

TEMPLATE_HASHES = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels whose value ends the name of a ReplicaSet, and the kind of its owner."""

INDEX_KEYS = frozenset(
    {
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
        "jobset.sigs.k8s.io/job-global-index",
        "jobset.sigs.k8s.io/job-index",
        "jobset.sigs.k8s.io/job-key",
        "leaderworkerset.sigs.k8s.io/worker-index",
        "statefulset.kubernetes.io/pod-name",
        "training.kubeflow.org/replica-index",
    }
)
"""Labels and annotations with the index of a pod in its workload. Only policies that select labels depend on them."""

_MINUTES = re.compile(r"-(2[6-9]|3\d|4\d)\d{6}$")
"""Minutes since 1970, at the end of the name of a CronJob's Job."""

_SECONDS = re.compile(r"-(1[6-9]|2\d)\d{8}$")
"""Seconds since 1970, at the end of a CronWorkflow's name."""


def workload_of(pod: Pod) -> str:
    """Return the workload of a pod: "Deployment/serve", "CronJob/nightly"; "Pod/NAME" without an owner."""
    labels = pod.metadata.labels
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        if owner.kind == "Job" and labels.get(JOBSET_LABEL):
            return f"JobSet/{labels[JOBSET_LABEL]}"
        if owner.kind == "ReplicaSet":
            return _workload_of_replica_set(owner.name, labels)
        return workload_name(owner.kind, owner.name)
    return f"Pod/{pod.metadata.name}"


def rollout_workload(pod: Pod) -> str:
    """Return the workload that a rollout counts a pod for: pods of one generateName are one."""
    metadata = pod.metadata
    if metadata.generate_name and not any(owner.controller for owner in metadata.owner_references):
        return f"Pod/{metadata.generate_name}"
    return workload_of(pod)


def _workload_of_replica_set(name: str, labels: dict[str, str]) -> str:
    for label, kind in TEMPLATE_HASHES.items():
        ending = f"-{labels.get(label, '')}"
        if len(ending) > 1 and name.endswith(ending):
            return f"{kind}/{name.removesuffix(ending)}"
    return f"ReplicaSet/{name}"


def workload_name(kind: str, name: str) -> str:
    """Return the workload of a controller.

    >>> workload_name("Job", "nightly-29912345"), workload_name("Workflow", "etl-1793000000")
    ('CronJob/nightly', 'CronWorkflow/etl')
    """
    if kind == "Job" and (found := _MINUTES.search(name)):
        return f"CronJob/{name[: found.start()]}"
    if kind == "Workflow" and (found := _SECONDS.search(name)):
        return f"CronWorkflow/{name[: found.start()]}"
    return f"{kind}/{name}"
