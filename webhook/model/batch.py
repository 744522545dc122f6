"""Gangs (pods that run together or not at all) and queueing systems, recognized by what one pod carries.

A scheduler sees a pod, not the Job that created it. A gang is recognized by what controllers write on each of its pods:
a shared label and, from some, the number of pods. Pod affinity to pods with the same labels counts too, and gives the
topology key; the webhook writes that for policies with a `multiNodeDomain`. Replicas of a Deployment are no gang,
although that affinity keeps them together where it can. Queueing systems budget and place a pod, by its template or pod
group, in addition to the scheduler or instead of it.

Sources: scheduler-plugins (coscheduling), Kueue, LeaderWorkerSet, JobSet, Kubeflow's training operator, KubeRay,
Kubernetes (Indexed Jobs, PodGroup), Grove, torchrun (`PET_NNODES`), the first MPI operator, Volcano, YuniKorn,
Koordinator, KAI-Scheduler (also under its older name), TorchX, Determined, SkyPilot.

Numbers of ranks that a pod's program and variables state: it is one of several workers if there is more than one. An
address where workers meet counts too, unless it is the pod's own or a number says that there is one worker.

A number that is stated and cannot be read here (`valueFrom`, a shell variable) counts as several. `$(NAME)` is expanded
as the kubelet does.

Sources: torchrun, accelerate, JAX, TensorFlow (`TF_CONFIG`), Slurm, Open MPI, Horovod, Ray, vLLM and SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from webhook.model.annotations import GANG_SIZE_ANNOTATION
from webhook.model.filters.inter_pod_affinity import PodAffinityTerm, parse_affinity_term
from webhook.model.node_labels import CLIQUE_LABEL, parse_count
from webhook.model.pods import DEFAULT_NAMESPACE, Container, OwnerReference, Pod, PodLabelSelector, expand_references

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
    keys = [size for key, size in _SIZES.items() if key in labels or key in annotations]
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

    A rendezvous address counts only without a number.
    """
    ranks = stated_ranks(pod)
    if not ranks:
        return None
    several = next((sign for sign, count in ranks if count > 1 and not _is_address(sign)), "")
    if several or any(states_one_pod(sign) for sign, _ in ranks):
        return several
    return next((sign for sign, _ in ranks if _is_address(sign)), None)


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


NODES_VARIABLE = "PET_NNODES"
"""The number of pods that torchrun waits for; training operators set it."""

RANK_VARIABLES = frozenset(
    {
        NODES_VARIABLE,
        "NNODES",
        "WORLD_SIZE",
        "JAX_NUM_PROCESSES",
        "SLURM_NTASKS",
        "SLURM_NNODES",
        "SLURM_JOB_NUM_NODES",
        "SLURM_NPROCS",
        "OMPI_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_SIZE",
        "PMI_SIZE",
        "HOROVOD_SIZE",
        "PADDLE_TRAINERS_NUM",
    }
)
"""Variables with the number of pods of a job whose pods have one GPU each."""

