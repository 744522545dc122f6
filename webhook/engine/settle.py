"""Step 8, settle: from the findings of policy sections to those of a decision, by enforcement mode and exemptions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from webhook.engine.policy_findings import SectionFinding
from webhook.model.admission import AdmissionRequest
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.pods import Pod
from webhook.policy.policy_set import Exemption

MAX_FINDINGS = 50
"""Findings of one code and section about one object; more are counted."""


def bound_findings(reported: Sequence[SectionFinding]) -> list[SectionFinding]:
    """Return the first findings of each code and section, and a finding that counts the others of its kind.

    Each kind keeps a finding with its code, policy and mode, so it changes neither denials nor exemptions.
    """
    kinds: dict[tuple[object, ...], list[SectionFinding]] = {}
    for section, finding in reported:
        kinds.setdefault((section, finding.code, finding.at_most), []).append((section, finding))
    bounded: list[SectionFinding] = []
    for alike in kinds.values():
        bounded += alike[:MAX_FINDINGS]
        if len(alike) > MAX_FINDINGS:
            section, finding = alike[MAX_FINDINGS]
            message = f"and {len(alike) - MAX_FINDINGS} more like this"
            bounded.append((section, msgspec.structs.replace(finding, message=message)))
    return bounded


def settle(
    reported: Sequence[SectionFinding],
    exemptions: Sequence[Exemption],
    request: AdmissionRequest,
    pod: Pod,
    now: datetime,
) -> tuple[tuple[Finding, ...], tuple[ExemptedFinding, ...]]:
    """Return findings in their section's mode and, separately, the findings that an exemption covers at `now`.

    If several policies report the same, one finding remains: the strictest, in the first one's place.
    """
    findings: list[Finding] = []
    exempted: list[ExemptedFinding] = []
    for (mode, policy), each in bound_findings(reported) if len(reported) > MAX_FINDINGS else reported:
        finding = Finding(
            each.code, min(mode, each.at_most), each.path, each.message, each.fix, policy, False, each.reason
        )
        if not exemptions:
            findings.append(finding)
            continue
        covering = [one for one in exemptions if one.policy == policy and each.code in one.codes]
        exemption = next((one for one in covering if _exemption_applies(one, request, pod, now)), None)
        if exemption is None:
            findings.append(finding)
        else:
            exempted.append(ExemptedFinding(finding, exemption.name, exemption.expires.isoformat()))
    if len(findings) > 1 and len({finding.code for finding in findings}) < len(findings):
        strictest: dict[tuple[object, ...], Finding] = {}
        for finding in findings:
            known = strictest.setdefault((finding.code, finding.path, finding.message), finding)
            if finding.mode > known.mode:
                strictest[finding.code, finding.path, finding.message] = finding
        findings = list(strictest.values())
    return tuple(findings), tuple(exempted)


def _exemption_applies(exemption: Exemption, request: AdmissionRequest, pod: Pod, now: datetime) -> bool:
    scope = exemption.scope
    if now >= exemption.expires or not scope.namespace(request.namespace):
        return False
    account = pod.spec.service_account_name or "default"
    if scope.service_accounts and account not in scope.service_accounts:
        return False
    return scope.labels(pod.metadata.labels)
