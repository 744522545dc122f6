"""Review new resource claims and their templates: findings about devices, quotas and limits, and right-sizing.

Findings are warnings: devices may still be published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from webhook.engine.amount_bounds import most_units
from webhook.engine.claim_allocation import (
    requests_of,
)
from webhook.engine.claim_findings import (
    claim_findings,
)
from webhook.engine.claim_sizing import size_claim
from webhook.engine.claimed_gpus import RequestAlternatives, units_of_requests
from webhook.engine.limit_sums import GpuCounts, summing_rules
from webhook.engine.matched_devices import claim_warning
from webhook.engine.matched_policies import combine_policies, fact_reporter
from webhook.engine.policy_findings import PolicyFinding
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.model.admission import AdmissionRequest
from webhook.model.claims import (
    CLAIM_KINDS,
    EXTENDED_RESOURCE_CLAIM,
    MADE_CLAIM_ANNOTATIONS,
    ClaimSpec,
    DeviceClasses,
    ResourceClaimTemplate,
    may_hold_gpus,
)
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.dra.claim_weights import count_claim_units, weigh_unallocated_claims
from webhook.model.enums import PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.node_masks import bit_positions
from webhook.model.pools import GpuWeight
from webhook.policy.policy_set import Policy, PolicySet

CLAIM_GROUP = "resource.k8s.io"
EXCEEDED_QUOTA = "Delete claims that are not in use. If the quota counts devices, request fewer."
_OUTCOMES = {PolicyMode.ENFORCE: "be denied", PolicyMode.WARN: "get this warning"}


def review_claim(request: AdmissionRequest, policies: PolicySet, view: ClusterView) -> Decision:
    """Return the findings of a claim or a template of claims, and its change by right-sizing."""
    try:
        found = msgspec.convert(request.load_object(), CLAIM_KINDS[request.kind])
    except msgspec.ValidationError:
        return Decision()
    path: FieldPath = ("spec", "spec") if isinstance(found, ResourceClaimTemplate) else ("spec",)
    spec = found.spec.spec if isinstance(found, ResourceClaimTemplate) else found.spec
    if EXTENDED_RESOURCE_CLAIM in found.metadata.annotations:
        return Decision()
    problems = claim_findings(spec, view, request.namespace, path)
    problems += _quota_findings(spec, view, request.namespace, path)
    requests = count_claim_units(spec, view.devices, view.fleet) if view.devices.pools else ()
    alternatives = [RequestAlternatives(one.units) for one in requests]
    units = units_of_requests(alternatives)
    labels = view.labels_of(request.namespace)
    matching, conditional = policies.candidates_for(request.namespace, labels, "CREATE", tuple(sorted(units)))
    mode, policy = fact_reporter(combine_policies(policies, matching, 0), policies)
    mode = min(mode, PolicyMode.WARN)
    findings = [Finding(one.code, mode, one.path, one.message, one.fix, policy, reason=one.reason) for one in problems]
    if units:
        bounding = [policies.policies[index] for index in bit_positions(matching & ~conditional)]
        weight = weigh_unallocated_claims([spec], view.devices, view.fleet)
        findings += _limit_findings(GpuCounts({}, alternatives), (*path, "devices"), bounding)
        findings += _shared_quota_findings(weight, (*path, "devices"), bounding, request.namespace, labels)
    sized = size_claim(request, found, policies, view)
    findings += sized.findings
    may_be_gpus = units or (not view.devices.pools and _may_request_gpus(spec, view.classes))
    involves_gpus = sized.involves_gpus or bool(findings or may_be_gpus)
    used = tuple(dict.fromkeys([*sized.policies, *[each.policy for each in findings if each.policy]]))
    return msgspec.structs.replace(sized, findings=tuple(findings), policies=used, involves_gpus=involves_gpus)


def _may_request_gpus(spec: ClaimSpec, classes: DeviceClasses) -> bool:
    return any(may_hold_gpus(request.device_class_name, classes) for request, _ in requests_of(spec, ()))


def _quota_findings(spec: ClaimSpec, view: ClusterView, namespace: str, path: FieldPath) -> Iterator[PolicyFinding]:
    """Yield the quotas that will reject a new claim, or one that is made from a template, in the API server's words."""
    charge = view.claim_context(namespace).charge(spec)
    for refusal in predict_claim_refusals(charge, view.quotas(namespace), view.classes):
        message = f"must fit the quotas of the namespace: {refusal.message}"
        yield claim_warning("GPU-D109", path, message, EXCEEDED_QUOTA)


