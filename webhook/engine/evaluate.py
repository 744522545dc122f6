"""Step 7, evaluate: what the changed pod violates: limits, LimitRange, quota, node fit and CUDA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from webhook.engine.accounting import accounting_mismatches, missing_accounting
from webhook.engine.claim_findings import UNALLOCATABLE
from webhook.engine.claimed_gpus import NO_CLAIMED_GPUS, claim_of_scheduler
from webhook.engine.cuda import cuda_violations
from webhook.engine.gpu_requests import PodGpuRequests, containers_of_every_kind
from webhook.engine.limitrange.fast_path import is_surely_admitted
from webhook.engine.limitrange.findings import (
    DefaultSources,
    final_amounts,
    injected_gpu_violations,
    limit_range_violations,
    replace_amount_errors,
    without_injected_gpus,
)
from webhook.engine.limits import find_limit_violations, unknown_claim_violations, unreadable_amount_violations
from webhook.engine.matched_policies import fact_reporter
from webhook.engine.node_fit import node_fit_violations, replica_fit_violations, unoffered_resource_violations
from webhook.engine.own_annotations import invalid_annotations
from webhook.engine.pod_claim_review import pod_device_findings, replica_device_findings, shared_gpu_findings
from webhook.engine.pod_context import GpuPodContext, InjectedGpus, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding, PolicyRef, SectionFinding
from webhook.engine.quota.admission import charge_by_names, quotas_of_claims
from webhook.engine.quota.charges import NO_CLAIM_CHARGES
from webhook.engine.quota.findings import (
    QuotaConsumerLookup,
    claim_quota_violations,
    quota_violations,
    update_quota_violations,
)
from webhook.engine.quota.shared_quotas import (
    NO_CHARGE,
    QuotaCharge,
    compute_quota_charge,
    shared_quota_violations,
)
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.bounded_cache import BoundedCache
from webhook.model.claims import NO_CLAIM
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.device_view import NO_DEVICES
from webhook.model.dra.twice_published import devices_published_twice
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.pod_amounts import ContainerAmounts, container_amounts
from webhook.model.pod_resources import effective_amount, limit_or_request
from webhook.model.pods import Pod
from webhook.policy.policy_set import MAX_CACHE_ENTRIES, AmountRuleSet, InjectedGpuHandling, LimitRules

_NO_AMOUNT_RULES = AmountRuleSet()


def evaluate_pod(context: PodContext, mutation: PodMutation) -> tuple[list[SectionFinding], QuotaCharge]:
    """Return everything that a pod with its changes violates, and the pod's GPUs as shared quotas count them."""
    request, view, policy_set = context.request, context.view, context.policy_set
    created = request.operation == "CREATE"
    if not created:
        violations = _evaluate_update(context)
    elif isinstance(context, GpuPodContext):
        violations = _evaluate_gpu_pod(context, mutation)
    else:
        violations = _evaluate_pod_without_gpus_by_name(context, mutation)
        if context.gpu_requests.unknown_resources and context.policies.names:
            missing = unoffered_resource_violations(context)
            violations += [(context.policies.general_policy, each) for each in missing]
    facts: list[PolicyFinding] = []  # findings that no policy section owns
    if created and view.devices is not NO_DEVICES:
        names = context.gpu_requests.extended_names
        if context.claimed is not NO_CLAIMED_GPUS or any(name.startswith(DEVICE_CLASS_PREFIX) for name in names):
            facts += pod_device_findings(context, mutation.tolerations)
            if request.replicas > 1 and UNALLOCATABLE.isdisjoint(one.code for one in facts):
                facts += replica_device_findings(context, mutation.tolerations)
            facts += _claim_rejections(context, mutation) if not context.policies.limits else ()
        if names and devices_published_twice(view.devices.pools, view.fleet):
            facts += shared_gpu_findings(context.pod, view)
    if created and context.pod.metadata.annotations and not request.sub_resource:
        facts += invalid_annotations(context.pod)
    if facts:
        reporter = fact_reporter(context.policies, policy_set)
        violations += [(reporter, each) for each in facts]
    may_have_gpus = context.gpu_requests.totals or view.devices is not NO_DEVICES
    if not (policy_set.has_shared_quotas and created and may_have_gpus and not request.sub_resource):
        return violations, NO_CHARGE
    quota_charge = compute_quota_charge(context, mutation)
    for policy_ref, section in context.policies.quotas:
        exceeded = shared_quota_violations(section, context, quota_charge)
        violations += [(policy_ref, each) for each in exceeded]
    return violations, quota_charge


