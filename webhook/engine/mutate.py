"""Step 5, mutate: the changed pod, by the chosen offer, hints, topology, default requests and accounting."""

from __future__ import annotations

from collections.abc import Collection

from webhook.engine.accounting import write_accounting
from webhook.engine.class_fit import explain_request_by_class
from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.injection import apply_injection, inject_for_claims, is_already_required
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.pod_context import GpuPodContext, PodContext, PodMutation
from webhook.engine.policy_findings import PolicyFinding, PolicyRef, SectionFinding
from webhook.engine.projected_pod import default_requests, fits_with_defaults
from webhook.engine.topology import add_nvlink_affinity
from webhook.model.bounded_cache import request_cache
from webhook.model.decisions import NEEDS_NODES, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import IsolationLevel, PolicyMode
from webhook.model.field_paths import FieldPath
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.offers import GpuOffer, device_of_class
from webhook.model.pods import NodeSelectorRequirement, QuantityText

ContainerResources = dict[FieldPath, dict[str, QuantityText]]
"""Limits or requests by container path."""

REPORTED_REASONS = NEEDS_NODES | {
    KeepReason.OPTED_OUT,
    KeepReason.LIMIT_RANGE,
    KeepReason.QUOTA_NOT_COVERING,
    KeepReason.QUOTA_EXCEEDED,
    KeepReason.LIMITS,
    KeepReason.NEW_POLICY,
    KeepReason.SHARED_PROCESSES,
    KeepReason.DRIVER,
    KeepReason.GRAPHICS,
    KeepReason.NO_MEMORY_LIMIT,
    KeepReason.MEMORY_FRACTION,
    KeepReason.QUEUE_NOT_FOUND,
    KeepReason.WORKLOAD_EXISTS,
    KeepReason.NOT_ADMITTED,
    KeepReason.NO_FLAVOR_NODES,
    KeepReason.QUEUE_QUOTA_IN_USE,
    KeepReason.RUNS_ELSEWHERE,
    KeepReason.OTHER_POD_SET,
}
"""Reasons reported even without a declared need: the pod opts out, or there is evidence and something prevents it."""

_ISOLATION_NOTES = {
    IsolationLevel.HARDWARE: "",
    IsolationLevel.MEMORY: "; there is no fault isolation from other pods on the GPU",
    IsolationLevel.NONE: "; there is no memory or fault isolation from other pods on the GPU",
}
"""The isolation that a share gives up."""


INJECTED_GPUS_CHANGE = "injected GPUs"
"""Recorded where injected GPUs are removed."""


def mutate_pod(context: PodContext, choice: OfferChoice | KeepRequest) -> tuple[PodMutation, list[SectionFinding]]:
    """Return the changes of a pod, and findings about what was or could not be added.

    Sections that are not enforced change a copy that is discarded; only their violations are kept.
    """
    mutation, policies = PodMutation(context.pod), context.policies
    violations: list[SectionFinding] = []
    if context.request.operation != "CREATE":
        return mutation, violations
    if context.limit_range_gpus.removed:
        mutation.policy = policies.limit_range_gpu_policies
        mutation.limits.update(context.limit_range_gpus.limits)
        mutation.requests.update(context.limit_range_gpus.requests)
        mutation.record_change(INJECTED_GPUS_CHANGE)
    if isinstance(context, GpuPodContext):
        if policies.right_sizing is not None:
            violations += _apply_right_sizing(context, policies.right_sizing, choice, mutation)
        for policy_ref, injection in policies.injections:
            added = apply_injection(injection, _target_of(policy_ref, mutation), context)
            violations += [(policy_ref, each) for each in added]
        for policy_ref, topology in policies.topologies:
            if context.gpu_requests.max_count >= topology.when_gpus_at_least:
                added = add_nvlink_affinity(topology, _target_of(policy_ref, mutation), context)
                violations += [(policy_ref, each) for each in added]
        if policies.defaults and (
            mutation.applied_choice is not None or fits_with_defaults(context, mutation.required_node_affinity)
        ):
            _add_default_requests(context, mutation)
    elif context.claimed.units:
        violations += explain_request_by_class(context, choice)
        for policy_ref, injection in policies.injections:
            added = inject_for_claims(injection, _target_of(policy_ref, mutation), context)
            violations += [(policy_ref, each) for each in added]
    if policies.accounting_policies:
        mutation.policy = policies.accounting_policies
        write_accounting(context, mutation)
    return mutation, violations


def _target_of(policy_ref: PolicyRef, mutation: PodMutation) -> PodMutation:
    """Return what a section of a policy changes: the pod if it is enforced, else a copy that is discarded."""
    mode, policy = policy_ref
    target = mutation if mode is PolicyMode.ENFORCE else PodMutation(mutation.pod)
    target.policy = policy
    return target


