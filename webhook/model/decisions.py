"""The decision of one review, and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from webhook.model.annotations import GPU_MEMORY_ANNOTATION
from webhook.model.codes import RETRIED_CODES
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.field_paths import FieldPath, json_pointer
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.offers import GpuOffer
from webhook.model.pod_resources import ResourceAmounts
from webhook.model.pools import GpuWeight

PatchOperation = dict[str, Any]
"""One JSON Patch operation (RFC 6902), `patch_add` or `patch_replace`."""


_DECLARE_NEED = f"Declare the need in the annotation {GPU_MEMORY_ANNOTATION}."


class KeepReason(StrEnum):
    """Why a pod or claim keeps its GPU request: a stable word for scripts; a sentence and what to do for people."""

    sentence: str
    fix: str

    def __new__(cls, word: str, sentence: str, fix: str = "") -> KeepReason:
        """Make a member whose value is the word."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.sentence, member.fix = sentence, fix
        return member

    NO_RIGHT_SIZING_POLICY = (
        "NoRightSizingPolicy",
        "no policy right-sizes it",
        "For admins: add rightSizing to a policy that matches it.",
    )
    UPDATE = ("Update", "it can be right-sized only when it is created", "Create it again.")
    NO_GPU_REQUEST = ("NoGPURequest", "it requests no GPU")
    CLAIMED = ("ClaimedGPUs", "it requests its GPUs by claims, and only a claim may be right-sized, when it is created")
    UNKNOWN_CLAIM = ("UnknownClaim", "it is not known what its claims request", "Create them, or their templates.")
    REQUESTED_BY_CLASS = (
        "RequestedByDeviceClass",
        "it requests a whole GPU by the name of a device class, and only nvidia.com/gpu is right-sized",
        "Request the resource of a device class of smaller devices, or nvidia.com/gpu if nodes or a class serve it.",
    )
    NO_WHOLE_GPU = ("NoWholeGPU", "it requests no whole GPU")
    OPTED_OUT = (
        "OptedOut",
        "it opts out with rightslice.dev/keep",
        "To let Rightslice choose a smaller GPU, remove the annotation.",
    )
    NO_EVIDENCE = (
        "NoEvidence",
        "its GPU memory need is unknown",
        _DECLARE_NEED,
    )
    PREALLOCATES = (
        "Preallocates",
        "its framework allocates all available memory, so its usage does not show its need",
        _DECLARE_NEED,
    )
    SHORT_HISTORY = (
        "ShortHistory",
        "its usage history is too short",
        _DECLARE_NEED,
    )
    DEFAULT_TOO_SMALL = (
        "DefaultTooSmall",
        "the policy's default is below its observed usage",
        _DECLARE_NEED,
    )
    RISK_TOO_HIGH = (
        "RiskTooHigh",
        "no smaller GPU is safe enough for its observed usage",
        _DECLARE_NEED,
    )
    RECENT_FAILURE = ("RecentFailure", "it failed recently")
    MULTIPLE_GPUS = (
        "MultipleGPUs",
        "MIG instances and shares have no peer-to-peer access, so a request for several GPUs is kept",
    )
    GANG_MEMBER = (
        "GangMember",
        "the workers of one job must have equal GPUs that can reach each other, so all of them keep whole GPUs",
        'If the job has one worker, annotate its pod template with rightslice.dev/gang-size: "1".',
    )
    MIXED_RESOURCES = ("MixedResources", "it requests several GPU resources")
    DAEMON_SET = ("DaemonSetPod", "pods of a DaemonSet are never rewritten")
    MIRROR = ("StaticPod", "static pods are never rewritten")
    BOUND = ("NodeAssigned", "the pod already has a node")
    RESOURCE_CLAIMS = ("ResourceClaims", "the pod uses resource claims")
    NOT_ONE_DEVICE = (
        "NotOneDevice",
        "the claim has choices, requests all devices or is for administration",
        "Request one device with exactly, without allocationMode and adminAccess.",
    )
    ALREADY_SIZED = ("AlreadyRightSized", "the claim was right-sized when it was created")
    QUEUED = (
        "QueuedWorkload",
        "a queue charges what the template of its workload requests, and the policy does not change templates",
        "For admins: rightSizing.templates: enforce right-sizes the templates of workloads that are created from then "
        "on.",
    )
    ALREADY_CHARGED = (
        "AlreadyCharged",
        "a queue has charged its workload, and a template is right-sized only before that",
        "Create the workload again, or the one that owns it. kubectl apply prints a warning that says whether its "
        "template is right-sized.",
    )
    QUEUED_POD = (
        "QueuedPod",
        "a queue charges what the pod requests, and no template of it can be right-sized before the charge",
        "Request a slice instead of the whole GPU.",
    )
    CHARGED_AS_WHOLE = (
        "ChargedAsWholeGPUs",
        "its scheduler charges a MIG slice as one GPU for each compute slice, and the policy does not change pods in "
        "queues",
        "For admins: rightSizing.templates: enforce right-sizes it if one compute slice covers its need, which is "
        "charged the same.",
    )
    NO_EQUAL_CHARGE = (
        "NoEqualCharge",
        "its scheduler would charge every slice or share that covers the need differently from one GPU",
        "Declare a smaller need if that is enough. For admins: offer slices of one compute slice that cover it.",
    )
    SCHEDULER_SHARD = (
        "SchedulerShard",
        "its scheduler divides the nodes into shards, and which of them may run the pod is not checked",
        "If nodes of its shard have a slice of one compute slice, request that instead of the whole GPU.",
    )
    FRACTION_REQUESTED = (
        "FractionRequested",
        "an annotation requests a fraction of a GPU from its scheduler, which would charge a slice in addition",
        "Remove the annotation, or the GPU: KAI rejects pods with both. rightslice.dev/gpu-memory declares the need.",
    )
    QUEUE_NOT_FOUND = (
        "QueueNotFound",
        "its queue does not exist, so it is not known what the queue charges",
        "Create the queue, or name one that exists.",
    )
    WORKLOAD_EXISTS = (
        "WorkloadExists",
        "a queue charges it by a Workload that exists already",
        "Request a slice here and in that Workload.",
    )
    NOT_ADMITTED = (
        "NotAdmittedByQueue",
        "the queue of the workload does not cover the smaller request, or has too little quota for it",
        "For admins: cover the resource in the ClusterQueue (capability of a Queue of Volcano) with enough quota, or "
        "add a transformation: rightslice kueue config prints them.",
    )
    NO_FLAVOR_NODES = (
        "NoNodesOfFlavor",
        "a flavor that the queue may choose has too few nodes with such a slice or share for this pod",
        "For admins: give quota for slices only to flavors whose nodes have them. With rightSizing.whenFull: grow, "
        "nodes that groups may add count too.",
    )
    QUEUE_QUOTA_IN_USE = (
        "QueueQuotaInUse",
        "other workloads have reserved the queue's quota for such a slice, and with whole GPUs it can start now",
        "For admins: rightSizing.whenFull: wait lets the workload wait for a slice.",
    )
    RUNS_ELSEWHERE = (
        "RunsElsewhere",
        "its pods run on nodes that are not known when it is created, or in another cluster",
        "Request a slice in the template. For admins: a queue without this check can be right-sized.",
    )
    OTHER_POD_SET = (
        "OtherPodSetKept",
        "all templates of a workload are changed or none, and another one keeps its request",
        "Declare the other template's need, or move it to a separate workload.",
    )
    POD_UNKNOWN = (
        "PodUnknown",
        "some fields of its pods are unknown until they are created",
        "Check one of its pods. An InferenceService can be checked together with its ServingRuntime.",
    )
    SCHEDULING_GATED = (
        "SchedulingGated",
        "a scheduling gate delays the pod, so the current free capacity does not count",
    )
    INVALID_AMOUNT = (
        "InvalidAmount",
        "its GPU amount is not one whole number, equal in limits and requests",
        "Write one whole number; requests default to limits.",
    )
    INJECTED = ("InjectedByLimitRange", "a LimitRange injected these GPUs; the pod did not request them")
    UNMODELED_CONSTRAINT = (
        "UnmodeledConstraint",
        "it has a scheduling constraint that cannot be checked here, so it might wait for a slice",
        "To allow a wait, ask the admin for rightSizing.whenFull: wait.",
    )
    RECORD_TOO_LARGE = (
        "AnnotationsTooLarge",
        "its annotations leave no space for the decision record",
        "Shorten its annotations; the total limit is 256 KiB.",
    )
    NO_OFFER = (
        "NoOffer",
        "no slice or share in this cluster covers the need",
        "For admins: rightslice layout shows whether other MIG layouts or shares would cover it. "
        "If a node group without nodes has one, write rightSizing.whenFull: grow.",
    )
    NEED_TOO_LARGE = (
        "NeedTooLarge",
        "no GPU in this cluster covers the need, including whole cards",
        "Declare a need that one GPU of this cluster covers.",
    )
    SIZE_UNKNOWN = (
        "OfferSizeUnknown",
        "no allowed GPU is known to cover the need, and the memory of some GPUs is unknown",
        "For admins: label the nodes with nvidia.com/gpu.memory, as GPU feature discovery does.",
    )
    FORM_NOT_ALLOWED = (
        "FormNotAllowed",
        "the policy does not allow the form or isolation of the GPUs that cover the need",
        "Ask the admin to allow it in rightSizing.forms and rightSizing.isolation.",
    )
    SAVING_TOO_SMALL = ("SavingTooSmall", "the GPUs that cover the need save less than the policy requires")
    KUBERNETES_TOO_OLD = (
        "KubernetesTooOld",
        "Kubernetes is too old for the smaller request",
        "For admins: upgrade it. Choices in claims (firstAvailable) need 1.34; resources of device classes need 1.36 "
        "on the API server and the nodes.",
    )
    UNGUARDED_CLASS = (
        "UnguardedDeviceClass",
        "a selector of the device class that covers the need fails on some device, or would on one of another driver, "
        "which ends scheduling of the pod on all nodes",
        "For admins: write device.driver == 'gpu.nvidia.com' as the first selector of the class, and test whether a "
        "key exists before it is read.",
    )
    MIXED_CLASS = (
        "MixedDeviceClass",
        "MIG devices cover the need, but the device class that has them has others too, and a pod gets any of them",
        "For admins: create a device class for each MIG profile.",
    )
    DEVICE_PLUGIN_ON_NODES = (
        "DevicePluginOnNodes",
        "the nodes of the device class that covers the need also have a device plugin for GPUs",
        "For admins: publish the GPUs of a node in one way only; rightslice doctor names the nodes.",
    )
    NO_CLASS_FOR_POD = (
        "NoDeviceClassForPod",
        "only a device class covers the need, and only the default scheduler serves it, to one main container",
        "For admins: offer such slices through a device plugin too.",
    )
    SELECTORS = (
        "ExcludedBySelectors",
        "smaller devices cover the need, but a selector or capacity.requests of the request excludes them",
        "Remove the selector or the amount that excludes them.",
    )
    NO_DEVICE = (
        "NoDevice",
        "it is unknown which devices the request may get",
        "Correct the claim if another warning says what is wrong with it.",
    )
    CONSTRAINED_CLAIM = (
        "ConstrainedClaim",
        "the claim has constraints, configuration or too many selectors, so its request gets no choices",
    )
    OTHER_DRIVER = ("OtherDriver", "only claims for devices of NVIDIA's driver are right-sized")
    NOTHING_SMALLER = ("NothingSmaller", "it requests a part of a GPU, and no smaller one covers the need")
    QUEUE_WITHOUT_CHOICES = (
        "QueueWithoutChoices",
        "a queueing system in this namespace or cluster does not support choices in claims",
        "Request the device class of smaller devices itself, if there is one.",
    )
    KARPENTER = (
        "Karpenter",
        "Karpenter adds nodes to this cluster, and supports neither resources of device classes nor choices in claims",
        "For admins: offer such slices through a device plugin on nodes of Karpenter.",
    )
    AMBIGUOUS_NAME = (
        "AmbiguousResourceName",
        "the same resource name stands for other GPUs too, and no label distinguishes them",
        "For admins: give nodes with different GPUs different labels, as GPU feature discovery does.",
    )
    NO_FREE_CAPACITY = (
        "NoFreeCapacity",
        "no node that accepts this pod has a free slice or share that covers the need, and enough free CPU, memory and "
        "other resources",
        "For admins: rightSizing.whenFull: grow lets node groups grow for it, wait lets the pod wait.",
    )
    NO_GROWTH = (
        "NoGroupGrows",
        "no such slice or share is free, and no node group is known to add a node that offers one to this pod",
        "For admins: if a node group is named that cannot grow, raise its maximum or limit, or remove the cause. "
        "rightslice doctor lists what other groups lack. For taints of GPUs, write injection.tolerations: auto.",
    )
    STALE_VIEW = (
        "StaleClusterView",
        "the free capacity of the cluster is not known reliably",
        "Create it again later. For admins: /readyz?verbose shows which check fails.",
    )
    LIMIT_RANGE = (
        "RejectedByLimitRange",
        "a LimitRange would reject the smaller request",
        "Ask the admin to change the LimitRange.",
    )
    QUOTA_NOT_COVERING = (
        "NotCoveredByQuota",
        "a quota limits the current request more strictly than the smaller one",
        "Ask the admin for a quota that counts both, such as one on requests.rightslice.dev/gpu-milli.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "a quota has too little left for the smaller request",
        "Wait until pods that use the quota end, or ask for a higher quota.",
    )
    QUOTA_CHARGES_MORE = (
        "ChargedMoreByQuota",
        "a quota counts every device class that a claim lists, so a smaller device would be charged in addition",
        "Ask the admin for a quota that does not count the smaller class.",
    )
    LIMITS = (
        "RejectedByLimits",
        "a policy's limits would reject the smaller request",
        "Ask the admin to allow the smaller request in limits.",
    )
    NEW_POLICY = (
        "NewPolicyMatches",
        "another policy would match the smaller request",
        "Ask the admin to match both resources in that policy.",
    )
    SHARED_PROCESSES = (
        "SharedProcessNamespace",
        "its containers share a process namespace, which a policy denies on a shared GPU",
        "Remove shareProcessNamespace from the pod.",
    )
    DRIVER = (
        "DriverUnsuitable",
        "not every node with such a slice or share supports the CUDA version of its image, or of rightslice.dev/cuda",
        "Use an image with an older CUDA, or declare the version that it needs in rightslice.dev/cuda.",
    )
    GRAPHICS = (
        "GraphicsRequired",
        "it may need graphics or video (NVIDIA_DRIVER_CAPABILITIES), which a MIG instance may not have",
        "Set NVIDIA_DRIVER_CAPABILITIES to compute,utility.",
    )
    NO_MEMORY_LIMIT = (
        "NoMemoryLimit",
        "its framework takes a fraction of all the memory it sees, and a time-sliced share does not limit that",
        "Ask the admin to allow MIG slices or MPS in rightSizing.forms.",
    )
    MEMORY_FRACTION = (
        "MemoryFractionUnsuitable",
        "its framework would take less of the smaller GPU than the pod needs, or more than its limit",
    )
    ANTI_AFFINITY = (
        "ExcludedByAntiAffinity",
        "required anti-affinity, its own or that of other pods, excludes it now, or may exclude it soon, from every "
        "node with such a slice or share",
    )
    POD_AFFINITY = (
        "ExcludedByAffinity",
        "it has required affinity to pods that do not run near such a slice or share, or only to pods like itself",
    )
    TOPOLOGY_SPREAD = (
        "ExcludedByTopologySpread",
        "its topology spread constraints exclude it now, or may exclude it soon, from every node with such a slice or "
        "share",
    )
    HOST_PORT = (
        "HostPortInUse",
        "its host ports are in use, or may soon be, on every node with such a slice or share",
    )
    VOLUME_UNKNOWN = (
        "VolumeClaimUnknown",
        "a volume claim of the pod is not known well enough to choose a node",
        "Create the claim before the pod; if a StatefulSet has created it, delete the pod to have it created again. "
        "For admins: the webhook's /readyz?verbose shows what it cannot read.",
    )
    VOLUME_UNBOUND = (
        "VolumeClaimUnbound",
        "a volume claim is not bound, so it is unknown which nodes will reach its volume",
        "Create the pod again when the claim is bound, or use a StorageClass with WaitForFirstConsumer.",
    )
    VOLUME_IN_USE = (
        "VolumeClaimInUse",
        "another pod uses a claim that serves one pod at a time",
        "Create the pod again when the other has ended.",
    )
    VOLUME_SHARED = (
        "VolumeClaimShared",
        "a volume claim that other pods may use is bound where its first pod runs, and a smaller GPU may change that",
        "Create the pod again when the claim is bound, or give each pod a claim of its own.",
    )
    VOLUME_UNREACHABLE = (
        "VolumeUnreachable",
        "no node with such a slice or share can use its volumes, now or after other pods take theirs",
        "Ask the admin for such slices or shares on nodes that can use the volumes.",
    )
    UNREACHABLE = ("NoReachableNode", "no node with such a slice or share accepts this pod")


