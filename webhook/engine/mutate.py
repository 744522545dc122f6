"""Steps 3, 4 and 6: from what a pod asks for to the shape it gets."""

from __future__ import annotations

from webhook.engine.accounting import write_accounting
from webhook.engine.demand import invalid_keep_annotation
from webhook.engine.fit import choose_offer
from webhook.engine.hints import apply_injection
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.mutation import PodMutation
from webhook.engine.pod_context import PodContext
from webhook.engine.projected_pod import default_requests, fits_with_defaults
from webhook.engine.rightsize import apply_fit, right_sizing_violation
from webhook.engine.topology import add_nvlink_affinity
from webhook.engine.violations import PolicyRef, record_findings
from webhook.model.decisions import NOT_REQUESTED, KeepRequest, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.policy.policy_set import LimitRules


def mutate_pod(case: PodContext, shape: PodMutation, findings: list[Finding]) -> OfferChoice | KeepRequest:
    """Give a pod its shape. Sections on trial work on a shape that is thrown away."""
    rules = case.policies
    outcome = _apply_right_sizing(case, rules.right_sizing, shape, findings) if rules.right_sizing else NOT_REQUESTED
    for voice, injection in rules.injections:
        target = _mutation_for_section(voice, shape)
        if said := apply_injection(injection, target, case):
            record_findings(findings, voice, said)
    for voice, topology in rules.topologies:
        target = _mutation_for_section(voice, shape)
        if said := add_nvlink_affinity(topology, target, case):
            record_findings(findings, voice, said)
    if rules.defaults and (shape.fit is not None or fits_with_defaults(case, shape.required_node_affinity)):
        for policy, limits in rules.defaults:
            shape.policy = policy
            _add_default_requests(limits, case, shape)
    if rules.accounting_policies:
        shape.policy = rules.accounting_policies
        write_accounting(case, shape)
    return outcome


def _mutation_for_section(voice: PolicyRef, shape: PodMutation) -> PodMutation:
    """What a section works on: the shape, in its policy's name, or one that is thrown away."""
    if voice[0] is not PolicyMode.ENFORCE:
        return PodMutation(shape.pod)
    shape.policy = voice[1]
    return shape


def _apply_right_sizing(
    case: PodContext, sizing: CombinedRightSizing, shape: PodMutation, findings: list[Finding]
) -> OfferChoice | KeepRequest:
    outcome = choose_offer(case, sizing)
    voice = (sizing.rule.mode, sizing.policy)
    if isinstance(outcome, OfferChoice) and voice[0] is PolicyMode.ENFORCE:
        shape.policy = outcome.policy
        apply_fit(outcome, case.gpu_requests, shape, case.request.namespace, case.view)
    if case.pod.metadata.annotations:
        record_findings(findings, voice, (*case.declared_need.errors, *invalid_keep_annotation(case.pod)))
    said = right_sizing_violation(
        outcome, voice[0], case.gpu_requests, declared=case.declared_need.memory_mib is not None
    )
    if said is not None:
        record_findings(findings, voice, (said,))
    return outcome


def _add_default_requests(limits: LimitRules, case: PodContext, shape: PodMutation) -> None:
    """Give requests that a policy has a default for."""
    by_path = {ask.path: ask for ask in case.gpu_requests.requests}
    for index, additions in default_requests(case, (limits,)).items():
        ask = by_path["spec", "containers", index]
        _, requests = shape.resources_of(ask)
        shape.requests[ask.path] = {**additions, **requests}
        shape.record_change("requests")