def _apply_right_sizing(
    context: GpuPodContext,
    right_sizing: CombinedRightSizing,
    choice: OfferChoice | KeepRequest,
    mutation: PodMutation,
) -> list[SectionFinding]:
    """Write a chosen offer if right-sizing is enforced; report the outcome and annotations that cannot be parsed."""
    mode, declared = right_sizing.rule.mode, context.declared_need
    if isinstance(choice, OfferChoice) and mode is PolicyMode.ENFORCE:
        mutation.policy = choice.policy
        apply_choice(choice, context.gpu_requests, mutation, context.namespace.limited_resources)
    findings = list(declared.errors)
    first = context.gpu_requests.requests[0]
    side = "limits" if first.resource.name in first.container.resources.limits else "requests"
    path = (*first.path, "resources", side, first.resource.name)
    if isinstance(choice, OfferChoice):
        findings.append(_choice_finding(choice, mode, path))
    elif (reason := choice.reason) in REPORTED_REASONS or (
        declared.memory_mib is not None and reason is not KeepReason.NO_WHOLE_GPU
    ):
        at_most = PolicyMode.AUDIT if reason is KeepReason.OPTED_OUT else PolicyMode.WARN
        message = f"not right-sized: {choice}"
        findings.append(PolicyFinding("GPU-R103", path, message, reason.fix, at_most, reason.value))
    return [((mode, right_sizing.policy), each) for each in findings]


def _add_default_requests(context: GpuPodContext, mutation: PodMutation) -> None:
    for policy, limits in context.policies.defaults:
        mutation.policy = policy
        for index, defaults in default_requests(context, (limits,)).items():
            path = ("spec", "containers", index)
            _, present = mutation.resources_at(path)
            mutation.requests[path] = {**defaults, **present}
            mutation.record_change("requests")


def apply_choice(
    choice: OfferChoice, gpu_requests: PodGpuRequests, mutation: PodMutation, limited: Collection[str]
) -> None:
    """Write a chosen offer into the mutation.

    Args:
        limited: The resources that LimitRanges of the namespace name.
    """
    if choice.resource != WHOLE_GPU:
        for one in gpu_requests.requests:
            resources = one.container.resources
            sides = {"limits": resources.limits, "requests": resources.requests}
            mutation.original_resources[one.container.name] = {
                side: {WHOLE_GPU: amounts[WHOLE_GPU]} for side, amounts in sides.items() if WHOLE_GPU in amounts
            }
        limits, requests = substitute_resource(gpu_requests, choice.resource, zero=WHOLE_GPU in limited)
        mutation.limits |= limits
        mutation.requests |= requests
        mutation.record_change("resources")
    if choice.fraction_changes:
        mutation.record_change("memoryFraction")
    missing = [one for one in offer_affinity(choice.offers) if not is_already_required(mutation.pod, one)]
    if missing:
        mutation.required_node_affinity += missing
        mutation.record_change("nodeAffinity")
    mutation.applied_choice = choice


def _choice_finding(choice: OfferChoice, mode: PolicyMode, path: FieldPath) -> PolicyFinding:
    note = _ISOLATION_NOTES[min([offer.isolation for offer in choice.offers])]
    device = device_of_class(choice.offers[0])
    share = f"{choice.gpu_milli / 1000:.2g} of a GPU"
    size = f"{choice.resource} ({device}, {share})" if device else f"{choice.resource} ({share})"
    fractions = "".join(f"; {each.setting} is {each.after}" for each in choice.fraction_changes)
    growth = f"; none is free, node group {choice.group} grows for it" if choice.group else ""
    new_request = f"right-sized to {size}; need: {choice.need.words}{note}{fractions}{growth}"
    if mode is PolicyMode.ENFORCE:
        fix = 'To keep a whole GPU, annotate the pod with rightslice.dev/keep: "true".'
        return PolicyFinding("GPU-R101", path, new_request, fix, at_most=PolicyMode.WARN)
    fix = 'To keep a whole GPU once this is enforced, annotate the pod with rightslice.dev/keep: "true".'
    return PolicyFinding("GPU-R102", path, f"would be {new_request}; not changed", fix, at_most=PolicyMode.WARN)


def offer_affinity(offers: tuple[GpuOffer, ...]) -> tuple[NodeSelectorRequirement, ...]:
    """Return node affinity expressions that select these offers and no other size of the same resource name.

    A resource name alone can stand for several sizes: `mig-1g.10gb` is a quarter of an A100-40GB's memory and an eighth
    of an A100-80GB's.
    """
    return _selector_requirements(tuple([offer.selector for offer in offers]))


@request_cache(1024)
def _selector_requirements(selectors: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[NodeSelectorRequirement, ...]:
    values: dict[str, dict[str, None]] = {}
    for selector in selectors:
        for key, value in selector:
            values.setdefault(key, {})[value] = None
    return tuple(NodeSelectorRequirement(key, "In", tuple(accepted)) for key, accepted in values.items())


def substitute_resource(
    gpu_requests: PodGpuRequests, resource: str, *, zero: bool
) -> tuple[ContainerResources, ContainerResources]:
    """Return limits and requests of every requesting container with `resource` instead of whole GPUs.

    Args:
        zero: Keep the old key as "0", where a LimitRange names it: without the key, its default would be injected.
    """
    limits: ContainerResources = {}
    requests: ContainerResources = {}
    for one in gpu_requests.requests:
        resources = one.container.resources
        limits[one.path] = _substitute_amounts(resources.limits, resource, zero=zero)
        if WHOLE_GPU in resources.requests or resource in resources.requests:
            requests[one.path] = _substitute_amounts(resources.requests, resource, zero=zero)
    return limits, requests


def _substitute_amounts(side: dict[str, QuantityText], resource: str, *, zero: bool) -> dict[str, QuantityText]:
    amounts: dict[str, QuantityText] = {}
    for name, amount in side.items():
        if name == WHOLE_GPU:
            if zero:
                amounts[WHOLE_GPU] = "0"
            amounts[resource] = "1"
        elif name != resource:  # a LimitRange may have written "0" there
            amounts[name] = amount
    return amounts
