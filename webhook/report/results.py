"""What a run over files came to: the values that every report is written from.

`audit` makes them, and the modules of this room write them down: one module a format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from webhook.errors import SourceLocation
from webhook.model.decisions import Decision
from webhook.model.enums import PolicyMode
from webhook.model.findings import ExemptedFinding, Finding


class CheckVerdict(StrEnum):
    """What became of one object. The value is the word of the JSON report."""

    DENIED = "denied"
    WARNED = "warned"
    ALLOWED = "allowed"
    NO_GPU = "no-gpu"
    SKIPPED = "skipped"


class LocatedFinding(msgspec.Struct, frozen=True):
    """A finding, the place of its field in the file, and the place of the policy section that speaks."""

    finding: Finding
    place: SourceLocation
    policy_place: SourceLocation | None = None


class UnevaluatedReason(StrEnum):
    """Why no hook saw a pod. The value is the words of the report."""

    STATIC = "static pods: the kubelet runs them by manifests on their nodes, and asks no webhook: change them there"
    EXCLUDED = "in namespaces that the hooks leave out"
    UNRECORDED = "without a record of Rightslice: created while no hook answered, or before the policy was there"


class ContainerUsage(msgspec.Struct, frozen=True, gc=False):
    """What one container asks for of GPUs, and what its workload was seen to use.

    Attributes:
        resource: The resource name asked for.
        count: Units asked for.
        memory_mib: Peak GPU memory in MiB; None where nothing was seen.
        compute_milli: 95th percentile of compute, thousandths of the card; None where it is not known.
        samples: How many samples stand behind both.
        preallocates: True if the framework takes the memory that it sees, so that it tells nothing of the need.
        idle: True if no engine of its GPU was seen to be active.
        risk_ppm: Pod-hours in a million that would need more than what observed use advises; None without such advice.
    """

    container: str
    resource: str
    count: int
    memory_mib: int | None = None
    compute_milli: int | None = None
    samples: int = 0
    preallocates: bool = False
    idle: bool = False
    risk_ppm: int | None = None


class ClusterPodDetails(msgspec.Struct, frozen=True, gc=False):
    """What is known of a pod that is in a cluster already, beside what the engine says of it.

    Attributes:
        workload: Its workload, for example "Deployment/serve".
        missed: Why no hook saw it; None where one did, or nothing tells.
        becomes: What would have become of it then, for example "tolerations, resources added"; "" otherwise.
        uses: For each GPU amount of each container.
    """

    workload: str
    unevaluated_reason: UnevaluatedReason | None = None
    would_become: str = ""
    usages: tuple[ContainerUsage, ...] = ()


class CheckResult(msgspec.Struct, frozen=True):
    """One object and what became of it.

    Attributes:
        place: Where the object starts.
        api_version: As written; "" where the document is no Kubernetes object.
        kind: As written.
        namespace: The namespace it was judged in; "" where it was not judged.
        name: Object name, or generateName with a star.
        verdict: The word for all of it.
        findings: In the order of the engine's steps.
        decision: Everything the engine said; empty for a skipped object.
        stored: The object that the patch applies to: as the API server hands it to admission.
        reason: Why it was skipped.
        broken: True if it was skipped because of a fault in the file: our input is wrong.
        quiet: True if being skipped is no news: a Kubernetes object that runs no pods.
        nodeless: True if no node was known: nothing was said about slices and shares.
        gpu_milli_on_trial: Thousandths of a GPU that a right-sizing on trial would free; `audit` alone counts them.
        node: The node of a pod that is in a cluster already, and was judged as if it were created again; "" while it
            waits for one, None for every other object.
        standing: What else is known of such a pod.
    """

    place: SourceLocation
    api_version: str
    kind: str
    namespace: str
    name: str
    verdict: CheckVerdict
    findings: tuple[LocatedFinding, ...] = ()
    decision: Decision = Decision()
    stored: Mapping[str, Any] = {}
    reason: str = ""
    invalid: bool = False
    quiet: bool = False
    without_nodes: bool = False
    gpu_milli_audit_saved: int = 0
    node: str | None = None
    pod_details: ClusterPodDetails | None = None

    @property
    def title(self) -> str:
        """Kind, namespace and name, as people say them."""
        if not self.kind:
            return ""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def skipped_result(place: SourceLocation, reason: str, *, broken: bool = False) -> CheckResult:
    """A document that is no object to judge."""
    return CheckResult(place, "", "", "", "", CheckVerdict.SKIPPED, reason=reason, invalid=broken)


def decision_verdict(decision: Decision) -> CheckVerdict:
    """The word for a decision."""
    if decision.denials:
        return CheckVerdict.DENIED
    if decision.warnings:
        return CheckVerdict.WARNED
    return CheckVerdict.ALLOWED if decision.involves_gpus else CheckVerdict.NO_GPU


class CheckSummary(msgspec.Struct, frozen=True):
    """The totals of a run.

    Attributes:
        counts: Objects by verdict, every verdict named.
        broken: Those skipped because of a fault in the file.
        notes: Findings of mode audit.
        gpu_milli_before: Thousandths of a GPU asked for, all replicas of workloads.
        gpu_milli_after: The same for the shapes.
        exempted: Every exemption in use, once, by name.
    """

    counts: Mapping[CheckVerdict, int]
    invalid: int
    audit_findings: int
    gpu_milli_before: int
    gpu_milli_after: int
    exemptions: tuple[ExemptedFinding, ...]

    @property
    def objects(self) -> int:
        """How many objects there were."""
        return sum(self.counts.values())


def summarize_results(results: Iterable[CheckResult]) -> CheckSummary:
    """Add up a run."""
    every = tuple(results)
    counts = {verdict: sum(result.verdict is verdict for result in every) for verdict in CheckVerdict}
    in_use = {taken.exemption: taken for result in every for taken in result.decision.exempted}
    return CheckSummary(
        counts=counts,
        invalid=sum(result.invalid for result in every),
        audit_findings=sum(found.finding.mode is PolicyMode.AUDIT for result in every for found in result.findings),
        gpu_milli_before=sum(result.decision.gpu_milli_before for result in every),
        gpu_milli_after=sum(result.decision.gpu_milli_after for result in every),
        exemptions=tuple(in_use[name] for name in sorted(in_use)),
    )