NO_OFFER_REASONS = frozenset(
    {
        KeepReason.NO_OFFER,
        KeepReason.KUBERNETES_TOO_OLD,
        KeepReason.KARPENTER,
        KeepReason.UNGUARDED_CLASS,
        KeepReason.MIXED_CLASS,
        KeepReason.DEVICE_PLUGIN_ON_NODES,
        KeepReason.NO_CLASS_FOR_POD,
    }
)
"""Reasons that nothing smaller is offered to a pod in this cluster, by a device plugin or by a device class."""

NEEDS_NODES = NO_OFFER_REASONS | frozenset(
    {
        KeepReason.NEED_TOO_LARGE,
        KeepReason.SIZE_UNKNOWN,
        KeepReason.FORM_NOT_ALLOWED,
        KeepReason.SAVING_TOO_SMALL,
        KeepReason.AMBIGUOUS_NAME,
        KeepReason.NO_FREE_CAPACITY,
        KeepReason.NO_GROWTH,
        KeepReason.ANTI_AFFINITY,
        KeepReason.POD_AFFINITY,
        KeepReason.TOPOLOGY_SPREAD,
        KeepReason.HOST_PORT,
        KeepReason.VOLUME_UNKNOWN,
        KeepReason.VOLUME_UNBOUND,
        KeepReason.VOLUME_IN_USE,
        KeepReason.VOLUME_SHARED,
        KeepReason.VOLUME_UNREACHABLE,
        KeepReason.UNREACHABLE,
    }
)
"""Reasons that depend on the nodes of a cluster."""


