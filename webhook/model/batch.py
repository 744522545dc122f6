"""Gangs (pods that run together or not at all) and queueing systems, recognized by what one pod carries.

A scheduler sees a pod, not the Job that created it. A gang is recognized by what controllers write on each of its pods:
a shared label and, from some, the number of pods. Pod affinity to pods with the same labels counts too, and gives the
topology key; the webhook writes that for policies with a `multiNodeDomain`. Queueing systems budget and place a pod
beside, or instead of, the scheduler, by its template or pod group.

Sources: scheduler-plugins (coscheduling), Kueue, LeaderWorkerSet, JobSet, Kubeflow's training operator, KubeRay,
Kubernetes (Indexed Jobs), torchrun (`PET_NNODES`), Volcano, YuniKorn, KAI-Scheduler (also under its older name).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from webhook.model.annotations import GANG_SIZE_ANNOTATION
from webhook.model.api_struct import ApiStruct
from webhook.model.node_labels import CLIQUE_LABEL, parse_count
from webhook.model.pods import DEFAULT_NAMESPACE, Pod

QUEUEING_SCHEDULERS = frozenset({"volcano", "yunikorn", "kai-scheduler", "runai-scheduler"})
"""Values of spec.schedulerName for schedulers with queues."""

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
"""Prefixes of the labels and annotations that such systems write or read."""


GROUP_LABELS: Mapping[str, str] = {
    "scheduling.x-k8s.io/pod-group": "",
    "pod-group.scheduling.sigs.k8s.io/name": "pod-group.scheduling.sigs.k8s.io/min-available",
    "kueue.x-k8s.io/pod-group-name": "kueue.x-k8s.io/pod-group-total-count",
    "leaderworkerset.sigs.k8s.io/group-key": "leaderworkerset.sigs.k8s.io/size",
    "jobset.sigs.k8s.io/jobset-name": "",
    "training.kubeflow.org/job-name": "",
    "ray.io/cluster": "",
}
"""Labels whose value the pods of one gang share, and the label or annotation with its size."""

JOB_LABEL, INDEX_LABEL = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
"""The pods of a Job are a gang if each has an index, or if one states the size."""

NODES_VARIABLE = "PET_NNODES"
"""The number of pods that torchrun waits for; training operators set it."""

MAX_GANG_SIZE = 100_000
"""A larger size is ignored."""


class Gang(NamedTuple):
    """The gang of a pod, as far as the pod shows.

    Attributes:
        name: Equal for all of its pods, and unique to it.
        size: Number of pods, this one included; 0 if unknown.
        domain: Node label whose value they should share.
    """

    name: str
    size: int
    domain: str


class _SelectorExpression(ApiStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class _LabelSelector(ApiStruct, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[_SelectorExpression, ...] = ()


class _PodAffinityTerm(ApiStruct, frozen=True):
    topology_key: str = ""
    label_selector: _LabelSelector | None = None
    namespaces: tuple[str, ...] = ()


def gang_of(pod: Pod) -> Gang | None:
    """Return the gang of a pod; None for a pod without one."""
    term, size = _own_affinity_term(pod), gang_size(pod)
    name = next(_gang_names(pod, size), "") or (_affinity_term_text(term) if term is not None else "")
    if not name or size == 1:
        return None
    namespace = pod.metadata.namespace or DEFAULT_NAMESPACE
    return Gang(f"{namespace}/{name}", size, term.topology_key if term is not None else CLIQUE_LABEL)


def invalid_gang_size(pod: Pod) -> str | None:
    """Return the pod's gang size annotation if it is not a valid number."""
    text = pod.metadata.annotations.get(GANG_SIZE_ANNOTATION)
    return text if text is not None and not _parse_gang_size(text) else None


def _gang_names(pod: Pod, size: int) -> Iterator[str]:
    """Yield the names that controllers give the gang, the best first."""
    labels = pod.metadata.labels
    yield from (f"{key}={labels[key]}" for key in GROUP_LABELS if labels.get(key))
    if labels.get(JOB_LABEL) and (size or INDEX_LABEL in labels or INDEX_LABEL in pod.metadata.annotations):
        yield f"{JOB_LABEL}={labels[JOB_LABEL]}"
    if size:
        yield from (f"uid={owner.uid}" for owner in pod.metadata.owner_references if owner.controller and owner.uid)


def gang_size(pod: Pod) -> int:
    """Return the size of the gang: from its user, its controller, or the program; 0 if unknown."""
    metadata = {**pod.metadata.labels, **pod.metadata.annotations}
    keys = (GANG_SIZE_ANNOTATION, *(size for key, size in GROUP_LABELS.items() if size and key in metadata))
    texts = [metadata.get(key, "") for key in keys]
    texts += [env.value for container in pod.spec.containers for env in container.env if env.name == NODES_VARIABLE]
    return next((size for size in map(_parse_gang_size, texts) if size), 0)


def _parse_gang_size(text: str) -> int:
    found = parse_count(text)
    return found if found is not None and found <= MAX_GANG_SIZE else 0


def _own_affinity_term(pod: Pod) -> _PodAffinityTerm | None:
    """Return the first term of its affinity that selects pods with its own labels, required terms first."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    if affinity is None:
        return None
    weighted = [each for each in affinity.preferred if isinstance(each, dict) and isinstance(each.get("weight"), int)]
    preferred = [each.get("podAffinityTerm") for each in sorted(weighted, key=lambda each: -each["weight"])]
    terms = map(_parse_affinity_term, (*affinity.required, *preferred))
    return next((term for term in terms if _selects_pod(term, pod)), None)


def _parse_affinity_term(data: Any) -> _PodAffinityTerm:
    try:
        return msgspec.convert(data, _PodAffinityTerm)
    except msgspec.ValidationError:
        return _PodAffinityTerm()


def _selects_pod(term: _PodAffinityTerm, pod: Pod) -> bool:
    """Return whether a term selects pods like this one."""
    selector, labels = term.label_selector, pod.metadata.labels
    if not term.topology_key or selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    if term.namespaces and (pod.metadata.namespace or DEFAULT_NAMESPACE) not in term.namespaces:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        one.operator == "In" and labels.get(one.key) in one.values for one in selector.match_expressions
    )


def _affinity_term_text(term: _PodAffinityTerm) -> str:
    """Return the pods that a term selects, as text."""
    selector = term.label_selector or _LabelSelector()
    metadata = [f"{key}={value}" for key, value in selector.match_labels.items()]
    metadata += [f"{one.key} in {','.join(sorted(one.values))}" for one in selector.match_expressions]
    return "; ".join(sorted(metadata))


def queueing_sign(pod: Pod) -> str:
    """Return the sign of a queueing system, for example "label kueue.x-k8s.io/queue-name"; "" for none."""
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
