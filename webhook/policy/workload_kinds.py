"""The table of kinds of workloads: the fields with their pods, and with the numbers of pods that they create.

A policy adds kinds under `spec.match.templates`. Most kinds have pod templates. For a kind without one, `fields` says
which fields of the kind are which fields of its pods. Argo's own templates and KServe's predictors are read where
their paths lead.

Sources: the API types of Kubernetes, Kubeflow (training operator, trainer, MPI operator v1alpha1, notebooks, Spark
operator), KubeRay, LeaderWorkerSet, JobSet, Argo, KServe (v1alpha1 to v1beta1), Knative, Volcano, NVIDIA's NIM
operator, Dynamo (v1alpha1, v1beta1) and Grove, AppWrapper, RBG (v1alpha1, v1alpha2), AIBrix, and vLLM production-stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from webhook.model.field_paths import FieldPath

TemplatePath = tuple[str, ...]
"""Keys from the object's root to a pod template; "*" matches every member of a list or map."""

WorkloadKind = tuple[str, str]
"""API group and kind."""

COUNT_KEYS: tuple[TemplatePath, ...] = (("replicas",), ("numOfHosts",))
"""Keys of pod counts of most kinds; `parallelism` and `completions` always count."""

LEAST_UNDER_LOAD: tuple[TemplatePath, ...] = (
    ("minReplicas",),
    ("metadata", "annotations", "autoscaling.knative.dev/min-scale"),
)
"""Keys of the fewest pods of workloads that scale to zero without load; an annotation is text."""


class PodSource(NamedTuple):
    """A place where a kind describes some of its pods.

    Attributes:
        path: A pod template, pod spec or container; with `fields`, the map that they are in.
        fields: Field of the pod, and the field of the map that holds it, in the order in which they are set. A step
            "=a.b" of the pod's field is the value of a.b, or nvidia.com/gpu without one.
        counts: Keys of numbers of pods, in any map on the way to the pods: they are multiplied. False is zero; of
            `LEAST_UNDER_LOAD` zero is one, because such a workload runs pods under load.
        group_size: The key among them whose number of pods run together, as one gang.
        ranks: Keys of a number of ranks and of how many share a pod, if a gang's size may be written so (KServe).
        leader: Key next to the path of another template, for one pod of each gang.
        scaling_groups: Key of a list of groups that multiply the members they name (Grove).
        unknown_parts: Its controller decides what is not in the object, for example image or arguments.
        embedded: The path leads to objects of any kind.
        least: Key beside `replicas` of the fewest pods, which replaces a smaller number (Ray).
    """

    path: TemplatePath
    fields: tuple[tuple[FieldPath, TemplatePath], ...] = ()
    counts: tuple[TemplatePath, ...] = COUNT_KEYS
    group_size: TemplatePath = ()
    ranks: tuple[TemplatePath, ...] = ()
    leader: str = ""
    scaling_groups: str = ""
    unknown_parts: bool = False
    embedded: bool = False
    least: TemplatePath = ()


class WorkloadTemplates(NamedTuple):
    """The pods of one kind of workload.

    Attributes:
        sources: Each place that describes pods.
        label: The label that the controller sets on all pods of one workload; "" if unknown.
        annotation: An annotation that it sets on each pod.
        group_label: The label that it sets on the pods of one gang.
        unread: Fields that give its pods GPUs in a way that is not read.
        queued: True if Kueue or Volcano charges its templates when it is created: they may be changed until then.
    """

    sources: tuple[PodSource, ...]
    label: str = ""
    annotation: str = ""
    group_label: str = ""
    unread: tuple[TemplatePath, ...] = ()
    queued: bool = False


WorkloadKinds = Mapping[WorkloadKind, WorkloadTemplates]


def split_keys(text: str) -> TemplatePath:
    """Return the keys of a path such as "spec.roles.*.template"; brackets quote a key with dots.

    >>> split_keys("limits[nvidia.com/gpu]")
    ('limits', 'nvidia.com/gpu')
    """
    keys: list[str] = []
    for part in text.replace("[", "\0[").split("\0"):
        key, _, rest = part[1:].partition("]") if part.startswith("[") else ("", "", part)
        keys += [*([key] if key else []), *(step for step in rest.split(".") if step)]
    return tuple(keys)