INDEX_VARIABLES = frozenset(
    {
        *("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "RANK", "JAX_PROCESS_ID", "SLURM_PROCID", "SLURM_NODEID"),
        *("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "HOROVOD_RANK", "PADDLE_TRAINER_ID"),
    }
)
"""Variables with the number of this pod among them, from 0."""

CLUSTER_VARIABLE = "TF_CONFIG"
"""The addresses of all workers; only distributed TensorFlow has it."""

ADDRESS_VARIABLES = frozenset(
    {
        *("MASTER_ADDR", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT", "NCCL_COMM_ID", "JAX_COORDINATOR_ADDRESS"),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    }
)
"""Variables with the address where the workers of a job meet."""

ADDRESS_FLAGS = frozenset(
    {
        *("--rdzv-endpoint", "--master-addr", "--main-process-ip", "--dist-init-addr", "--coordinator-address"),
        "--data-parallel-address",
    }
)
"""Flags of torchrun, accelerate, SGLang, JAX programs and vLLM with this address."""

_OWN_ADDRESSES = ("localhost", "127.0.0.1", "::1")

NODE_FLAGS = frozenset({"--nnodes", "--num-machines", "--num-nodes"})
"""Flags of torchrun, accelerate and others with the number of pods of a job; "1:8" for an elastic one."""

INDEX_FLAGS = frozenset({"--node-rank", "--machine-rank"})
"""Flags of the same programs with the number of this pod, from 0."""

PARALLEL_FLAGS = frozenset(
    {
        *("--tensor-parallel-size", "-tp", "--tp", "--tp-size"),
        *("--pipeline-parallel-size", "-pp", "--pp-size"),
        *("--data-parallel-size", "-dp", "--dp-size"),
    }
)
"""Flags of inference servers with the number of GPUs of one model or of its copies, at least one for each rank."""

LAUNCHERS = frozenset({"mpirun", "mpiexec", "horovodrun", "srun"})
"""Programs that start several ranks, as many as `LAUNCH_FLAGS` say."""

LAUNCH_FLAGS = frozenset({"-np", "-n", "--np", "--ntasks"})

SEVERAL = 2
"""Stands for a number that cannot be read."""

MAX_RANKS = 100_000
"""A larger number counts as unreadable."""

_PARTS = (
    *("nnodes", "-num", "parallel", "-tp", "-pp", "-dp", "rank", "mpi", "horovodrun", "srun", "ray "),
    *("rdzv", "master", "main", "-init", "coordinator"),
)
_SHELL_WORD = re.compile(r"[^\s;&|'\"()]+")
_LONGEST_COMMAND = 131_072
"""Characters: Linux starts no process with a longer argument."""


def stated_ranks(pod: Pod) -> list[tuple[str, int]]:
    """Return the numbers of ranks that variables and commands state, each with its text."""
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return [found for container in containers for found in _ranks_of_container(container)]


def states_one_pod(sign: str) -> bool:
    """Return whether a sign with the number 1 says that the pod is the only one of its job."""
    return sign.partition("=")[0] in RANK_VARIABLES | NODE_FLAGS


def _is_address(sign: str) -> bool:
    return sign.partition("=")[0] in ADDRESS_VARIABLES | ADDRESS_FLAGS


def _names_another_host(address: str) -> bool:
    """Return whether an address, with or without scheme and port, is or may be one outside the pod.

    >>> [_names_another_host(each) for each in ("tcp://train-0:29500", "[::1]:29500", "localhost", "")]
    [True, False, False, False]
    """
    host = address.rpartition("//")[2]
    return bool(host) and not host.removeprefix("[").startswith(_OWN_ADDRESSES)


def parse_ranks(text: str) -> int:
    """Return a number of ranks, the largest of a range such as "1:8"; `SEVERAL` if it cannot be read."""
    found = parse_count(text.rpartition(":")[2])
    return found if found is not None and 0 < found <= MAX_RANKS else SEVERAL


def _ranks_of_container(container: Container) -> Iterator[tuple[str, int]]:
    values: dict[str, str] = {}
    for env in container.env:
        value = expand_references(env.value, values)
        values[env.name] = value
        if env.name in RANK_VARIABLES:
            yield (f"{env.name}={value}", parse_ranks(value)) if env.value_from is None else (env.name, SEVERAL)
        elif env.name in ADDRESS_VARIABLES and (env.value_from is not None or _names_another_host(value)):
            yield f"{env.name}={value}", SEVERAL
        elif (env.name in INDEX_VARIABLES and value != "0") or env.name == CLUSTER_VARIABLE:
            yield env.name, SEVERAL
    if not (container.command or container.args):
        return
    command = list(_first_texts(container.command + container.args))
    text = " ".join(command)
    if any(part in text for part in _PARTS):
        yield from _ranks_in_command([expand_references(each, values) for each in command])


def _first_texts(command: Sequence[str]) -> Iterator[str]:
    """Return the arguments of a command up to `_LONGEST_COMMAND`."""
    left = _LONGEST_COMMAND
    for text in command:
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _ranks_in_command(command: Sequence[str]) -> Iterator[tuple[str, int]]:
    words = [word for text in command for word in _SHELL_WORD.findall(text) if word != "\\"]
    launcher = next((name for word in words if (name := word.rpartition("/")[2]) in LAUNCHERS), "")
    launched = 0
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, separator, value = word.partition("=")
        flag, value = name.replace("_", "-"), value if separator else following
        if flag in NODE_FLAGS or flag in PARALLEL_FLAGS:
            yield f"{flag}={value}", parse_ranks(value)
        elif (flag in INDEX_FLAGS and value != "0") or (flag in ADDRESS_FLAGS and _names_another_host(value)):
            yield f"{flag}={value}", SEVERAL
        elif launcher and not launched and flag in LAUNCH_FLAGS:
            launched = parse_ranks(value)
        elif flag == "--address" and "start" in words and any(one.rpartition("/")[2] == "ray" for one in words):
            yield "ray start --address", SEVERAL
    if launcher:
        yield launcher, launched or SEVERAL