def _shared_quota_findings(
    weight: GpuWeight, path: FieldPath, policies: Sequence[Policy], namespace: str, labels: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the shared quotas that a claim alone exceeds, also one of its products, whatever is in use.

    Args:
        weight: The most that it may weigh.
    """
    sections = [(one.name, one.quotas) for one in policies if one.quotas and one.quotas.mode is not PolicyMode.AUDIT]
    for policy, quota, mode in ((name, one, section.mode) for name, section in sections for one in section.shared):
        milli = quota.pool.counted_milli(weight) if quota.pool.includes_namespace(namespace, labels) else 0
        if milli > quota.gpu_milli:
            of_product = f" of {quota.product}" if quota.product else ""
            allowed = f"{quota.gpu_milli} thousandths of a GPU{of_product}"
            message = f"its pods will {_OUTCOMES[mode]}: quota {quota.name} allows {allowed}, found up to {milli}"
            fix = "Request fewer devices, or smaller or other ones."
            yield Finding("GPU-Q303", PolicyMode.WARN, path, message, fix, policy)


def _limit_findings(counts: GpuCounts, path: FieldPath, policies: Sequence[Policy]) -> Iterator[Finding]:
    """Yield the limits of policies for all pods of a namespace that a pod exceeds by a claim alone."""
    units = units_of_requests(counts.requests)
    for policy, limits in ((policy, policy.limits) for policy in policies):
        if limits is None or limits.mode is PolicyMode.AUDIT:
            continue
        summed = summing_rules(limits.per_pod, counts)
        sums = [(rule.resource, most_units([rule]), counts.sum_of(rule), " in sum") for rule in summed]
        for name in sorted(units):
            rules = [rule for rule in limits.per_pod.rules_for(name) if rule not in summed]
            sums.append((name, most_units(rules), units[name], ""))
        for resource, most, count, how in sums:
            if most is not None and count > most:
                outcome = f"its pods will {_OUTCOMES[limits.mode]}"
                message = f"{outcome}: a pod's {resource} must be at most {most}{how}, found up to {count}"
                yield Finding("GPU-L103", PolicyMode.WARN, path, message, f"Request at most {most}{how}.", policy.name)


class ClaimFindings(NamedTuple):
    """A stored claim or template, and what is wrong with it."""

    kind: str
    namespace: str
    name: str
    findings: Sequence[PolicyFinding]


def stored_claim_findings(view: ClusterView) -> Iterator[ClaimFindings]:
    """Yield what is wrong with the templates of a cluster and with the claims that wait for devices.

    Claims that were made for a pod are as their template, or as the resources of the pod.
    """
    claims = view.all_claims
    for namespace in sorted({*claims.devices.claims, *claims.templates}):
        known = claims.in_namespace(namespace)
        for name, claim in sorted(known.claims.items()):
            if claim.status.allocation is None and claim.metadata.annotations.keys().isdisjoint(MADE_CLAIM_ANNOTATIONS):
                found = claim_findings(claim.spec, view, namespace, ("spec",))
                yield ClaimFindings("ResourceClaim", namespace, name, found)
        for name, spec in sorted(known.templates.items()):
            found = claim_findings(spec, view, namespace, ("spec", "spec"))
            yield ClaimFindings("ResourceClaimTemplate", namespace, name, found)