def _evaluate_gpu_pod(context: GpuPodContext, mutation: PodMutation) -> list[SectionFinding]:
    policies, pod, gpu_requests, fit = context.policies, context.pod, context.gpu_requests, mutation.applied_choice
    violations: list[SectionFinding] = []
    if policies.limits:
        injected, amounts = context.limit_range_gpus, container_amounts(pod.spec)
        requested = without_injected_gpus(gpu_requests, injected) if injected.amounts else gpu_requests
        rejections = _namespace_rejections(context, mutation, amounts)
        claimed = context.claimed
        known = None if injected.amounts else amounts
        resized = fit is not None and not pod.has_uid
        for policy_ref, limits in policies.limits:
            sections = policies.limits_by_mode[policy_ref[0]]
            broken = find_limit_violations(
                limits, pod, requested, known, skip_gpu_amounts=resized, sections=sections, claimed=claimed
            )
            if claimed.missing:
                broken += unknown_claim_violations(limits, claimed)
            if broken:
                violations += [(policy_ref, each) for each in broken]
            if rejections is not _NOT_REJECTED or injected.amounts:
                violations += _reported_rejections(policy_ref, limits, rejections, injected)
            if limits.accounting:
                violations += _accounting_violations(policy_ref, context, mutation)
    if policies.cuda:
        offers = fit.offers if fit is not None else context.offers
        unsuitable = cuda_violations(pod, offers, gpu_requests.containers)
        if unsuitable:
            violations += [(policy_ref, each) for policy_ref in policies.cuda for each in unsuitable]
    obstacles = node_fit_violations(context, mutation) if fit is None and context.view.fleet.nodes else []
    if context.request.replicas > 1:
        obstacles += replica_fit_violations(context, mutation)
    if obstacles or gpu_requests.errors:
        request, errors = context.request, gpu_requests.errors
        if errors:
            errors = replace_amount_errors(errors, mutation, context.namespace.ranges, request)
        violations += [(policies.general_policy, each) for each in (*errors, *obstacles)]
    return violations


class _NamespaceRejections(NamedTuple):
    """Predicted rejections of the API server: by LimitRanges, and by quotas for the pod and then its claims."""

    ranges: Sequence[PolicyFinding] = ()
    quotas: Sequence[PolicyFinding] = ()


_NOT_REJECTED = _NamespaceRejections()


def _evaluate_pod_without_gpus_by_name(context: PodContext, mutation: PodMutation) -> list[SectionFinding]:
    """Return what LimitRanges, quotas and limits reject in a pod that requests no GPU by resource name."""
    if not context.policies.limits:
        return []
    amounts = container_amounts(context.pod.spec)
    rejections = _namespace_rejections(context, mutation, amounts)
    known = None if context.limit_range_gpus.amounts else amounts
    violations: list[SectionFinding] = []
    for policy_ref, limits in context.policies.limits:
        violations += _reported_rejections(policy_ref, limits, rejections, context.limit_range_gpus)
        if context.claimed is not NO_CLAIMED_GPUS:
            violations += _claim_violations(policy_ref, limits, context, known)
        if limits.accounting and context.view.devices is not NO_DEVICES:
            violations += _accounting_violations(policy_ref, context, mutation)
    return violations


