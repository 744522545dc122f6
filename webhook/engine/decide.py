"""`decide` evaluates one object: the webhook, every command and the audit call it.

A pod passes eight steps, in this order:

1 match     the policies that match the pod, and its context: what it requests, and where it may run
2 guard     violations by bypassing the GPU request, whatever its size
3 demand    the GPU memory and compute the pod needs, and the evidence; or why its request is kept
4 fit       the smallest offer that covers the demand safely, or why the request is kept; it predicts whether
            steps 1, 5 and 7 would accept the offer
5 mutate    the changed pod: without injected GPUs, with the offer and its memory fractions, tolerations, affinity,
            spread, labels, runtime class, topology, default requests and accounting
6 patch     the JSON Patch operations from the pod to the changed pod
7 evaluate  violations of limits, LimitRange, quota, node fit and CUDA by the changed pod
            (what any step found about an amount that a LimitRange sets by default then names that LimitRange)
8 settle    findings: the violations in their section's mode, without those that an exemption covers at `now`

On UPDATE a pod keeps its resources: steps 3 to 6 return at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import chain

import msgspec

from webhook.engine.claim_review import CLAIM_GROUP, review_claim
from webhook.engine.demand import estimate_need
from webhook.engine.evaluate import evaluate_pod
from webhook.engine.fit import choose_offer
from webhook.engine.guard import guard_pod
from webhook.engine.limitrange.findings import name_default_sources
from webhook.engine.linting import LINTED_KINDS, lint_object
from webhook.engine.linting.quotas import scopes_covering_all_gpus
from webhook.engine.match import context_without_changes, match_policies
from webhook.engine.mutate import mutate_pod
from webhook.engine.own_annotations import misplaced_annotations
from webhook.engine.patch import build_patch
from webhook.engine.pod_context import PodDecision, PodMutation
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.engine.projected_pod import pending_use_of
from webhook.engine.queued_templates import (
    WorkloadQueueState,
    build_template_patch,
    is_cron_job,
    queue_of_workload,
    reason_to_keep_all,
    with_earlier_pods,
)
from webhook.engine.settle import settle
from webhook.engine.workload_review import (
    ReplicaDecision,
    ReplicaReview,
    TemplateDecision,
    combine_template_decisions,
    existing_replicas,
    pods_of_workload,
)
from webhook.model.admission import AdmissionRequest
from webhook.model.claims import CLAIM_KINDS
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import NO_USE, Decision, GpuNeed, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import PolicyMode
from webhook.model.pods import Pod
from webhook.model.pools import total_milli
from webhook.model.usage import UsageView
from webhook.model.volcano_queues import UnknownQueue, VolcanoJobQueue
from webhook.policy.policy_set import PolicySet

EVALUATED_OPERATIONS = ("CREATE", "UPDATE")
EMPTY_DECISION = Decision()
RECORD_TOO_LARGE = KeepRequest(KeepReason.RECORD_TOO_LARGE)
CHANGE_CODES = frozenset({"GPU-I101", "GPU-R101"})
"""Findings that report a change; a pod that stays unchanged gets none of them."""


def decide(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """Evaluate one object.

    A pod is evaluated and may be changed. A workload with pod templates gets warnings about its future pods, and a
    LimitRange or ResourceQuota gets warnings about its side effects, as does a new resource claim or template about
    devices. Other objects and operations give an empty decision.

    Args:
        now: Time at which exemptions are evaluated, with a time zone.
    """
    if request.operation not in EVALUATED_OPERATIONS:
        return EMPTY_DECISION
    if request.pod is not None:
        return decide_pod(request, request.pod, policies, view, usage, now).decision
    if request.kind in LINTED_KINDS and not request.group:
        return _lint_object(request, view)
    if request.kind in CLAIM_KINDS and request.group == CLAIM_GROUP:
        return review_claim(request, policies, view) if request.operation == "CREATE" else EMPTY_DECISION
    return _decide_workload(request, policies, view, usage, now)


def decide_pod(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> PodDecision:
    """Run the eight steps for one pod."""
    context, condition_failures = match_policies(request, pod, policies, view, usage)
    bypasses = guard_pod(context)  # of the pod as submitted, with injected GPUs
    need = estimate_need(context)
    choice = choose_offer(context, need) if isinstance(need, GpuNeed) else need
    mutation, mutation_findings = mutate_pod(context, choice)
    patch = build_patch(mutation, context.policies.names, policies.digest)
    if patch is None:
        # The decision record does not fit into the annotations: steps 1 and 5 are repeated without changes.
        context, patch = context_without_changes(context), ()
        choice = RECORD_TOO_LARGE if isinstance(choice, OfferChoice) else choice
        kept = [(policy, each) for policy, each in mutation_findings if each.code not in CHANGE_CODES]
        mutation, mutation_findings = PodMutation(pod), [*kept, _record_too_large(mutation)]
    violations, quota_charge = evaluate_pod(context, mutation)
    reported: Sequence[SectionFinding] = [*condition_failures, *bypasses, *mutation_findings, *violations]
    ranges = context.namespace.ranges
    if not ranges.default_names.isdisjoint([each.path[-1] for _, each in reported if each.path]):
        reported = name_default_sources(reported, mutation, ranges, request)
    findings, exempted = settle(reported, policies.exemptions, request, pod, now)

    fleet, submitted, applied = view.fleet, context.submitted_requests, mutation.applied_choice
    milli = total_milli(context.gpu_requests.totals, fleet)
    # The context counts the submitted requests too, unless injected GPUs were removed.
    submitted_milli = milli if context.gpu_requests is submitted else total_milli(submitted.totals, fleet)
    decision = Decision(
        findings=findings,
        exempted=exempted,
        patch=patch,
        outcome=choice,
        applied=applied is not None,
        needed_mib=need.memory_mib if isinstance(need, GpuNeed) else 0,
        gpu_milli_before=submitted_milli,
        gpu_milli_after=milli if applied is None else applied.gpu_milli,
        requested_units=context.gpu_requests.totals,
        policies=context.policies.names,
        audit_policies=context.policies.outside_rollout,
        quota_charge=quota_charge.weight,
        shared_charges=quota_charge.shared,
        pending_use=pending_use_of(context, mutation) if context.gpu_requests.totals or view.classes else NO_USE,
        involves_gpus=bool(
            submitted.requests or submitted.unknown_resources or context.claimed.units or findings or exempted
        ),
    )
    return PodDecision(decision, mutation)


def _record_too_large(mutation: PodMutation) -> SectionFinding:
    """Report, for the policies that would have changed the pod, that its annotations leave no room for the record."""
    message = f"not changed: {RECORD_TOO_LARGE}"
    reason = RECORD_TOO_LARGE.reason
    path = ("metadata", "annotations")
    finding = PolicyFinding("GPU-R103", path, message, reason.fix, PolicyMode.WARN, reason.value)
    return (PolicyMode.WARN, ", ".join(mutation.changes_by_policy)), finding


def _decide_workload(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """Decide about the pods of a workload's templates, and change templates that no queue has charged yet."""
    queue = queue_of_workload(request, policies, view)
    decisions = _decide_templates(request, policies, view, usage, now, queue)
    misplaced = misplaced_annotations(request.load_object(), (each.template for each in decisions)) if decisions else []
    if queue is None or isinstance(queue, UnknownQueue) or queue.kept is not None:
        return combine_template_decisions(decisions, misplaced)
    kept = reason_to_keep_all([(each.template, each.decision) for each in decisions], queue)
    if kept is not None:
        queue = msgspec.structs.replace(queue, kept=kept)
        return combine_template_decisions(_decide_templates(request, policies, view, usage, now, queue), misplaced)
    if is_cron_job(request):
        return combine_template_decisions(decisions, misplaced)
    limited = view.limited_resources(request.namespace)
    patches = (build_template_patch(each.template, each.decision, policies.digest, limited) for each in decisions)
    return combine_template_decisions(decisions, misplaced, tuple(chain.from_iterable(patches)))


