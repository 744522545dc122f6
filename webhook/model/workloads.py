"""Workloads: what pods of one kind after another are called by together, as their use is kept.

A pod is known at admission by its controller and its labels alone. What is recorded must come to the same name, or it
would never be found: so both sides name by these functions. Runs of one thing are one workload: the Jobs of a CronJob,
the Workflows of a CronWorkflow. A Workflow of a generateName keeps its whole name: nothing in its pods tells that the
end of "train-x7k2p" was made up and that of "train-llm9b" was not, and strangers must never share what was seen.
"""

from __future__ import annotations

import re

from webhook.model.pods import Pod

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""The label that says which JobSet a pod's Job is of. A Kubeflow TrainJob's JobSet has the TrainJob's name."""

TEMPLATE_HASHES = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels whose value ends the name of a ReplicaSet, and what kind of object made that one."""

_MINUTES = re.compile(r"-(2[6-9]|3\d|4\d)\d{6}$")
"""Minutes since 1970 from 2019 to 2065: what a CronJob puts behind its name. A date, 20261121, is less."""

_SECONDS = re.compile(r"-(1[6-9]|2\d)\d{8}$")
"""Seconds since 1970, of the same: a CronWorkflow's."""


def workload_of(pod: Pod) -> str:
    """The workload a pod belongs to: "Deployment/serve", "CronJob/nightly"; "Pod/NAME" where nothing owns it."""
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
    """The workload that a pod counts for: as `workload_of`, and all pods of one generated name are one."""
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
    """The workload that a controller stands for.

    >>> named("Job", "nightly-29912345"), named("Workflow", "etl-1793000000"), named("PyTorchJob", "llm")
    ('CronJob/nightly', 'CronWorkflow/etl', 'PyTorchJob/llm')
    """
    if kind == "Job" and (found := _MINUTES.search(name)):
        return f"CronJob/{name[: found.start()]}"
    if kind == "Workflow" and (found := _SECONDS.search(name)):
        return f"CronWorkflow/{name[: found.start()]}"
    return f"{kind}/{name}"
