"""A Pod as it is read here: only the fields that matter for GPUs.

Amounts stay as written (text, or a number in YAML): `quantity` parses them where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from webhook.errors import ReviewError, shorten_text
from webhook.model.api_struct import ApiStruct, describe_mismatch

NOT_A_POD = "object: is not a Pod: "

DEFAULT_NAMESPACE = "default"
"""The namespace of objects without one."""

QuantityText = str | int | float
"""A quantity as written: canonical text from an API server, text or a number from a file."""


class OwnerReference(ApiStruct, frozen=True):
    """An owner. Written by the object's creator, so never trusted."""

    kind: str = ""
    name: str = ""
    controller: bool = False
    api_version: str = ""
    uid: str = ""


class ObjectMeta(ApiStruct, frozen=True):
    """Object metadata.

    Attributes:
        deletion_timestamp: Set while the object is being deleted; only its presence counts.
    """

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    deletion_timestamp: Any = None


class ResourceRequirements(ApiStruct, frozen=True):
    """Requests and limits of a container or, in Kubernetes 1.34 and later, of a pod.

    Attributes:
        claims: The container's resource claims; only their presence counts, because a patch must keep them.
    """

    limits: dict[str, QuantityText] = {}
    requests: dict[str, QuantityText] = {}
    claims: tuple[Any, ...] = ()

    def amounts(self, side: str) -> dict[str, QuantityText]:
        """Return the limits ("limits") or the requests ("requests")."""
        return self.limits if side == "limits" else self.requests


class EnvVar(ApiStruct, frozen=True):
    """One environment variable."""

    name: str = ""
    value: str = ""
    value_from: dict[str, Any] | None = None


class EnvFromSource(ApiStruct, frozen=True):
    """A source of variables that admission cannot read."""

    prefix: str = ""


class Capabilities(ApiStruct, frozen=True):
    """Added Linux capabilities."""

    add: tuple[str, ...] = ()


class SecurityContext(ApiStruct, frozen=True):
    """Privileges of a container on its host."""

    privileged: bool = False
    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities = Capabilities()


class VolumeMount(ApiStruct, frozen=True):
    """A mount in a container."""

    mount_path: str = ""
    bind_mount_options: tuple[str, ...] = ()


class ContainerPort(ApiStruct, frozen=True):
    """A port of a container; a host port can be used once per node."""

    host_port: int = 0
    protocol: str = ""
    host_ip: str = field(default="", name="hostIP")


class ContainerRestartRule(ApiStruct, frozen=True):
    """The action for some exits of a container."""

    action: str = ""


class Container(ApiStruct, frozen=True):
    """A container of any kind: main, init, sidecar (init with restartPolicy Always), ephemeral."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    security_context: SecurityContext | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""
    restart_policy_rules: tuple[ContainerRestartRule, ...] = ()


class HostPathVolumeSource(ApiStruct, frozen=True):
    """A path of the host."""

    path: str = ""


class Volume(ApiStruct, frozen=True, omit_defaults=True):
    """A volume: a host path, a claim or a disk that may restrict the pod to some nodes. Other kinds are ignored.

    Absent kinds are left out of the key of the decision cache, which every review pays for.
    """

    host_path: HostPathVolumeSource | None = None
    persistent_volume_claim: dict[str, Any] | None = None
    ephemeral: dict[str, Any] | None = None
    aws_elastic_block_store: dict[str, Any] | None = None
    azure_disk: dict[str, Any] | None = None
    cinder: dict[str, Any] | None = None
    gce_persistent_disk: dict[str, Any] | None = None
    iscsi: dict[str, Any] | None = None
    portworx_volume: dict[str, Any] | None = None
    rbd: dict[str, Any] | None = None


class NamedVolume(Volume, frozen=True):
    """A volume of a stored pod, whose name is part of the name of its claim. Names differ between the pods of one set,
    so admission does not read them.
    """

    name: str = ""


class Toleration(ApiStruct, frozen=True, omit_defaults=True):
    """A toleration as the scheduler reads it."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """One expression of a node selector term."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the expression as a manifest has it."""
        expression: dict[str, Any] = {"key": self.key, "operator": self.operator}
        return {**expression, "values": list(self.values)} if self.values else expression


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Expressions that must all match. A term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(ApiStruct, frozen=True):
    """Terms; one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredSchedulingTerm(ApiStruct, frozen=True):
    """A preference with a weight of 1 to 100."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """Nodes on which a pod must or prefers to run."""

    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[PreferredSchedulingTerm, ...] = field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinity(ApiStruct, frozen=True):
    """Affinity between pods; its terms are not parsed."""

    required: tuple[Any, ...] = field(default=(), name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: tuple[Any, ...] = field(default=(), name="preferredDuringSchedulingIgnoredDuringExecution")


class Affinity(ApiStruct, frozen=True):
    """All affinity of a pod."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class PodLabelSelector(ApiStruct, frozen=True):
    """Labels that a pod or a namespace must have."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()

    def requirements(self) -> tuple[NodeSelectorRequirement, ...]:
        """Return all of it as expressions."""
        equal = [NodeSelectorRequirement(key, "In", (value,)) for key, value in sorted(self.match_labels.items())]
        return (*equal, *self.match_expressions)


class TopologySpreadConstraint(ApiStruct, frozen=True):
    """A topology spread constraint. Without a selector, it counts no pod."""

    topology_key: str = ""
    when_unsatisfiable: str = ""
    max_skew: int = 1
    label_selector: PodLabelSelector | None = None
    min_domains: int = 1
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class PodResourceClaim(ApiStruct, frozen=True):
    """A claim of a pod: an existing one by name, or one created from a template."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSchedulingGate(ApiStruct, frozen=True):
    """A gate that prevents scheduling until it is removed."""

    name: str = ""