def pod_field(text: str) -> FieldPath:
    """Return the path of a pod's field; a number is an index."""
    return tuple(int(key) if key.isdecimal() else key for key in split_keys(text))


def with_sources(
    known: WorkloadTemplates | None, paths: Iterable[str], counts: Iterable[str], fields: Mapping[str, str]
) -> WorkloadTemplates:
    """Return a kind with more paths; a path that it already has gets the counts and the fields that are given.

    Args:
        known: The kind as known so far.
        paths: Paths as written in a policy, for example "spec.roles.*.template".
        counts: Keys of numbers of pods; the usual ones without any.
        fields: Fields of the pod, and the keys that hold them.
    """
    templates = known or WorkloadTemplates(())
    sources = {source.path: source for source in templates.sources}
    own_counts, own_fields = tuple(map(split_keys, counts)), _fields(fields)
    for path in map(split_keys, paths):
        source = sources.get(path) or PodSource(path)
        sources[path] = source._replace(fields=own_fields or source.fields, counts=own_counts or source.counts)
    return templates._replace(sources=tuple(sources.values()))


def _source(path: str, *, counts: str = "", group_size: str = "", **options: Any) -> PodSource:
    """Return a source whose paths are written with dots; `counts` and `group_size` join the usual counts."""
    joined = (*COUNT_KEYS, *map(split_keys, counts.split()))
    return PodSource(split_keys(path), counts=joined, group_size=split_keys(group_size), **options)


def _fields(texts: Mapping[str, str]) -> tuple[tuple[FieldPath, TemplatePath], ...]:
    return tuple((pod_field(target), split_keys(field)) for target, field in texts.items())


def _templates(*paths: str, **options: Any) -> WorkloadTemplates:
    return WorkloadTemplates(tuple(map(_source, paths)), **options)


def _prefixed(prefix: str, paths: Iterable[str], label: str = "", *, queued: bool = False) -> WorkloadTemplates:
    return _templates(*(f"{prefix}.{path}" for path in paths), label=label, queued=queued)


_MAIN, _LIMITS = "spec.containers.0", "spec.containers.0.resources.limits"
_REQUESTS = "spec.containers.0.resources.requests"
_CONTAINER = {f"{_MAIN}.{name}": name for name in ("command", "args", "env")}
_SCHEDULING = {f"spec.{name}": name for name in ("nodeSelector", "tolerations", "schedulerName")}
_METADATA = {f"metadata.{name}": name for name in ("annotations", "labels")}

_NIM_FIELDS = _fields(
    _CONTAINER
    | _SCHEDULING
    | _METADATA
    | {f"{_MAIN}.image": "image.repository", f"{_MAIN}.resources": "resources"}
    | {"spec.runtimeClassName": "runtimeClassName"}
)
_SPARK_FIELDS = _fields(
    {"metadata": "template.metadata", "spec": "template.spec", f"{_MAIN}.env": "env", "spec.affinity": "affinity"}
    | _SCHEDULING
    | _METADATA
    | {"spec.hostNetwork": "hostNetwork", f"{_LIMITS}[=gpu.name]": "gpu.quantity"}
)
_DYNAMO_FIELDS = _fields(
    {"metadata": "extraPodMetadata", "spec": "extraPodSpec", _MAIN: "extraPodSpec.mainContainer"}
    | {f"{_MAIN}.env": "envs", _LIMITS: "resources.limits.custom", _REQUESTS: "resources.requests.custom"}
    | {f"{_LIMITS}.{name}": f"resources.limits.{name}" for name in ("cpu", "memory")}
    | {f"{_REQUESTS}.{name}": f"resources.requests.{name}" for name in ("cpu", "memory")}
    | {f"{_LIMITS}[=resources.limits.gpuType]": "resources.limits.gpu"}
    | {f"{_REQUESTS}[=resources.requests.gpuType]": "resources.requests.gpu"}
)
_VLLM_FIELDS = _fields(
    {f"{_REQUESTS}.{name}": f"resources.{name}" for name in ("cpu", "memory")}
    | {f"{_LIMITS}[=resources.gpuType]": "resources.gpu"}
    | {f"{_MAIN}.image": "image.name", "spec.tolerations": "toleration"}
)
_RUNTIME_FIELDS = _fields({"spec": ""} | _METADATA)
_TRAINER_FIELDS = _fields(_CONTAINER | {f"{_MAIN}.image": "image", f"{_MAIN}.resources": "resourcesPerNode"})

