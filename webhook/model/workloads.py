"""What a pod belongs to, by its owners."""

from __future__ import annotations

import re

from webhook.model.pods import Pod

_RUN = re.compile(r"Job/(.+)-[0-9]{8,10}")
"""A Job that a CronJob made is called by it and the minute."""


def workload_of(pod: Pod) -> str:
    """The workload a pod belongs to, as usage is recorded: "Deployment/serve", "Job/train".

    A ReplicaSet's name is its Deployment's with a hash behind it, which is also a label of the pod.
    """
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        template_hash = pod.metadata.labels.get("pod-template-hash", "")
        if owner.kind == "ReplicaSet" and template_hash and owner.name.endswith(f"-{template_hash}"):
            return f"Deployment/{owner.name.removesuffix(f'-{template_hash}')}"
        return f"{owner.kind}/{owner.name}"
    return f"Pod/{pod.metadata.name}"


def rolled_out_as(pod: Pod) -> str:
    """The workload that a pod counts for: all runs of a CronJob are one, and all pods of one generated name."""
    metadata = pod.metadata
    if metadata.generate_name and not any(owner.controller for owner in metadata.owner_references):
        return f"Pod/{metadata.generate_name}"
    workload = workload_of(pod)
    run = _RUN.fullmatch(workload)
    return f"CronJob/{run[1]}" if run else workload