def _accounting_violations(
    policy_ref: PolicyRef, context: PodContext, mutation: PodMutation
) -> Iterator[SectionFinding]:
    sections = context.policies.limits_by_mode[policy_ref[0]]
    if MIRROR_ANNOTATION not in context.pod.metadata.annotations:
        wrong = [*accounting_mismatches(context, mutation), *missing_accounting(context, mutation, sections)]
        yield from ((policy_ref, each) for each in wrong)


def _claim_violations(
    policy_ref: PolicyRef, limits: LimitRules, context: PodContext, amounts: ContainerAmounts | None
) -> Iterator[SectionFinding]:
    """Yield what limits do not allow of a pod whose GPUs are all claimed."""
    pod, claimed, sections = context.pod, context.claimed, context.policies.limits_by_mode[policy_ref[0]]
    broken = list(unknown_claim_violations(limits, claimed)) if claimed.missing else []
    if claimed.units:
        broken += find_limit_violations(limits, pod, context.gpu_requests, amounts, sections=sections, claimed=claimed)
    yield from ((policy_ref, each) for each in broken)


def _namespace_rejections(
    context: PodContext, mutation: PodMutation, amounts: ContainerAmounts
) -> _NamespaceRejections:
    """Predict what the namespace's LimitRanges and quotas reject in the changed pod.

    Args:
        amounts: The amounts of the unchanged pod.
    """
    pod, view, namespace = context.pod, context.view, context.namespace
    ranges, quotas = namespace.ranges, namespace.quotas
    if not ranges and not quotas:
        return _NOT_REJECTED
    if mutation.runtime_class_name:
        pod = view.pod_classes.add_to_pod(pod, mutation.runtime_class_name)
    has_claims = pod.spec.resource_claims or context.claimed.served
    claims = tuple(_claim_rejections(context, mutation)) if has_claims else ()
    if mutation.limits or mutation.requests:
        amounts = container_amounts(pod.spec, mutation.limits, mutation.requests)
    if is_surely_admitted(pod, amounts, ranges, namespace.remaining_quotas):
        return _NamespaceRejections(quotas=claims) if claims else _NOT_REJECTED
    final = final_amounts(mutation, ranges)
    if final is None:
        unreadable = tuple(unreadable_amount_violations(pod))
        return _NamespaceRejections(unreadable, (*unreadable, *claims))
    sources = DefaultSources(mutation, ranges, context.request.load_object)
    consumers = _quota_users_in(context.request.namespace, view)
    exceeded = quota_violations(pod, final, quotas, consumers, partial(sources.of_total, final))
    return _NamespaceRejections(limit_range_violations(final, ranges, sources) if ranges else (), (*exceeded, *claims))


def _claim_rejections(context: PodContext, mutation: PodMutation) -> Iterator[PolicyFinding]:
    """Yield what quotas reject of the claims that are made for a pod; of a device that it is changed to, nothing."""
    pod, namespace, view = context.pod, context.namespace, context.view
    if not (pod.spec.resource_claims or context.claimed.served):
        return
    if not (quotas := quotas_of_claims(namespace.quotas, namespace.claims.classes)):
        return
    of_scheduler, own = NO_CLAIM, NO_CLAIM_CHARGES
    if mutation.applied_choice is None:
        own = charge_by_names(pod, quotas)
    if context.claimed.served and mutation.applied_choice is None and view.device_pools():
        of_scheduler = claim_of_scheduler(pod, view)
    users = partial(view.claim_users, context.request.namespace)
    yield from claim_quota_violations(pod, namespace.claims, quotas, users, of_scheduler, own)


def _reported_rejections(
    policy_ref: PolicyRef, limits: LimitRules, rejections: _NamespaceRejections, injected: InjectedGpus
) -> list[SectionFinding]:
    reported: list[PolicyFinding] = []
    if limits.limit_ranges:
        if injected.amounts and limits.injected_gpus is not InjectedGpuHandling.KEEP:
            reported += injected_gpu_violations(injected)
        reported += rejections.ranges
    if limits.resource_quotas:
        reported += rejections.quotas
    return [(policy_ref, each) for each in reported]


