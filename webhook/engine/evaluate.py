"""Steps 2 and 5: what a pod may not do, may not ask for, and will not get. Judged on the shape it will have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.accounting import accounting_mismatches, missing_accounting
from webhook.engine.containers import containers_of_every_kind
from webhook.engine.cuda import cuda_violations
from webhook.engine.eligibility import is_mirror_pod
from webhook.engine.gpu_requests import PodGpuRequests, requests_gpu_share, sum_gpu_requests
from webhook.engine.guard import find_bypasses
from webhook.engine.limitrange import (
    InjectedAmount,
    InjectedGpus,
    final_amounts,
    injected_gpu_violations,
    is_surely_admitted,
    limit_range_violations,
)
from webhook.engine.limits import find_limit_violations
from webhook.engine.matched_policies import MatchedPolicies
from webhook.engine.mutation import PodMutation
from webhook.engine.node_fit import node_fit_violations
from webhook.engine.pod_context import PodContext
from webhook.engine.quota import (
    QuotaConsumerLookup,
    claim_quota_violations,
    quota_violations,
    resize_quota_violations,
    shared_quota_violations,
    update_quota_violations,
)
from webhook.engine.topology import invalid_annotations
from webhook.engine.violations import PolicyRef, Violation, record_findings
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.field_paths import FieldPath
from webhook.model.findings import Finding
from webhook.model.pod_amounts import ContainerAmounts, container_amounts
from webhook.model.pod_resources import effective_amount, limit_or_request
from webhook.model.pods import Pod
from webhook.model.pools import GpuWeight
from webhook.policy.policy_set import AmountRuleSet, BoundedSet, LimitRules
from webhook.policy.policy_set import InjectedGpuHandling as WhenInjected

_NO_AMOUNT_RULES = AmountRuleSet()


class PodResize(NamedTuple):
    """A pod before and after, and what it asks of GPUs: no resize changes that."""

    old: Pod
    new: Pod
    gpu_requests: PodGpuRequests


def evaluate_security(
    request: AdmissionRequest,
    pod: Pod,
    asked: PodGpuRequests,
    given: Sequence[InjectedAmount],
    rules: MatchedPolicies,
    view: ClusterView,
    findings: list[Finding],
) -> None:
    """Every way round GPU accounting that a policy denies; `given` are GPUs that LimitRanges put in."""
    shares = bool(asked.requests) and pod.spec.share_process_namespace and requests_gpu_share(asked.totals, view.fleet)
    for voice, section in rules.security:
        bypasses = find_bypasses(
            request,
            pod,
            asked,
            asks_share=shares,
            given=given,
            allowed_capabilities=section.allowed_capabilities,
            allowed_runtime_classes=section.allowed_runtime_classes,
        )
        if bypasses:
            record_findings(findings, voice, [remark for bypass, remark in bypasses if bypass in section.deny])


def evaluate_gpu_pod(case: PodContext, shape: PodMutation, findings: list[Finding]) -> None:
    """Everything a GPU pod may not ask for or will not get."""
    rules, amounts = case.policies, container_amounts(case.pod.spec)
    said = _amount_violations(case.request, shape, amounts, rules, case.view)
    gpus_aside = shape.fit is not None and not case.pod.is_stored
    demanded, known = _user_gpu_requests(case), None if case.injected.amounts else amounts
    for voice, limits in rules.limits:
        sections = rules.limits_by_mode[voice[0]]
        broken = find_limit_violations(limits, case.pod, demanded, known, gpus_aside=gpus_aside, sections=sections)
        if broken:
            record_findings(findings, voice, broken)
        if said is not NO_AMOUNT_VIOLATIONS or case.injected.amounts:
            _record_amounts(limits, voice, said, case.injected, findings)
        if limits.accounting and not is_mirror_pod(case.pod):
            record_findings(findings, voice, accounting_mismatches(case, shape))
            record_findings(findings, voice, missing_accounting(case, shape, sections))
    for voice in rules.cuda:
        unfit = cuda_violations(
            case.pod, shape.fit.offers if shape.fit else case.offers, case.gpu_requests.requesting_containers()
        )
        if unfit:
            record_findings(findings, voice, unfit)
    in_the_way = node_fit_violations(case, shape) if shape.fit is None else []
    if in_the_way or case.gpu_requests.errors or case.pod.metadata.annotations:
        record_findings(
            findings, rules.general_policy, (*case.gpu_requests.errors, *invalid_annotations(case.pod), *in_the_way)
        )


class _AmountViolations(NamedTuple):
    """What the API server will say of a pod's amounts: LimitRanges, then quotas, of the pod and then of its claims."""

    ranges: Sequence[Violation] = ()
    quotas: Sequence[Violation] = ()


