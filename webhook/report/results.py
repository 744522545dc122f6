"""Results of evaluating objects: `webhook.audit` makes them, and every report is written from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from webhook.errors import SourceLocation
from webhook.model.decisions import NEEDS_NODES, Decision, KeepRequest
from webhook.model.enums import PolicyMode
from webhook.model.findings import ExemptedFinding, Finding


class CheckVerdict(StrEnum):
    """Verdict on one object. The value is its word in JSON."""

    DENIED = "denied"
    WARNED = "warned"
    ALLOWED = "allowed"
    NO_GPU = "no-gpu"
    SKIPPED = "skipped"


class LocatedFinding(msgspec.Struct, frozen=True):
    """A finding, the location of its field in the file, and the location of the policy section it comes from."""

    finding: Finding
    location: SourceLocation
    policy_location: SourceLocation | None = None


class UnevaluatedReason(StrEnum):
    """Reason why a pod was not evaluated at admission. The value is its text in reports."""

    STATIC = "static pods, which the kubelet starts from files on their nodes without admission; change them there"
    EXCLUDED = "in namespaces that the webhook configuration excludes"
    UNRECORDED = "no decision record; created while the webhook was down, or before the policy existed"


class ContainerUsage(msgspec.Struct, frozen=True, gc=False):
    """GPUs that one container requests, and the measured usage of its workload.

    Attributes:
        memory_mib: Peak GPU memory in MiB; None if unknown.
        compute_milli: 95th percentile of compute, thousandths of the card; None if unknown.
        samples: Number of samples behind both.
        preallocates: Whether the framework allocates all available memory, so that usage does not show the need.
        idle: Whether no engine of its GPU was active.
        risk_ppm: Pod-hours in a million that would need more than recommended from usage; None without such a
            recommendation.
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


class PodReach(msgspec.Struct, frozen=True, gc=False):
    """Whether a pod with GPUs could use a smaller one.

    Attributes:
        eligible: Whether a policy without restrictions would right-size it now.
        outcome: `RIGHT_SIZED`, `AUDIT_MODE`, `DENIED`, or the word of the `KeepReason`.
        missing_mib: The GPU memory that it needs if no slice is free for that, in MiB; else 0.
        card_nodes: Then the mask of the nodes with whole cards that it may use.
        alone: Whether it is eligible only as long as no other pod takes its slice, because there are too many pods to
            decide them all one after another.
        displaced: Whether it would be right-sized alone, and no slice is left when others have theirs.
    """

    eligible: bool
    outcome: str
    missing_mib: int = 0
    card_nodes: int = 0
    alone: bool = False
    displaced: bool = False


class ClusterPodDetails(msgspec.Struct, frozen=True, gc=False):
    """Facts about a pod that exists in a cluster.

    Attributes:
        workload: Its workload, for example "Deployment/serve".
        unevaluated_reason: Why it was not evaluated at admission; None if it was, or if that is unknown.
        would_become: What admission would have done, for example "resources added"; "" if it was evaluated.
        usages: One for each amount of GPUs of each container.
        reach: Whether it could use a smaller GPU; None without GPUs.
        feasible_nodes: Mask of the nodes that it may use, resources aside, with cards of the memory that it declares;
            of a running pod, those that it may use when it is created again, whatever other pods do. 0 without GPUs.
        quotas: The ResourceQuotas of its namespace that count it. None without GPUs.
        accounting_milli: The units of the accounting resource that it requests itself. 0 without GPUs.
        saved_milli: Thousandths of a GPU that right-sizing saved when it was created.
    """

    workload: str
    unevaluated_reason: UnevaluatedReason | None = None
    would_become: str = ""
    usages: tuple[ContainerUsage, ...] = ()
    reach: PodReach | None = None
    feasible_nodes: int = 0
    quotas: tuple[str, ...] = ()
    accounting_milli: int = 0
    saved_milli: int = 0