def _quota_users_in(namespace: str, view: ClusterView) -> QuotaConsumerLookup:
    return lambda quota, counted: view.quota_users(quota, namespace, counted)


def _evaluate_update(context: PodContext) -> list[SectionFinding]:
    """Return the limits that a resize violates, and the quotas that a resize or a new deadline exceeds."""
    request, pod, view, old = context.request, context.pod, context.view, context.request.old_pod
    if old is None or not context.policies.limits:
        return []
    violations: list[SectionFinding] = []
    if request.sub_resource == "resize" and context.gpu_requests.requests:
        violations += _evaluate_resize(PodResize(old, pod, context.gpu_requests), context)
    quotas = context.namespace.quotas
    if not quotas:
        return violations
    lookup = _quota_users_in(request.namespace, view)
    exceeded = tuple(update_quota_violations(old, pod, request.sub_resource, quotas, lookup, context.namespace.ranges))
    reporting = [policy_ref for policy_ref, limits in context.policies.limits if limits.resource_quotas]
    return violations + [(policy_ref, each) for policy_ref in reporting for each in exceeded]


class PodResize(NamedTuple):
    """A pod before and after a resize, and its GPU requests, which no resize changes."""

    old: Pod
    new: Pod
    gpu_requests: PodGpuRequests


def _evaluate_resize(resize: PodResize, context: PodContext) -> Iterator[SectionFinding]:
    """Yield every limit that a resize violates.

    A pod that violated a limit before, because the limit is newer, may stay where it is or come closer to the limit.
    """
    for policy_ref, limits in context.policies.limits:
        sections = context.policies.limits_by_mode[policy_ref[0]]
        if _resize_violations(limits, resize):
            for violation in (
                *_pod_resize_violations(limits, resize, sections),
                *_container_resize_violations(limits, resize, sections),
            ):
                yield policy_ref, violation


def _resize_violations(
    limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...] = ()
) -> list[PolicyFinding]:
    pod, gpu_requests = resize.new, resize.gpu_requests
    return find_limit_violations(
        limits, pod, gpu_requests, container_amounts(pod.spec), skip_gpu_amounts=True, sections=sections
    )


def _pod_resize_violations(
    limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]
) -> Iterator[PolicyFinding]:
    of_pod = replace(limits, per_container=_NO_AMOUNT_RULES, passed_checks=BoundedCache(MAX_CACHE_ENTRIES))
    for violation in _resize_violations(of_pod, resize, sections):
        name = str(violation.path[-1])
        if any(
            _moves_further_outside(
                violation.code,
                effective_amount(resize.old, name, limits=side),
                effective_amount(resize.new, name, limits=side),
            )
            for side in (False, True)
        ):
            yield violation


def _container_resize_violations(
    limits: LimitRules, resize: PodResize, sections: tuple[LimitRules, ...]
) -> Iterator[PolicyFinding]:
    of_containers = replace(
        limits, per_pod=_NO_AMOUNT_RULES, per_gpu=_NO_AMOUNT_RULES, passed_checks=BoundedCache(MAX_CACHE_ENTRIES)
    )
    for violation in _resize_violations(of_containers, resize, sections):
        before, after = _container_amount(resize.old, violation.path), _container_amount(resize.new, violation.path)
        if _moves_further_outside(violation.code, before, after):
            yield violation


def _container_amount(pod: Pod, path: FieldPath) -> int:
    """Return the limit, else the request, of the container of a field, nano-units; 0 without a container."""
    for place, container in containers_of_every_kind(pod.spec):
        if place == path[:3]:
            return limit_or_request(container.resources, str(path[-1]))
    return 0


def _moves_further_outside(code: str, before: int, after: int) -> bool:
    """Return True if a violating amount moves further from its limit, or violates it only now."""
    if code == "GPU-L103":
        return after > before
    if code == "GPU-L101":
        return after < before or not before
    return after != before