class KeepRequest(msgspec.Struct, frozen=True, gc=False):
    """The decision to keep a pod's GPU request; `detail` adds names and figures."""

    reason: KeepReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.sentence}: {self.detail}" if self.detail else self.reason.sentence


NO_RIGHT_SIZING = KeepRequest(KeepReason.NO_RIGHT_SIZING_POLICY)
NO_GPU_REQUEST = KeepRequest(KeepReason.NO_GPU_REQUEST)
CLAIMED = KeepRequest(KeepReason.CLAIMED)


class GpuNeed(msgspec.Struct, frozen=True, gc=False):
    """GPU memory and compute that one container needs, and the evidence.

    Attributes:
        memory_mib: MiB of GPU memory.
        compute_milli: Thousandths of one card's compute, or None if unknown.
        evidence: Source of `memory_mib`.
        words: The same for people, for example "8Gi declared".
    """

    memory_mib: int
    compute_milli: int | None
    evidence: EvidenceSource
    words: str


class FractionChange(NamedTuple):
    """A change of the fraction of GPU memory that a framework takes.

    Attributes:
        container: The name of its container.
        path: The text that is replaced, or the list of variables that one is added to.
        setting: The flag, variable or property, for example "--gpu-memory-utilization".
        after: The new number.
        prefix: The part of the text before the number.
        before: The number so far; "" if a variable is added.
    """

    container: str
    path: FieldPath
    setting: str
    after: str
    prefix: str = ""
    before: str = ""


