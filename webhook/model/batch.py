"""Gangs (pods that run together or not at all) and queueing systems, recognized by what one pod carries.

A scheduler sees a pod, not the Job that created it. A gang is recognized by what controllers write on each of its pods:
a shared label and, from some, the number of pods. Pod affinity to pods with the same labels counts too, and gives the
topology key; the webhook writes that for policies with a `multiNodeDomain`. Replicas of a Deployment are no gang,
although that affinity keeps them together where it can. Queueing systems budget and place a pod, by its template or pod
group, in addition to the scheduler or instead of it.

Sources: scheduler-plugins (coscheduling), Kueue, LeaderWorkerSet, JobSet, Kubeflow's training operator, KubeRay,
Kubernetes (Indexed Jobs, PodGroup), Grove, torchrun (`PET_NNODES`), the first MPI operator, Volcano, YuniKorn,
Koordinator, KAI-Scheduler (also under its older name), TorchX, Determined, SkyPilot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from webhook.model.annotations import GANG_SIZE_ANNOTATION
from webhook.model.filters.inter_pod_affinity import PodAffinityTerm, parse_affinity_term
from webhook.model.node_labels import CLIQUE_LABEL, parse_count
from webhook.model.pods import DEFAULT_NAMESPACE, OwnerReference, Pod, PodLabelSelector
from webhook.model.stated_ranks import NODES_VARIABLE, RankKind, stated_ranks

QUEUEING_SCHEDULERS = frozenset({"volcano", "yunikorn", "kai-scheduler", "runai-scheduler", "koord-scheduler"})
"""Values of spec.schedulerName for schedulers with queues."""

KAI_POOL_LABEL = "kai.scheduler/node-pool"
"""Label of the nodes and pods of one shard of KAI; the other pods run on nodes without it."""

QUEUEING_PREFIXES = (
    "kueue.x-k8s.io/",
    "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/",
    "yunikorn.apache.org/",
    "kai.scheduler/",
    "runai/queue",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/",
    "gang.scheduling.koordinator.sh/",
    "quota.scheduling.koordinator.sh/",
)
"""Prefixes of the labels and annotations that such systems write or read."""


class QueueingSystem(NamedTuple):
    """The signs of a queueing system on a pod.

    Attributes:
        schedulers: Values of spec.schedulerName; () if it has no scheduler.
        prefixes: Prefixes of labels and annotations.
    """

    schedulers: tuple[str, ...]
    prefixes: tuple[str, ...]


KUEUE = QueueingSystem((), ("kueue.x-k8s.io/",))
VOLCANO = QueueingSystem(("volcano",), ("scheduling.volcano.sh/", "scheduling.k8s.io/group-name"))
KAI = QueueingSystem(("kai-scheduler", "runai-scheduler"), ("kai.scheduler/", "runai/queue"))
NO_SYSTEM = QueueingSystem((), ())


GROUP_LABELS: Mapping[str, str] = {
    "scheduling.x-k8s.io/pod-group": "",
    "pod-group.scheduling.sigs.k8s.io/name": "pod-group.scheduling.sigs.k8s.io/min-available",
    "kueue.x-k8s.io/pod-group-name": "kueue.x-k8s.io/pod-group-total-count",
    "leaderworkerset.sigs.k8s.io/group-key": "leaderworkerset.sigs.k8s.io/size",
    "jobset.sigs.k8s.io/jobset-name": "",
    "training.kubeflow.org/job-name": "",
    "mpi-job-name": "",
    "gang.scheduling.koordinator.sh/name": "gang.scheduling.koordinator.sh/min-available",
    "ray.io/cluster": "",
    "grove.io/podgang": "",
    "torchx.pytorch.org/app-name": "",
    "determined.ai/task_id": "",
    "skypilot-cluster-name": "",
}
"""Labels or annotations whose value the pods of one gang share, and the label or annotation with its size.

