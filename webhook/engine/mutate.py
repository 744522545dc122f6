"""Step 5, mutate: the changed pod, by the chosen offer, hints, topology, default requests and accounting."""

from __future__ import annotations

from webhook.engine.accounting import write_accounting, zero_remaining_accounting
from webhook.engine.declared_need import invalid_keep_annotation
from webhook.engine.injection import apply_injection
from webhook.engine.matched_policies import CombinedRightSizing
from webhook.engine.mutation import PodMutation
from webhook.engine.pod_context import GpuPodContext, PodContext
from webhook.engine.projected_pod import default_requests, fits_with_defaults
from webhook.engine.rightsize import apply_choice, right_sizing_violation
from webhook.engine.topology import add_nvlink_affinity
from webhook.engine.violations import PolicyRef, PolicyViolation
from webhook.model.decisions import KeepRequest, OfferChoice
from webhook.model.enums import PolicyMode

INJECTED_GPUS_CHANGE = "injected GPUs"
"""Recorded where injected GPUs are removed."""


def mutate_pod(context: PodContext, choice: OfferChoice | KeepRequest) -> tuple[PodMutation, list[PolicyViolation]]:
    """Return the changed pod, and what was or could not be added.

    Sections that are not enforced change a copy that is discarded; only their violations are kept.
    """
    mutation, policies = PodMutation(context.pod), context.policies
    if context.request.operation != "CREATE":
        return mutation, []
    if context.limit_range_gpus.removed:
        mutation.policy = policies.limit_range_gpu_policies
        mutation.limits.update(context.limit_range_gpus.limits)
        mutation.requests.update(context.limit_range_gpus.requests)
        mutation.record_change(INJECTED_GPUS_CHANGE)
    if isinstance(context, GpuPodContext):
        return mutation, _mutate_gpu_pod(context, choice, mutation)
    if policies.accounting_policies:
        mutation.policy = policies.accounting_policies
        zero_remaining_accounting(mutation, context.view.ranges(context.request.namespace))
    return mutation, []


def _mutate_gpu_pod(
    context: GpuPodContext, choice: OfferChoice | KeepRequest, mutation: PodMutation
) -> list[PolicyViolation]:
    policies = context.policies
    violations = _apply_right_sizing(context, policies.right_sizing, choice, mutation) if policies.right_sizing else []
    for policy_ref, injection in policies.injections:
        target = _mutation_for_section(policy_ref, mutation)
        if found := apply_injection(injection, target, context):
            violations += [(policy_ref, each) for each in found]
    for policy_ref, topology in policies.topologies:
        target = _mutation_for_section(policy_ref, mutation)
        if found := add_nvlink_affinity(topology, target, context):
            violations += [(policy_ref, each) for each in found]
    if policies.defaults and (
        mutation.applied_choice is not None or fits_with_defaults(context, mutation.required_node_affinity)
    ):
        _add_default_requests(context, mutation)
    if policies.accounting_policies:
        mutation.policy = policies.accounting_policies
        write_accounting(context, mutation)
    return violations


def _mutation_for_section(policy_ref: PolicyRef, mutation: PodMutation) -> PodMutation:
    """Return the mutation in the name of an enforced policy, or one to discard."""
    if policy_ref[0] is not PolicyMode.ENFORCE:
        return PodMutation(mutation.pod)
    mutation.policy = policy_ref[1]
    return mutation


def _apply_right_sizing(
    context: GpuPodContext,
    right_sizing: CombinedRightSizing,
    choice: OfferChoice | KeepRequest,
    mutation: PodMutation,
) -> list[PolicyViolation]:
    mode, declared = right_sizing.rule.mode, context.declared_need
    policy_ref = (mode, right_sizing.policy)
    if isinstance(choice, OfferChoice) and mode is PolicyMode.ENFORCE:
        mutation.policy = choice.policy
        apply_choice(choice, context, mutation)
    violations: list[PolicyViolation] = []
    if context.pod.metadata.annotations:
        violations += [(policy_ref, each) for each in (*declared.errors, *invalid_keep_annotation(context.pod))]
    report = right_sizing_violation(choice, mode, context.gpu_requests, declared=declared.memory_mib is not None)
    if report is not None:
        violations.append((policy_ref, report))
    return violations


def _add_default_requests(context: GpuPodContext, mutation: PodMutation) -> None:
    requests = {one.path: one for one in context.gpu_requests.requests}
    for policy, limits in context.policies.defaults:
        mutation.policy = policy
        for index, defaults in default_requests(context, (limits,)).items():
            path = ("spec", "containers", index)
            _, present = mutation.resources_of(requests[path])
            mutation.requests[path] = {**defaults, **present}
            mutation.record_change("requests")