NO_AMOUNT_VIOLATIONS = _AmountViolations()


def evaluate_amounts(
    request: AdmissionRequest,
    shape: PodMutation,
    rules: MatchedPolicies,
    view: ClusterView,
    injected: InjectedGpus,
    findings: list[Finding],
) -> None:
    """What the namespace's LimitRanges and quotas will say of a pod that asks for no GPU."""
    said = _amount_violations(request, shape, container_amounts(shape.pod.spec), rules, view)
    for voice, limits in rules.limits:
        _record_amounts(limits, voice, said, injected, findings)


UPDATE_QUOTA_CHECKS = {"": update_quota_violations, "resize": resize_quota_violations}
"""What quotas say of an update, by its subresource; of others nothing."""


def evaluate_update(
    request: AdmissionRequest,
    pod: Pod,
    asked: PodGpuRequests,
    rules: MatchedPolicies,
    view: ClusterView,
    findings: list[Finding],
) -> None:
    """What limits say of a pod that is resized while it runs, and quotas of that and of a new deadline."""
    if request.sub_resource == "resize" and request.old_pod is not None and asked.requests:
        evaluate_resize(PodResize(request.old_pod, pod, asked), rules, findings)
    _evaluate_update_quotas(request, pod, rules, view, findings)


def _evaluate_update_quotas(
    request: AdmissionRequest, pod: Pod, rules: MatchedPolicies, view: ClusterView, findings: list[Finding]
) -> None:
    quotas, old = view.quotas(request.namespace), request.old_pod
    remarks = UPDATE_QUOTA_CHECKS.get(request.sub_resource)
    if not quotas or not rules.limits or old is None or remarks is None:
        return
    said = tuple(remarks(old, pod, quotas, _quota_holders_in(request.namespace, view)))
    for voice, limits in rules.limits:
        if limits.resource_quotas:
            record_findings(findings, voice, said)


def evaluate_shared_quotas(
    request: AdmissionRequest,
    pod: Pod,
    weight: GpuWeight,
    rules: MatchedPolicies,
    view: ClusterView,
    findings: list[Finding],
) -> None:
    """What a pod would hold beyond the quotas that its namespace shares with others."""
    for voice, section in rules.quotas:
        record_findings(findings, voice, shared_quota_violations(section, pod, request.namespace, weight, view))


def _quota_holders_in(namespace: str, view: ClusterView) -> QuotaConsumerLookup:
    """Who holds what a quota of the namespace counts."""
    return lambda quota, what: view.quota_users(quota, namespace, what)


def _amount_violations(
    request: AdmissionRequest, shape: PodMutation, amounts: ContainerAmounts, rules: MatchedPolicies, view: ClusterView
) -> _AmountViolations:
    """What the API server will say of a shape; `amounts` are those of the pod as it came."""
    space = request.namespace
    ranges, room = view.ranges(space), view.quota_room(space)
    if not rules.limits or not (ranges or room):
        return NO_AMOUNT_VIOLATIONS
    if shape.limits or shape.requests:
        amounts = container_amounts(shape.pod.spec, shape.limits, shape.requests)
    claims = _claim_violations(request, shape.pod, view) if shape.pod.spec.resource_claims else ()
    passing = is_surely_admitted(shape.pod, amounts, ranges, room)
    holders = None if passing else final_amounts(shape, ranges)
    if holders is None:
        return _AmountViolations(quotas=claims) if claims else NO_AMOUNT_VIOLATIONS
    return _AmountViolations(
        limit_range_violations(shape, holders, ranges) if ranges else (),
        (*quota_violations(shape.pod, holders, view.quotas(space), _quota_holders_in(space, view)), *claims),
    )