A minimum of one pod says nothing about the size.
"""

GANG_OWNERS = frozenset({"MPIJob", "TFJob", "PyTorchJob", "JAXJob", "XGBoostJob", "PaddleJob", "MXJob"})
"""Kinds of `kubeflow.org` that create the workers of a job, also without a label that says so."""

SINGLE_POD_TASKS = frozenset({"NOTEBOOK", "SHELL", "COMMAND", "TENSORBOARD"})
"""Tasks of Determined that have one pod (`determined.ai/task_type`)."""

_SIZES = {label: size for label, size in GROUP_LABELS.items() if size}

JOB_LABEL, INDEX_LABEL = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"
"""The pods of a Job are a gang if each has an index, or if one states the size."""

REPLICA_LABELS = frozenset({"pod-template-hash", "controller-revision-hash"})
"""Labels of workloads whose pods are replicas that do not communicate, unlike those of a Job."""

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


def gang_of(pod: Pod) -> Gang | None:
    """Return the gang of a pod; None for a pod without one."""
    term, size = _own_affinity_term(pod), gang_size(pod)
    if term is not None and _selects_replicas(term):
        term = None
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
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    for key in GROUP_LABELS:
        if (name := labels.get(key) or annotations.get(key)) and not _is_only_pod(pod, key):
            yield f"{key}={name}"
    if labels.get(JOB_LABEL) and (size or INDEX_LABEL in labels or INDEX_LABEL in annotations):
        yield f"{JOB_LABEL}={labels[JOB_LABEL]}"
    if pod.spec.scheduling_group and isinstance(group := pod.spec.scheduling_group.get("podGroupName"), str):
        yield f"podGroupName={group}"
    if pod.spec.workload_ref:
        parts = (pod.spec.workload_ref.get(key, "") for key in ("name", "podGroup", "podGroupReplicaKey"))
        yield f"workloadRef={'/'.join(part for part in parts if isinstance(part, str))}"
    owners = pod.metadata.owner_references if size else filter(_is_gang_owner, pod.metadata.owner_references)
    yield from (f"uid={owner.uid}" for owner in owners if owner.controller and owner.uid)


def _is_gang_owner(owner: OwnerReference) -> bool:
    return owner.controller and owner.kind in GANG_OWNERS and owner.api_version.startswith("kubeflow.org/")


def _is_only_pod(pod: Pod, label: str) -> bool:
    """Return whether a pod with a label of `GROUP_LABELS` is the only one: some write it on pods that run alone.

    SkyPilot spreads the pods of a cluster with several by anti-affinity, the first one included.
    """
    if label == "determined.ai/task_id":
        return pod.metadata.labels.get("determined.ai/task_type") in SINGLE_POD_TASKS
    if label == "skypilot-cluster-name":
        return pod.metadata.labels.get("ray-node-type") != "worker" and not _avoids_label(pod, label)
    return False


def _avoids_label(pod: Pod, label: str) -> bool:
    """Return whether a pod prefers other hosts than those of pods with some value of a label."""
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    weighted = affinity.preferred if affinity is not None else ()
    terms = [parse_affinity_term(each.get("podAffinityTerm")) for each in weighted if isinstance(each, dict)]
    selectors = [term.label_selector for term in terms if term.label_selector is not None]
    return any(one.key == label for selector in selectors for one in selector.match_expressions)


def gang_size(pod: Pod) -> int:
    """Return the size of the gang: from its user, its controller, or the program; 0 if unknown."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    grouped = not (_SIZES.keys().isdisjoint(labels) and _SIZES.keys().isdisjoint(annotations))
    keys = [size for key, size in _SIZES.items() if key in labels or key in annotations] if grouped else ()
    sizes = {key: annotations.get(key) or labels.get(key, "") for key in (GANG_SIZE_ANNOTATION, *keys)}
    texts = [text for key, text in sizes.items() if text != "1" or not key.endswith("/min-available")]
    texts += [env.value for container in pod.spec.containers for env in container.env if env.name == NODES_VARIABLE]
    for text in texts:
        if text and (size := _parse_gang_size(text)):
            return size
    return 0


def gang_sign(pod: Pod) -> str:
    """Return the sign that a pod with one GPU is one of several workers of a job; "" if it is none or the only one.

    Equal pods without such a sign are independent replicas: those of a Deployment, a StatefulSet or an Indexed Job.
    """
    if invalid_gang_size(pod) is not None:
        return f"annotation {GANG_SIZE_ANNOTATION}"
    size = gang_size(pod)
    if size:
        return f"one of {size} pods" if size > 1 else ""
    if (stated := _stated_sign(pod)) is not None:
        return stated
    for kind, keys in (("label", pod.metadata.labels), ("annotation", pod.metadata.annotations)):
        for key in filter(keys.__contains__, GROUP_LABELS):
            if not _is_only_pod(pod, key):
                return f"{kind} {key}"
    if owner := next(filter(_is_gang_owner, pod.metadata.owner_references), None):
        return f"owner {owner.kind}"
    return "schedulingGroup" if pod.spec.scheduling_group else "workloadRef" if pod.spec.workload_ref else ""