def _decide_templates(
    request: AdmissionRequest,
    policies: PolicySet,
    view: ClusterView,
    usage: UsageView,
    now: datetime,
    queue: WorkloadQueueState,
) -> list[TemplateDecision]:
    """Decide about the pods of each template, in order: those before use up quotas and what is free.

    Volcano starts the pods of all templates together, so its check counts them all.
    """
    decisions: list[TemplateDecision] = []
    before: ReplicaDecision | None = None
    existing, units = existing_replicas(request, policies, view.fleet), Counter[str]()
    for template, written, pod in pods_of_workload(request, policies, view, queue):
        if before is not None:
            view = before.charge(view)
            view = view if isinstance(queue, VolcanoJobQueue) else before.assume(view)
        pod_request = with_earlier_pods(written, units)
        replicas = max(0, template.replicas - existing.get(template.path, 0))
        before = decided = decide_replicas(pod_request, pod, replicas, policies, view, usage, now)
        decisions.append(TemplateDecision(template, decided, replicas))
        if isinstance(decided.decision.outcome, OfferChoice):
            units[decided.decision.outcome.resource] += replicas
    return decisions


def decide_replicas(
    request: AdmissionRequest,
    pod: Pod,
    replicas: int,
    policies: PolicySet,
    view: ClusterView,
    usage: UsageView,
    now: datetime,
) -> ReplicaDecision:
    """Run the eight steps for a pod, and for its replicas as far as they get something else."""

    def decide_one(each: ClusterView) -> PodDecision:
        # With the first, the nodes for all of them are counted.
        counted = request if each is view else msgspec.structs.replace(request, replicas=1)
        return decide_pod(counted, pod, policies, each, usage, now)

    return ReplicaReview(decide_one, request, pod, policies, view, replicas).decide()


def _lint_object(request: AdmissionRequest, view: ClusterView) -> Decision:
    others = [quota for quota in view.quotas(request.namespace) if quota.metadata.name != request.name]
    counting = [
        scopes for quota in others for scopes in scopes_covering_all_gpus({"spec": msgspec.to_builtins(quota.spec)})
    ]
    ranges = [each for each in view.ranges(request.namespace) if each.name != request.name]
    defaults = {name: amount for each in ranges for name, amount in each.default_limits.items()}
    findings = lint_object(request.load_object(), counting, view.classes, defaults)
    return Decision(findings=tuple(findings), involves_gpus=bool(findings))
