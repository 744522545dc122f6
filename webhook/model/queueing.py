"""Queueing systems: who budgets and places a pod beside, or in place of, the scheduler of the cluster.

They reckon with what a pod's template or pod group asks for, and start it when they see fit.

Sources: Kueue, Volcano, YuniKorn (labels and annotations), KAI-Scheduler (also by its older name), scheduler-plugins
(coscheduling).
"""

from __future__ import annotations

from webhook.model.pods import Pod

QUEUEING_SCHEDULERS = frozenset({"volcano", "yunikorn", "kai-scheduler", "runai-scheduler"})
"""Names that pods write in spec.schedulerName for the schedulers that keep queues."""

QUEUEING_PREFIXES = (
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/",
    "yunikorn.apache.org/",
    "kai.scheduler/",
    "runai/queue",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/",
)
"""How the labels and annotations begin that such a system puts on its pods, or is told by."""


def queueing_sign(pod: Pod) -> str:
    """The sign that a queueing system budgets a pod, for example "label kueue.x-k8s.io/queue-name"; "" where none."""
    metadata, scheduler = pod.metadata, pod.spec.scheduler_name
    if scheduler in QUEUEING_SCHEDULERS:
        return f"schedulerName {scheduler}"
    for label in metadata.labels:
        if label.startswith(QUEUEING_PREFIXES):
            return f"label {label}"
    for annotation in metadata.annotations:
        if annotation.startswith(QUEUEING_PREFIXES):
            return f"annotation {annotation}"
    return ""
