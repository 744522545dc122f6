"""`decide` evaluates one object: the webhook, every command and the audit call it.

A pod passes eight steps, in this order:

1 match     the policies that match the pod
2 guard     violations by bypassing the GPU request, whatever its size
3 demand    the GPU memory and compute the pod needs, and the evidence; or why its request is kept
4 fit       the smallest offer that covers the demand safely, or why the request is kept
5 mutate    the changed pod: offer, tolerations, affinity, spread, topology, default requests, accounting
6 patch     the JSON Patch operations from the pod to the changed pod
7 evaluate  violations of limits, LimitRange, quota, node fit and CUDA by the changed pod
8 settle    findings: the violations in their section's mode, without those that an exemption covers at `now`

On UPDATE a pod keeps its resources: steps 3 to 6 return at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from webhook.engine.demand import estimate_need
from webhook.engine.evaluate import evaluate_pod
from webhook.engine.fit import choose_offer
from webhook.engine.gpu_requests import gpu_requests_of_pod
from webhook.engine.guard import guard_pod
from webhook.engine.limitrange.findings import final_amounts, name_default_sources
from webhook.engine.limitrange.injected_gpus import find_injected_gpus
from webhook.engine.linting import LINTED_KINDS, lint_object
from webhook.engine.linting.quotas import scopes_covering_all_gpus
from webhook.engine.match import match_policies
from webhook.engine.matched_policies import without_changes
from webhook.engine.mutate import kept_finding, mutate_pod
from webhook.engine.mutation import PodMutation, build_patch
from webhook.engine.pod_context import build_context
from webhook.engine.policy_findings import SectionFinding, settle
from webhook.engine.quota.replicas import ReplicaCharge, charge_replicas, count_within_quotas, count_within_shared
from webhook.engine.quota.shared_quotas import compute_quota_charge
from webhook.engine.workload_review import (
    TemplateDecision,
    combine_template_decisions,
    existing_replicas,
    pods_of_workload,
)
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision, KeepReason, KeepRequest
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.model.pools import unit_milli
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet

EVALUATED_OPERATIONS = ("CREATE", "UPDATE")
EMPTY_DECISION = Decision()
RECORD_TOO_LARGE = KeepRequest(KeepReason.RECORD_TOO_LARGE)


def decide(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """Evaluate one object.

    A pod is evaluated and may be changed. A workload with pod templates gets warnings about its future pods, and a
    LimitRange or ResourceQuota gets warnings about its side effects. Other objects and operations give an empty
    decision.

    Args:
        now: Time at which exemptions are evaluated, with a time zone.
    """
    if request.operation not in EVALUATED_OPERATIONS:
        return EMPTY_DECISION
    if request.pod is not None:
        return decide_pod(request, request.pod, policies, view, usage, now)
    if request.kind in LINTED_KINDS and not request.group:
        return _lint_object(request, view)
    decisions: list[TemplateDecision] = []
    for template, pod_request, pod in pods_of_workload(request, policies, view):
        replicas = template.replicas - existing_replicas(request, template, policies)
        decided = decide_replicas(pod_request, pod, replicas, policies, view, usage, now)
        decisions.append(TemplateDecision(template, decided.decision, decided.partial, replicas))
        view = decided.view
    return combine_template_decisions(decisions)


class ReplicaDecision(NamedTuple):
    """The decision about the replicas of a template.

    Attributes:
        decision: About the first of them.
        admitted: How many of them quotas admit; 0 if the first is denied.
        partial: Findings about the first replica that a quota rejects after it admitted some, with their number.
        view: The cluster after the admitted ones were created.
    """

    decision: Decision
    admitted: int
    partial: tuple[tuple[int, Finding], ...]
    view: ClusterView


def decide_replicas(
    request: AdmissionRequest,
    pod: Pod,
    replicas: int,
    policies: PolicySet,
    view: ClusterView,
    usage: UsageView,
    now: datetime,
) -> ReplicaDecision:
    """Run the eight steps for a pod, and charge its replicas to the quotas one after another."""
    decision, mutation = _decide_pod(request, pod, policies, view, usage, now)
    quotas = view.quotas(request.namespace)
    if not quotas and not decision.quota_charge:
        return ReplicaDecision(decision, 0 if decision.denials else replicas, (), view)
    amounts = final_amounts(mutation, view.ranges(request.namespace))
    charge = ReplicaCharge(request.namespace, pod, amounts, decision.quota_charge)
    sections = [one.quotas for one in policies.policies if one.quotas and one.name in decision.policies]
    counts = {
        "GPU-Q301": count_within_quotas(quotas, charge, replicas),
        "GPU-Q303": count_within_shared(sections, charge, view, replicas),
    }
    partial: list[tuple[int, Finding]] = []
    for code, count in counts.items():
        if 0 < count < replicas:
            after = decide_pod(request, pod, policies, charge_replicas(view, charge, count), usage, now)
            partial += [(count, finding) for finding in after.findings if finding.code == code]
    limits = [counts["GPU-Q301"], *(count for count, finding in partial if finding.mode is PolicyMode.ENFORCE)]
    admitted = 0 if decision.denials else min(limits)
    return ReplicaDecision(decision, admitted, tuple(partial), charge_replicas(view, charge, admitted))


def decide_pod(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """Run the eight steps for one pod."""
    return _decide_pod(request, pod, policies, view, usage, now)[0]


def _decide_pod(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> tuple[Decision, PodMutation]:
    created, gpu_requests = request.operation == "CREATE", gpu_requests_of_pod(pod)
    ranges = view.ranges(request.namespace)
    injected = find_injected_gpus(pod, ranges) if created and ranges.gpu_defaults else ()
    # 1 match
    matched = match_policies(request, pod, gpu_requests, injected, policies, view)
    # 2 guard
    bypasses = guard_pod(request, pod, gpu_requests, injected, matched.policies, view)
    context = build_context(request, pod, gpu_requests, injected, matched.policies, view, usage)
    # 3 demand
    need = estimate_need(context)
    # 4 fit
    choice = choose_offer(context, need)
    # 5 mutate
    mutation, additions = mutate_pod(context, choice)
    # 6 patch
    patch = build_patch(mutation, matched.policies.names, policies.digest)
    if patch is None:
        # The decision record does not fit into the annotations: leave the pod unchanged.
        unchanged = without_changes(matched.policies)
        context = build_context(request, pod, gpu_requests, injected, unchanged, view, usage)
        choice, patch, additions = RECORD_TOO_LARGE, (), [_record_too_large(mutation)]
        mutation = PodMutation(pod)
    # 7 evaluate
    charges_shared_quota = bool(
        policies.has_shared_quotas and created and context.gpu_requests.totals and not request.sub_resource
    )
    quota_charge = compute_quota_charge(context.gpu_requests, mutation, view.fleet) if charges_shared_quota else ()
    violations = evaluate_pod(context, mutation, quota_charge)
    # 8 settle
    found = [*matched.failures, *bypasses, *additions, *violations]
    found = name_default_sources(found, mutation, ranges) if found and ranges else found
    findings, exempted = settle(found, policies.exemptions, request, pod, now) if found else ((), ())
    before = after = total_milli(gpu_requests.totals, view.fleet) if gpu_requests.totals else 0
    if mutation.applied_choice is not None:
        after = mutation.applied_choice.gpu_milli
    elif context.gpu_requests is not gpu_requests:
        after = total_milli(context.gpu_requests.totals, view.fleet)
    decision = Decision(
        findings=findings,
        exempted=exempted,
        patch=patch,
        outcome=choice,
        applied=mutation.applied_choice is not None,
        gpu_milli_before=before,
        gpu_milli_after=after,
        requested_units=context.gpu_requests.totals,
        policies=matched.policies.names,
        audit_policies=matched.policies.outside_rollout,
        quota_charge=quota_charge,
        involves_gpus=bool(gpu_requests.requests or gpu_requests.unknown_resources or findings or exempted),
    )
    return decision, mutation


def _record_too_large(mutation: PodMutation) -> SectionFinding:
    """Report, for the policies that would have changed the pod, that its annotations leave no room for the record."""
    path, fix = ("metadata", "annotations"), "Shorten its annotations; the total limit is 256 KiB."
    policy = (PolicyMode.WARN, ", ".join(mutation.changes_by_policy))
    return policy, kept_finding(RECORD_TOO_LARGE, path, PolicyMode.WARN, fix)


def _lint_object(request: AdmissionRequest, view: ClusterView) -> Decision:
    others = [quota for quota in view.quotas(request.namespace) if quota.metadata.name != request.name]
    counting = [
        scopes for quota in others for scopes in scopes_covering_all_gpus({"spec": msgspec.to_builtins(quota.spec)})
    ]
    ranges = [each for each in view.ranges(request.namespace) if each.name != request.name]
    defaults = {name: amount for each in ranges for name, amount in each.default_limits.items()}
    findings = lint_object(request.load_object(), counting, view.classes, defaults)
    return Decision(findings=tuple(findings), involves_gpus=bool(findings))


def total_milli(totals: Mapping[str, int], fleet: Fleet) -> int:
    """Return the thousandths of a whole GPU that a pod's totals take."""
    return sum([count * unit_milli(name, fleet) for name, count in totals.items()])