class PodSpec(ApiStruct, frozen=True):
    """A pod's specification."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    runtime_class_name: str = ""
    host_pid: bool = field(default=False, name="hostPID")
    host_ipc: bool = field(default=False, name="hostIPC")
    host_users: bool | None = None
    host_network: bool = False
    share_process_namespace: bool = False
    node_name: str = ""
    resource_claims: tuple[PodResourceClaim, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    resources: ResourceRequirements | None = None
    overhead: dict[str, QuantityText] = {}
    priority_class_name: str = ""
    priority: int | None = None
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    scheduling_group: dict[str, Any] | None = None
    workload_ref: dict[str, Any] | None = None


class PodClaimStatus(ApiStruct, frozen=True):
    """The claim that was made for a pod from a template: the pod's name of it, and its own."""

    name: str = ""
    resource_claim_name: str = ""


class PodStatus(ApiStruct, frozen=True):
    """The part of a pod's status that shows whether it still holds its GPUs, or which node it will get."""

    phase: str = ""
    nominated_node_name: str = ""
    resource_claim_statuses: tuple[PodClaimStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A pod, or a workload's pod template read as one. Every pod from an API server has both parts."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def has_uid(self) -> bool:
        """True once the pod has its uid, which the API server sets after all mutating webhooks."""
        return bool(self.metadata.uid)


def parse_pod(data: object) -> Pod:
    """Parse a Pod from plain data; nulls count as absent, but a null amount is zero.

    Raises:
        ReviewError: the data is not a Pod; the message names the field.
    """
    try:
        data = without_nulls(with_zero_amounts(data))
        return msgspec.convert(data, Pod)
    except RecursionError as error:
        raise ReviewError("is nested too deeply", about=NOT_A_POD) from error
    except msgspec.ValidationError as error:
        path, sentence = describe_mismatch(str(error), data)
        raise ReviewError(shorten_text(sentence, 220), path, about=NOT_A_POD) from error


def with_zero_amounts(pod: Any) -> Any:
    """Return a pod with its null amounts as zero, which Kubernetes reads unlike all other nulls."""
    spec = pod.get("spec") if isinstance(pod, dict) else None
    if not isinstance(spec, dict):
        return pod
    holders = {
        key: [_with_zero_resources(each) for each in spec[key]]
        for key in ("containers", "initContainers")
        if isinstance(spec.get(key), list)
    }
    spec = _with_zero_resources({**spec, **holders})
    overhead = {"overhead": nulls_as_zero(spec["overhead"])} if isinstance(spec.get("overhead"), dict) else {}
    return {**pod, "spec": {**spec, **overhead}}


def _with_zero_resources(holder: Any) -> Any:
    resources = holder.get("resources") if isinstance(holder, dict) else None
    if not isinstance(resources, dict):
        return holder
    amounts = {
        side: nulls_as_zero(resources[side]) for side in ("limits", "requests") if isinstance(resources.get(side), dict)
    }
    return {**holder, "resources": {**resources, **amounts}}


def nulls_as_zero(amounts: dict[str, Any]) -> dict[str, Any]:
    """Return a map of amounts as the API server reads it: null is zero."""
    return {name: "0" if amount is None else amount for name, amount in amounts.items()}


def without_nulls(data: Any) -> Any:
    """Return the data without nulls: Kubernetes reads them as absent."""
    if isinstance(data, dict):
        return {key: without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [without_nulls(value) for value in data if value is not None]
    return data


def pod_key(pod: Pod) -> str:
    """Return "namespace/name" as node reports have it. Files omit "default"."""
    return f"{pod.metadata.namespace or DEFAULT_NAMESPACE}/{pod.metadata.name}"


def pod_uid(pod: Pod) -> str:
    """Return the pod's uid, or its name if it has none."""
    return pod.metadata.uid or pod_key(pod)


def required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """Return the terms of the required node affinity; None without one."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else None


def is_daemon_pod(pod: Pod) -> bool:
    """Return whether a DaemonSet owns a pod."""
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)


def pod_display_name(pod: Pod) -> str:
    """Return a name for messages, also before the API server has generated one."""
    metadata = pod.metadata
    return metadata.name or (f"{metadata.generate_name}*" if metadata.generate_name else "(no name)")


_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_LONGEST_VALUE = 16


def expand_references(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by the value of a variable, as the kubelet does; by `$NAME` if it is unknown or long.

    >>> expand_references("--nnodes=$(N) $(M)", {"N": "4"})
    '--nnodes=4 $M'
    """

    def value_of(found: re.Match[str]) -> str:
        value = values.get(found[1], "")
        return value if 0 < len(value) <= _LONGEST_VALUE else f"${found[1]}"

    return _REFERENCE.sub(value_of, text) if "$(" in text else text