def _stated_sign(pod: Pod) -> str | None:
    """Return the sign of several workers in variables and commands; "" if they state one, None if they state nothing.

    An address counts only without a number.
    """
    ranks = stated_ranks(pod)
    if not ranks:
        return None
    several = next((rank.text for rank in ranks if rank.ranks > 1 and rank.kind is not RankKind.ADDRESS), "")
    if several or any(rank.kind is RankKind.PODS for rank in ranks):
        return several
    return next((rank.text for rank in ranks if rank.kind is RankKind.ADDRESS), None)


def _parse_gang_size(text: str) -> int:
    found = parse_count(text)
    return found if found is not None and found <= MAX_GANG_SIZE else 0


def _own_affinity_term(pod: Pod) -> PodAffinityTerm | None:
    """Return the first term of its affinity that selects pods with its own labels, required terms first."""
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    if affinity is None:
        return None
    weighted = [each for each in affinity.preferred if isinstance(each, dict) and isinstance(each.get("weight"), int)]
    preferred = [each.get("podAffinityTerm") for each in sorted(weighted, key=lambda each: -each["weight"])]
    terms = map(parse_affinity_term, (*affinity.required, *preferred))
    return next((term for term in terms if _selects_pod(term, pod)), None)


def _selects_pod(term: PodAffinityTerm, pod: Pod) -> bool:
    """Return whether a term selects pods like this one."""
    selector, labels = term.label_selector, pod.metadata.labels
    if not term.topology_key or selector is None or not (selector.match_labels or selector.match_expressions):
        return False
    if term.namespaces and (pod.metadata.namespace or DEFAULT_NAMESPACE) not in term.namespaces:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        one.operator == "In" and labels.get(one.key) in one.values for one in selector.match_expressions
    )


def _selects_replicas(term: PodAffinityTerm) -> bool:
    """Return whether a term selects the replicas of a workload, which the webhook keeps together."""
    return term.label_selector is not None and not REPLICA_LABELS.isdisjoint(term.label_selector.match_labels)


def _affinity_term_text(term: PodAffinityTerm) -> str:
    """Return the pods that a term selects, as text."""
    selector = term.label_selector or PodLabelSelector()
    metadata = [f"{key}={value}" for key, value in selector.match_labels.items()]
    metadata += [f"{one.key} in {','.join(sorted(one.values))}" for one in selector.match_expressions]
    return "; ".join(sorted(metadata))


def is_charged_as_one_gpu(resource: str) -> bool:
    """Return whether KAI charges one unit of a resource as one GPU, as it does for a whole card.

    It charges a MIG instance as one GPU for each of its compute slices, and knows only names without attributes
    (`ExtractGpuAndMemoryFromMigResourceName`); what else shares a card is charged as nothing.
    """
    return re.fullmatch(r"nvidia\.com/mig-1g\.\d+gb", resource) is not None


def queueing_sign(pod: Pod, *ignored: QueueingSystem) -> str:
    """Return the sign of a queueing system, for example "label kueue.x-k8s.io/queue-name"; "" for none.

    Args:
        ignored: Systems whose signs do not count.
    """
    schedulers: Collection[str] = QUEUEING_SCHEDULERS
    prefixes: tuple[str, ...] = QUEUEING_PREFIXES
    for system in ignored:
        schedulers = [each for each in schedulers if each not in system.schedulers]
        prefixes = tuple([each for each in prefixes if each not in system.prefixes])
    return _find_sign(pod, schedulers, prefixes)


def sign_of_system(pod: Pod, system: QueueingSystem) -> str:
    """Return the sign of one queueing system on a pod; "" for none."""
    return _find_sign(pod, system.schedulers, system.prefixes)


def _find_sign(pod: Pod, schedulers: Collection[str], prefixes: tuple[str, ...]) -> str:
    if pod.spec.scheduler_name in schedulers:
        return f"schedulerName {pod.spec.scheduler_name}"
    for label in pod.metadata.labels:
        if label.startswith(prefixes):
            return f"label {label}"
    for annotation in pod.metadata.annotations:
        if annotation.startswith(prefixes):
            return f"annotation {annotation}"
    return ""
