"""Step 7: each section's mode settles what becomes of a remark; exemptions take findings back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from webhook.model.admission import AdmissionRequest
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.pods import Pod
from webhook.policy.policy_set import Exemption


class Violation(msgspec.Struct, frozen=True, gc=False):
    """A finding without its mode and policy.

    Attributes:
        code: A code of `webhook.model.codes`.
        path: The field, from the root of the Pod ("spec", "containers", 0, …).
        message: What must hold and what was found: one sentence, no full stop, not the path.
        fix: What to write instead: one whole sentence, or "".
        at_most: The strictest mode that fits what is known; WARN where it may still turn out well.
        reason: A stable word for scripts where the code has several reasons.
    """

    code: str
    path: FieldPath
    message: str
    fix: str = ""
    at_most: PolicyMode = PolicyMode.ENFORCE
    reason: str = ""


PolicyRef = tuple[PolicyMode, str]
"""The mode in which a policy speaks, and its name."""


def record_findings(findings: list[Finding], voice: PolicyRef, remarks: Iterable[Violation]) -> None:
    """Add remarks to the findings, in the mode of the policy section that speaks."""
    mode, policy = voice
    for remark in remarks:
        settled = min(mode, remark.at_most)
        findings.append(
            Finding(remark.code, settled, remark.path, remark.message, remark.fix, policy, reason=remark.reason)
        )


def merge_duplicates(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding where several policies say the same: the strictest, in the first one's place."""
    chosen: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.code, finding.path, finding.message)
        known = chosen.get(key)
        if known is None or finding.mode > known.mode:
            chosen[key] = finding
    return tuple(chosen.values())


def apply_exemptions(
    findings: Sequence[Finding], exemptions: Sequence[Exemption], request: AdmissionRequest, pod: Pod, now: datetime
) -> tuple[tuple[Finding, ...], tuple[ExemptedFinding, ...]]:
    """Part findings into those that stand and those that an exemption holds for at `now`."""
    holding = (
        [exemption for exemption in exemptions if _exemption_applies(exemption, request, pod, now)]
        if exemptions
        else ()
    )
    if not holding:
        return tuple(findings), ()
    standing: list[Finding] = []
    exempted: list[ExemptedFinding] = []
    for finding in findings:
        match = next((e for e in holding if e.policy == finding.policy and finding.code in e.codes), None)
        if match is None:
            standing.append(finding)
        else:
            exempted.append(ExemptedFinding(finding, match.name, match.expires.isoformat()))
    return tuple(standing), tuple(exempted)


def _exemption_applies(exemption: Exemption, request: AdmissionRequest, pod: Pod, now: datetime) -> bool:
    scope = exemption.scope
    if now >= exemption.expires or not scope.namespace(request.namespace):
        return False
    account = pod.spec.service_account_name or "default"
    if scope.service_accounts and account not in scope.service_accounts:
        return False
    return scope.labels(pod.metadata.labels)