_RAY_CLUSTER = ("headGroupSpec.template", "workerGroupSpecs.*.template")
_RAY_LABEL, _TRAINING_LABEL = "ray.io/cluster", "training.kubeflow.org/job-name"
_JOBSET_LABEL, _GROVE_LABEL = "jobset.sigs.k8s.io/jobset-name", "grove.io/podgang"
_LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-key"
_REPLICATED_JOBS = "replicatedJobs.*.template.spec.template"


def _replica_specs(key: str) -> WorkloadTemplates:
    return _templates(f"spec.{key}.*.template", label=_TRAINING_LABEL, queued=True)


def _ray_pods(prefix: str, *others: str, queued: bool = False) -> WorkloadTemplates:
    paths = (*(f"{prefix}.{path}" for path in _RAY_CLUSTER), *others)
    sources = tuple(_source(path, least=("minReplicas",)) for path in paths)
    return WorkloadTemplates(sources, label=_RAY_LABEL, queued=queued)


def _spark_pods(prefix: str) -> WorkloadTemplates:
    driver = _source(f"{prefix}.driver", fields=_SPARK_FIELDS, unknown_parts=True)
    executor = _source(f"{prefix}.executor", counts="instances", fields=_SPARK_FIELDS, unknown_parts=True)
    return WorkloadTemplates((driver, executor))


def _nim_pods(path: str, counts: str = "") -> WorkloadTemplates:
    source = _source(path, counts=f"multiNode.size {counts}", group_size="multiNode.size", fields=_NIM_FIELDS)
    cache = (*split_keys(path), "storage", "nimCache")
    return WorkloadTemplates((source,), group_label=_LWS_GROUP, unread=(cache,))


def _llm_pods(prefix: str, replicas: str) -> tuple[PodSource, PodSource]:
    """Return the main pods and the workers of a workload of KServe's LLMInferenceService."""
    main = PodSource(split_keys(f"{prefix}.template"), counts=(split_keys(replicas),), unknown_parts=True)
    size, *ranks = (("parallelism", key) for key in ("pipeline", "data", "dataLocal"))
    counts = (*main.counts, size)
    worker = PodSource(split_keys(f"{prefix}.worker"), (), counts, size, tuple(ranks), "template", unknown_parts=True)
    return main, worker


def _role_pods(prefix: str) -> tuple[PodSource, ...]:
    """Return the sources of the roles of a RoleBasedGroup."""
    sized = ("leaderWorkerPattern.template", "customComponentsPattern.components.*.template", "components.*.template")
    return (
        _source(f"{prefix}.template", counts="leaderWorkerSet.size", group_size="leaderWorkerSet.size"),
        _source(f"{prefix}.standalonePattern.template"),
        *(_source(f"{prefix}.{path}", counts="size", group_size="size") for path in sized),
    )


_NOTEBOOK_FIELDS = _fields(
    {name: name for name in ("metadata.annotations", "metadata.labels")} | {"spec": "spec.template.spec"}
)
"""A Notebook's template has no metadata: its controller copies the Notebook's (notebook_controller.go)."""

_TEMPLATE = _templates("spec.template")
_SERVING_RUNTIME = WorkloadTemplates(
    (
        _source("spec", fields=_RUNTIME_FIELDS, unknown_parts=True),
        _source("spec.workerSpec", fields=_RUNTIME_FIELDS, unknown_parts=True),
    )
)
_LLM_SERVICE = WorkloadTemplates((*_llm_pods("spec", "replicas"), *_llm_pods("spec.prefill", "prefill.replicas")))
_STAGES = "pipelineParallelSize"
"""The number of pods of a predictor with workers, one of which is the predictor's own."""

_STORM_ROLES = "roles.*.template"