class OfferChoice(msgspec.Struct, frozen=True, gc=False):
    """The offers chosen for every GPU container of a pod.

    Attributes:
        resource: Resource name to request instead.
        offers: All offers of that name that cover the need; the pod may get any of them.
        need: The largest need among the containers.
        policy: The policy that right-sizes.
        selected: Mask of the nodes considered, including policies' node requirements.
        fraction_changes: New memory fractions, for frameworks that take a fraction of the memory.
        group: The node group that grows by a node for the pod; "" if a node has the offer free.
    """

    resource: str
    offers: tuple[GpuOffer, ...]
    need: GpuNeed
    policy: str
    selected: int = -1
    fraction_changes: tuple[FractionChange, ...] = ()
    group: str = ""

    @property
    def gpu_milli(self) -> int:
        """Thousandths of a whole GPU that one unit takes, for the largest of the offers."""
        return max([offer.gpu_milli for offer in self.offers])


class PendingUnits(NamedTuple):
    """Units of one GPU resource that a pod will hold once it has a node, and the mask of the nodes that it may get."""

    resource: str
    nodes: int
    amount: int


class PendingUse(msgspec.Struct, frozen=True, gc=False):
    """GPU units that a pod will hold once it has a node, with CPU (millicores), memory (bytes) and other resources."""

    units: tuple[PendingUnits, ...] = ()
    cpu_milli: int = 0
    memory: int = 0
    others: ResourceAmounts = ()