class CheckResult(msgspec.Struct, frozen=True):
    """One object and the result of its evaluation.

    Attributes:
        location: Location of its start.
        api_version: As written; "" if the document is not a Kubernetes object.
        kind: As written.
        namespace: The namespace it was evaluated in; "" if it was skipped.
        name: Object name, or generateName with a star.
        findings: In the order of the engine's steps.
        decision: The engine's decision; empty for a skipped object.
        stored: The object the patch applies to, as the API server sends it to admission.
        reason: Why it was skipped.
        invalid: Whether it was skipped because of an error in the file.
        quiet: Whether the skip is not worth a line: a Kubernetes object that runs no pods.
        without_nodes: Whether no nodes were known, so that slices and shares were not considered.
        gpu_milli_audit_saved: Thousandths of a GPU that right-sizing in audit or warn mode would free.
        node: The node of a re-evaluated pod of a cluster; "" if it is pending, None for other objects.
        pod_details: More facts about such a pod.
        devices: What its claims would get, in words; only `explain` asks.
    """

    location: SourceLocation
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
    devices: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """The workload of such a pod, for example "Deployment/serve"; "" for other objects."""
        return self.pod_details.workload if self.pod_details is not None else ""

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decisions on its pod templates, or the one on itself."""
        return tuple(decision for _, _, decision in self.decision.templates) or (self.decision,)

    def is_unknown(self, decision: Decision) -> bool:
        """Return whether the outcome of a decision on it, or on one of its templates, depends on unknown nodes."""
        outcome = decision.outcome
        return self.without_nodes and isinstance(outcome, KeepRequest) and outcome.reason in NEEDS_NODES

    @property
    def title(self) -> str:
        """Kind, namespace and name."""
        if not self.kind:
            return ""
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def skipped_result(location: SourceLocation, reason: str, *, invalid: bool = False) -> CheckResult:
    """Return the result for a document that cannot be evaluated."""
    return CheckResult(location, "", "", "", "", CheckVerdict.SKIPPED, reason=reason, invalid=invalid)


def decision_verdict(decision: Decision) -> CheckVerdict:
    """Return the verdict of a decision: a workload is denied if its pods are, although it is admitted itself."""
    if any(found.effective_mode is PolicyMode.ENFORCE for found in decision.findings):
        return CheckVerdict.DENIED
    if decision.warnings:
        return CheckVerdict.WARNED
    return CheckVerdict.ALLOWED if decision.may_involve_gpus else CheckVerdict.NO_GPU


class CheckSummary(msgspec.Struct, frozen=True):
    """Totals of a run.

    Attributes:
        counts: Objects by verdict, with every verdict as a key.
        invalid: Objects skipped because of an error in the file.
        audit_findings: Findings in audit mode.
        gpu_milli_before: Requested thousandths of a GPU, with all replicas of workloads.
        gpu_milli_after: The same after the patches.
        exemptions: Each exemption in use once, by name.
    """

    counts: Mapping[CheckVerdict, int]
    invalid: int
    audit_findings: int
    gpu_milli_before: int
    gpu_milli_after: int
    exemptions: tuple[ExemptedFinding, ...]

    @property
    def objects(self) -> int:
        """Number of objects."""
        return sum(self.counts.values())


def summarize_results(results: Iterable[CheckResult]) -> CheckSummary:
    """Sum up a run."""
    every = tuple(results)
    counts = {verdict: sum(result.verdict is verdict for result in every) for verdict in CheckVerdict}
    in_use = {used.exemption: used for result in every for used in result.decision.exempted}
    return CheckSummary(
        counts=counts,
        invalid=sum(result.invalid for result in every),
        audit_findings=sum(located.finding.mode is PolicyMode.AUDIT for result in every for located in result.findings),
        gpu_milli_before=sum(result.decision.gpu_milli_before for result in every),
        gpu_milli_after=sum(result.decision.gpu_milli_after for result in every),
        exemptions=tuple(in_use[name] for name in sorted(in_use)),
    )