WORKLOAD_KINDS: WorkloadKinds = {
    ("apps", "Deployment"): _templates("spec.template", label="pod-template-hash", queued=True),
    ("apps", "StatefulSet"): _templates("spec.template", label="controller-revision-hash", queued=True),
    ("apps", "DaemonSet"): _templates("spec.template", label="controller-revision-hash"),
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("", "ReplicationController"): _TEMPLATE,
    ("", "PodTemplate"): _templates("template"),
    ("batch", "Job"): _templates("spec.template", label="batch.kubernetes.io/job-name", queued=True),
    ("batch", "CronJob"): _templates("spec.jobTemplate.spec.template", label="batch.kubernetes.io/job-name"),
    ("batch.volcano.sh", "Job"): _templates(
        "spec.tasks.*.template", annotation="scheduling.k8s.io/group-name", queued=True
    ),
    ("jobset.x-k8s.io", "JobSet"): _prefixed("spec", [_REPLICATED_JOBS], _JOBSET_LABEL, queued=True),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): WorkloadTemplates(
        (
            _source("spec.leaderWorkerTemplate.leaderTemplate", group_size="size"),
            _source(
                "spec.leaderWorkerTemplate.workerTemplate", counts="size", group_size="size", leader="leaderTemplate"
            ),
        ),
        label="leaderworkerset.sigs.k8s.io/name",
        group_label=_LWS_GROUP,
        queued=True,
    ),
    ("ray.io", "RayCluster"): _ray_pods("spec", queued=True),
    ("ray.io", "RayJob"): _ray_pods("spec.rayClusterSpec", "spec.submitterPodTemplate", queued=True),
    ("ray.io", "RayService"): _ray_pods("spec.rayClusterConfig"),
    ("kubeflow.org", "PyTorchJob"): _replica_specs("pytorchReplicaSpecs"),
    ("kubeflow.org", "TFJob"): _replica_specs("tfReplicaSpecs"),
    ("kubeflow.org", "XGBoostJob"): _replica_specs("xgbReplicaSpecs"),
    ("kubeflow.org", "PaddleJob"): _replica_specs("paddleReplicaSpecs"),
    ("kubeflow.org", "JAXJob"): _replica_specs("jaxReplicaSpecs"),
    ("kubeflow.org", "MPIJob"): _templates(
        "spec.mpiReplicaSpecs.*.template",
        "spec.template",
        label=_TRAINING_LABEL,
        unread=(("spec", "gpus"), ("spec", "processingUnits")),
        queued=True,
    ),
    ("kubeflow.org", "Notebook"): WorkloadTemplates((PodSource((), _NOTEBOOK_FIELDS),)),
    ("trainer.kubeflow.org", "TrainJob"): WorkloadTemplates(
        (_source("spec.trainer", counts="numNodes", fields=_TRAINER_FIELDS, unknown_parts=True),),
        label=_JOBSET_LABEL,
        unread=(("spec", "runtimeRef"),),
        queued=True,
    ),
    ("trainer.kubeflow.org", "TrainingRuntime"): _prefixed("spec.template.spec", [_REPLICATED_JOBS], _JOBSET_LABEL),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): _prefixed(
        "spec.template.spec", [_REPLICATED_JOBS], _JOBSET_LABEL
    ),
    ("argoproj.io", "Workflow"): _templates("spec.templates.*"),
    ("argoproj.io", "WorkflowTemplate"): _templates("spec.templates.*"),
    ("argoproj.io", "ClusterWorkflowTemplate"): _templates("spec.templates.*"),
    ("argoproj.io", "CronWorkflow"): _templates("spec.workflowSpec.templates.*"),
    ("argoproj.io", "Rollout"): _TEMPLATE,
    ("serving.knative.dev", "Service"): WorkloadTemplates(
        (PodSource(("spec", "template"), counts=(LEAST_UNDER_LOAD[1],)),)
    ),
    ("serving.kserve.io", "InferenceService"): WorkloadTemplates(
        (
            *(
                _source(f"spec.{path}", counts="minReplicas")
                for path in (
                    "predictor",
                    "transformer",
                    *(f"{of}.{part}" for of in ("default", "canary") for part in ("predictor", "transformer")),
                )
            ),
            _source("spec.predictor.workerSpec", counts=f"minReplicas {_STAGES}", group_size=_STAGES, leader=_STAGES),
        ),
        unread=(("spec", "predictor", "model", "runtime"),),
    ),
    ("serving.kserve.io", "ServingRuntime"): _SERVING_RUNTIME,
    ("serving.kserve.io", "ClusterServingRuntime"): _SERVING_RUNTIME,
    ("serving.kserve.io", "LLMInferenceService"): _LLM_SERVICE._replace(unread=(("spec", "baseRefs"),)),
    ("serving.kserve.io", "LLMInferenceServiceConfig"): _LLM_SERVICE,
    ("apps.nvidia.com", "NIMService"): _nim_pods("spec"),
    ("apps.nvidia.com", "NIMPipeline"): _nim_pods("spec.services.*.spec", "enabled"),
    ("nvidia.com", "DynamoGraphDeployment"): WorkloadTemplates(
        (
            _source("spec.services.*", counts="multinode.nodeCount", fields=_DYNAMO_FIELDS, unknown_parts=True),
            _source("spec.components.*.podTemplate", counts="multinode.nodeCount", unknown_parts=True),
        )
    ),
    ("nvidia.com", "DynamoComponentDeployment"): WorkloadTemplates(
        (
            _source("spec", counts="multinode.nodeCount", fields=_DYNAMO_FIELDS, unknown_parts=True),
            _source("spec.podTemplate", counts="multinode.nodeCount", unknown_parts=True),
        )
    ),
    ("grove.io", "PodCliqueSet"): WorkloadTemplates(
        (_source("spec.template.cliques.*.spec.podSpec", scaling_groups="podCliqueScalingGroups"),), label=_GROVE_LABEL
    ),
    ("sparkoperator.k8s.io", "SparkApplication"): _spark_pods("spec"),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): _spark_pods("spec.template"),
    ("workload.codeflare.dev", "AppWrapper"): WorkloadTemplates(
        (PodSource(("spec", "components", "*", "template"), embedded=True),), queued=True
    ),
    ("workloads.x-k8s.io", "RoleBasedGroup"): WorkloadTemplates(_role_pods("spec.roles.*"), group_label=_LWS_GROUP),
    ("orchestration.aibrix.ai", "StormService"): WorkloadTemplates(
        (_source(f"spec.template.spec.{_STORM_ROLES}", counts="podGroupSize", group_size="podGroupSize"),),
        group_label=_LWS_GROUP,
    ),
    ("orchestration.aibrix.ai", "RoleSet"): WorkloadTemplates(
        (_source(f"spec.{_STORM_ROLES}", counts="podGroupSize", group_size="podGroupSize"),), group_label=_LWS_GROUP
    ),
    ("orchestration.aibrix.ai", "RayClusterFleet"): _ray_pods("spec.template.spec"),
    ("production-stack.vllm.ai", "VLLMRuntime"): WorkloadTemplates(
        (_source("spec.deploymentConfig", fields=_VLLM_FIELDS, unknown_parts=True),)
    ),
}
"""Every kind that is known without a policy."""