NO_USE = PendingUse()


class ReplicaCounts(NamedTuple):
    """Numbers of the pods that a workload creates, as they are decided one after another.

    Attributes:
        right_sized: Those that get a smaller GPU.
        kept: Those that are admitted with the GPUs that they request.
        rejected: Those that policies deny or quotas reject.
    """

    right_sized: int = 0
    kept: int = 0
    rejected: int = 0


RIGHT_SIZED, AUDIT_MODE, DENIED = "RightSized", "AuditMode", "Denied"
"""Outcomes of right-sizing besides those of `KeepReason`: applied, or not because a policy is in audit or warn mode."""


class Decision(msgspec.Struct, frozen=True, gc=False):
    """The result of one review.

    Attributes:
        findings: Findings with their modes, without exempted ones, in the order of the steps.
        exempted: Findings that an exemption removed.
        patch: JSON Patch operations from the object to the changed one; empty if nothing changes.
        outcome: The choice that was applied (or would be, in audit mode), or why the request stays.
        applied: True if `outcome` is an `OfferChoice` and the patch applies it.
        needed_mib: GPU memory that the pod needs, in MiB; 0 if that is unknown.
        gpu_milli_before: Thousandths of a GPU that the object would hold unchanged, including GPUs injected by a
            LimitRange (one replica of a template).
        gpu_milli_after: The same after the patch.
        requested_units: Units that a pod requests without those that are removed, by resource name; not right-sized.
        policies: Names of the policies that apply.
        audit_policies: Those that only audit because the workload is outside their rollout.
        quota_charge: Weight of a new pod against shared quotas; () if no policy has one.
        shared_charges: The part of it for claims that other pods may use too, by name of the claim.
        pending_use: GPUs, CPU and memory that a new pod will hold, after the patch.
        involves_gpus: False if no request and no finding concerns GPUs.
        templates: For a workload with several pod templates: path, replicas and decision of each.
        pods: For a workload, or one template of several, whose pods use GPUs: how many get what.
    """

    findings: tuple[Finding, ...] = ()
    exempted: tuple[ExemptedFinding, ...] = ()
    patch: tuple[PatchOperation, ...] = ()
    outcome: OfferChoice | KeepRequest = NO_RIGHT_SIZING
    applied: bool = False
    needed_mib: int = 0
    gpu_milli_before: int = 0
    gpu_milli_after: int = 0
    requested_units: Mapping[str, int] = {}
    policies: tuple[str, ...] = ()
    audit_policies: tuple[str, ...] = ()
    quota_charge: GpuWeight = ()
    shared_charges: tuple[tuple[str, GpuWeight], ...] = ()
    pending_use: PendingUse = NO_USE
    involves_gpus: bool = False
    templates: tuple[tuple[str, int, Decision], ...] = ()
    pods: ReplicaCounts | None = None

    @property
    def may_involve_gpus(self) -> bool:
        """Whether the pod uses GPUs, or has claims of which that is not known."""
        is_unknown = isinstance(self.outcome, KeepRequest) and self.outcome.reason is KeepReason.UNKNOWN_CLAIM
        return self.involves_gpus or is_unknown

    @property
    def keep_reason(self) -> str:
        """The stable word for why the pod keeps its GPU request; "" if it requests none or an offer was chosen."""
        return self.outcome.reason.value if self.gpu_milli_before and isinstance(self.outcome, KeepRequest) else ""

    @property
    def right_sizing_outcome(self) -> str:
        """`RIGHT_SIZED`, `AUDIT_MODE`, or the word of the `KeepReason`."""
        if isinstance(self.outcome, KeepRequest):
            return self.outcome.reason.value
        return RIGHT_SIZED if self.applied else AUDIT_MODE

    @property
    def denials(self) -> tuple[Finding, ...]:
        """Findings that deny the request."""
        return tuple([found for found in self.findings if found.mode is PolicyMode.ENFORCE])

    @property
    def is_retried(self) -> bool:
        """True if the client shall send the request again soon: every denial ends by itself."""
        denials = self.denials
        return bool(denials) and all(found.code in RETRIED_CODES for found in denials)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that are returned as warnings."""
        return tuple([found for found in self.findings if found.mode is PolicyMode.WARN])


def patch_add(path: FieldPath, value: object) -> PatchOperation:
    """Return an operation that adds a member, or replaces an existing one."""
    return {"op": "add", "path": json_pointer(path), "value": value}


def patch_replace(path: FieldPath, value: object) -> PatchOperation:
    """Return an operation that replaces an existing member."""
    return {"op": "replace", "path": json_pointer(path), "value": value}