def _claim_violations(request: AdmissionRequest, pod: Pod, view: ClusterView) -> tuple[Violation, ...]:
    """What quotas will say of the claims that are made for a pod."""
    space = request.namespace
    return tuple(
        claim_quota_violations(
            pod, view.claim_context(space), view.quotas(space), lambda key: view.claim_users(space, key)
        )
    )


def _record_amounts(
    limits: LimitRules, voice: PolicyRef, said: _AmountViolations, injected: InjectedGpus, findings: list[Finding]
) -> None:
    if limits.limit_ranges:
        if injected.amounts and limits.injected_gpus is not WhenInjected.KEEP:
            record_findings(findings, voice, injected_gpu_violations(injected))
        record_findings(findings, voice, said.ranges)
    if limits.resource_quotas:
        record_findings(findings, voice, said.quotas)


def _user_gpu_requests(case: PodContext) -> PodGpuRequests:
    """What the user asked for: without the amounts that LimitRanger put into containers that named none."""
    if not case.injected.amounts:
        return case.gpu_requests
    asks = tuple(ask for ask in case.gpu_requests.requests if not case.injected.contains(ask.path, ask.resource.name))
    return case.gpu_requests if len(asks) == len(case.gpu_requests.requests) else sum_gpu_requests(asks)


def evaluate_resize(resize: PodResize, rules: MatchedPolicies, findings: list[Finding]) -> None:
    """Every limit that a resize breaks.

    A pod that stood outside of one before, because the limit is younger, may stay where it is and come nearer.
    """
    for voice, limits in rules.limits:
        sections = rules.limits_by_mode[voice[0]]
        if _resize_breaches(limits, resize):
            remarks = [
                *_pod_resize_breaches(limits, resize, sections),
                *_container_resize_breaches(limits, resize, sections),
            ]
            record_findings(findings, voice, remarks)


def _resize_breaches(limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...] = ()) -> list[Violation]:
    """What of the new amounts the section does not allow, GPUs aside."""
    pod = resize.new
    return find_limit_violations(
        limits, pod, resize.gpu_requests, container_amounts(pod.spec), gpus_aside=True, sections=sections
    )


def _pod_resize_breaches(
    limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]
) -> Iterator[Violation]:
    """Breaches by what the pod takes together."""
    alone = replace(limits, per_container=_NO_AMOUNT_RULES, passed_checks=BoundedSet())
    for remark in _resize_breaches(alone, resize, sections):
        name = str(remark.path[-1])
        before, after = _pod_amounts(resize.old, name), _pod_amounts(resize.new, name)
        if any(_moves_further_outside(remark.code, *amounts) for amounts in zip(before, after, strict=True)):
            yield remark


def _container_resize_breaches(
    limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]
) -> Iterator[Violation]:
    """Breaches by what a container takes."""
    alone = replace(limits, per_pod=_NO_AMOUNT_RULES, per_gpu=_NO_AMOUNT_RULES, passed_checks=BoundedSet())
    for remark in _resize_breaches(alone, resize, sections):
        before, after = _container_amount(resize.old, remark.path), _container_amount(resize.new, remark.path)
        if _moves_further_outside(remark.code, before, after):
            yield remark


def _pod_amounts(pod: Pod, name: str) -> tuple[int, int]:
    """Requests and limits of a pod, nano-units."""
    return effective_amount(pod, name), effective_amount(pod, name, limits=True)


def _container_amount(pod: Pod, path: FieldPath) -> int:
    """The limit, or else the request, of the container that a field stands in, nano-units; 0 where there is none."""
    found = (container for place, container in containers_of_every_kind(pod.spec) if place == path[:3])
    return next((limit_or_request(container.resources, str(path[-1])) for container in found), 0)


def _moves_further_outside(code: str, before: int, after: int) -> bool:
    """Does an amount outside of a limit go further from it, or come there only now?"""
    if code == "GPU-L103":
        return after > before
    if code == "GPU-L101":
        return after < before or not before
    return after != before