CHARGED_KINDS: frozenset[WorkloadKind] = frozenset(
    {("batch", "CronJob")}
    | {kind for kind, templates in WORKLOAD_KINDS.items() if templates.queued and not templates.sources[0].fields}
)
"""Kinds whose templates a queueing system charges, and which may be changed before; a CronJob by its Jobs."""

GROUPS_BY_KIND = {kind: group for group, kind in reversed(tuple(WORKLOAD_KINDS))}
"""The API group of each kind; of several the first one, which is Kubernetes' own."""

POD_OBJECT = WorkloadTemplates((PodSource(()),))
"""A Pod as part of another object."""

_KUBERNETES_GROUPS = (
    "admissionregistration apiextensions apiregistration authentication authorization autoscaling certificates"
    " coordination discovery events flowcontrol.apiserver gateway.networking internal.apiserver metrics networking node"
    " rbac.authorization resource scheduling snapshot.storage storage storagemigration"
)
PODLESS_GROUPS = frozenset(
    {"", "apps", "batch", "autoscaling", "policy"}
    | {f"{name}.k8s.io" for name in _KUBERNETES_GROUPS.split()}
    | {"rightslice.dev", "kueue.x-k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh", "scheduling.run.ai"}
    | {"karpenter.sh", "karpenter.k8s.aws", "karpenter.azure.com", "nfd.k8s-sigs.io", "cert-manager.io"}
    | {"kyverno.io", "templates.gatekeeper.sh", "constraints.gatekeeper.sh", "monitoring.coreos.com"}
)
"""API groups whose other kinds run no pods, although some name GPUs: quotas, queues, node pools, policies, rules."""
