"""What one review came to."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.field_paths import FieldPath, json_pointer
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.offers import GpuOffer
from webhook.model.pools import GpuWeight

PatchOperation = dict[str, Any]
"""One JSON Patch operation (RFC 6902), `patch_add` or `patch_replace`."""


class KeepReason(StrEnum):
    """Why a request for GPUs stays as it is. The value is the sentence people read."""

    NOT_ASKED = "no policy right-sizes this pod"
    NO_GPU = "it asks for no whole GPU"
    OPTED_OUT = "the pod opts out with rightslice.dev/keep"
    NO_EVIDENCE = "nothing says how much GPU memory it needs"
    PREALLOCATES = "its framework takes what it sees, so its use says nothing of its need"
    SHORT_HISTORY = "its history is too short to size it by"
    DEFAULT_TOO_SMALL = "the policy's default is too little by what was seen of it"
    RISK = "no smaller GPU would be safe enough by what was seen of it"
    BLOCKED = "it was in trouble a short while ago"
    SEVERAL_GPUS = "MIG instances and shares have no peer-to-peer access, so several GPUs stay whole"
    MIXED = "it asks for GPUs of several kinds"
    DAEMON_SET = "pods of a DaemonSet are never rewritten"
    MIRROR = "a static pod is never rewritten"
    BOUND = "the pod already has a node"
    CLAIMS = "the pod uses resource claims"
    QUEUED = "a queueing system budgets this pod by its template"
    GATED = "a scheduling gate holds this pod back, so what is free now says nothing of when it starts"
    UNSURE_AMOUNT = "its GPU amount is not one whole number, alike in limits and requests"
    INJECTED = "a LimitRange put these GPUs in, the pod did not ask for them"
    UNMODELLED_CONSTRAINT = "what ties it to certain nodes is not all known here, so it might wait for a slice"
    NO_ROOM = "its annotations are so large that the record of a change would not fit beside them"
    NO_OFFER = "no slice or share in this cluster covers the need"
    TOO_LARGE = "no GPU in this cluster covers the need, whole cards included"
    SIZE_UNKNOWN = "nothing that could be given is known to cover the need, and the memory of some GPUs is not known"
    FORM = "what covers the need is of a form, or keeps neighbours less apart, than the policy gives"
    SMALL_SAVING = "what covers the need saves less than the policy asks"
    AMBIGUOUS = "the same resource name stands for other GPUs too, and no label tells them apart"
    FULL = "no slice or share that covers the need is free now"
    NOT_CURRENT = "what is free in the cluster is not known well enough"
    LIMIT_RANGE = "a LimitRange would refuse the smaller request"
    QUOTA = "a quota covers the GPUs asked for, but not the smaller request as strictly"
    QUOTA_FULL = "a quota has no room for the smaller request"
    LIMITS = "a policy's limits would refuse the smaller request"
    NEW_POLICY = "the smaller request would bring in another policy"
    PROCESSES = "its containers share their processes, which a policy refuses on a share of a GPU"
    DRIVER = "its image, by what it or rightslice.dev/cuda says, may not run on every node with such a slice or share"
    GRAPHICS = "a MIG instance may lack the graphics or video that it may ask for (NVIDIA_DRIVER_CAPABILITIES)"
    UNREACHABLE = "no node with such a slice or share would take this pod"


NEEDS_NODES = frozenset(
    {
        KeepReason.TOO_LARGE,
        KeepReason.SIZE_UNKNOWN,
        KeepReason.NO_OFFER,
        KeepReason.FORM,
        KeepReason.SMALL_SAVING,
        KeepReason.AMBIGUOUS,
        KeepReason.FULL,
        KeepReason.UNREACHABLE,
    }
)
"""Reasons against a smaller request that only the nodes of a cluster can give."""


class KeepRequest(msgspec.Struct, frozen=True, gc=False):
    """The request for GPUs stays, and why; `detail` adds names and figures."""

    reason: KeepReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


class GpuNeed(msgspec.Struct, frozen=True, gc=False):
    """What one container needs of a GPU, and on what evidence.

    Attributes:
        memory_mib: MiB of GPU memory.
        compute_milli: Thousandths of one card's compute, or None where nothing is known.
        evidence: Where `parse_memory_mib` comes from.
        words: The same for people, for example "8Gi declared".
    """

    memory_mib: int
    compute_milli: int | None
    evidence: EvidenceSource
    words: str


class OfferChoice(msgspec.Struct, frozen=True, gc=False):
    """The offers chosen for every GPU container of a pod.

    Attributes:
        resource: The resource name to ask for instead.
        offers: All offers of that name that cover the need; the pod may land on any of them.
        need: The largest need among the containers.
        policy: The policy that asked for it.
        selected: Mask of the nodes that it was chosen among: what policies require of nodes counted.
    """

    resource: str
    offers: tuple[GpuOffer, ...]
    need: GpuNeed
    policy: str
    selected: int = -1

    @property
    def gpu_milli(self) -> int:
        """Thousandths of a whole GPU that one unit takes, on the dearest of the offers."""
        return max(offer.gpu_milli for offer in self.offers)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Everything one review came to.

    Attributes:
        findings: What was found, settled by mode, exempted ones taken out, in the order of the steps.
        exempted: Findings that an exemption took back.
        patch: JSON Patch operations from the object to its shape; empty where nothing changes.
        outcome: The fit that was carried out (or would be, on trial), or why the request stays.
        applied: True if `outcome` is a `OfferChoice` and the patch carries it out.
        gpu_milli_before: Thousandths of a GPU that the object would hold without us, those among them that a LimitRange
            has put in (one replica of a template).
        gpu_milli_after: The same for the shape: right-sized, and without those that are taken out again.
        left: Units that a pod asks for without those that are taken out, by resource name; not right-sized.
        policies: Names of the policies that spoke.
        outside: Those of them that are on trial, because the workload is not in the share of their rollout.
        weight: What a new pod weighs against quotas that namespaces share; () where no policy has one.
        touches_gpus: False if neither a request nor a finding has to do with GPUs.
    """

    findings: tuple[Finding, ...] = ()
    exempted: tuple[ExemptedFinding, ...] = ()
    patch: tuple[PatchOperation, ...] = ()
    outcome: OfferChoice | KeepRequest = KeepRequest(KeepReason.NOT_ASKED)
    applied: bool = False
    gpu_milli_before: int = 0
    gpu_milli_after: int = 0
    remaining_units: Mapping[str, int] = {}
    policies: tuple[str, ...] = ()
    audit_policies: tuple[str, ...] = ()
    weight: GpuWeight = ()
    involves_gpus: bool = False

    @property
    def denials(self) -> tuple[Finding, ...]:
        """Every reason to say no."""
        return tuple(found for found in self.findings if found.mode is PolicyMode.ENFORCE)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What the user is told, and is not held to."""
        return tuple(found for found in self.findings if found.mode is PolicyMode.WARN)


def patch_add(path: FieldPath, value: object) -> PatchOperation:
    """An operation that adds a member, or replaces one that is there."""
    return {"op": "add", "path": json_pointer(path), "value": value}


def patch_replace(path: FieldPath, value: object) -> PatchOperation:
    """An operation that replaces a member that is there for sure."""
    return {"op": "replace", "path": json_pointer(path), "value": value}
