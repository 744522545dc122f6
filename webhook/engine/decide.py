"""`decide`: one object in, everything it comes to out. Every face of the product calls this and nothing else.

1 match    which policies speak about this pod; which exceptions hold at `now`
2 guard    what is refused whatever the size
3 demand   what each container needs, and on what evidence
4 fit      the least offer that covers it, safely; or keep, with the reason
5 judge    limits, LimitRange, quota, node fit, CUDA
6 hints    tolerations, affinity, spread, topology
7 settle   each section's mode: enforce, warn, audit
8 patch    the few operations from the pod to its shape
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from webhook.engine.asking import PodGpuRequests, gpu_requests_of_pod
from webhook.engine.creating import AdmissionInput, AdmissionOutcome, admit_new_pod
from webhook.engine.judge import evaluate_shared_quotas, evaluate_security, evaluate_update
from webhook.engine.limitrange import InjectedAmount, find_injected_gpus
from webhook.engine.linting import LINTED_KINDS, lint_object, scopes_covering_all_gpus
from webhook.engine.match import MatchResult, match_policies
from webhook.engine.pricing import total_milli
from webhook.engine.quota import compute_pod_weight
from webhook.engine.settle import record_findings, merge_duplicates, apply_exemptions
from webhook.engine.shape import PodMutation
from webhook.engine.workloads import TemplateDecision, pods_of_workload, combine_template_decisions
from webhook.model.cluster import ClusterView
from webhook.model.decisions import Decision
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.pods import Pod
from webhook.model.pools import GpuWeight
from webhook.model.requests import AdmissionRequest
from webhook.model.usage import UsageView
from webhook.policy.compiled import PolicySet

EVALUATED_OPERATIONS = ("CREATE", "UPDATE")
EMPTY_DECISION = Decision()


def decide(request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime) -> Decision:
    """Judge and shape one object.

    A pod is judged and shaped. A workload with pod templates is told what will happen to its pods, and an admin
    what a LimitRange or a quota does besides what it says, in warnings only. Anything else, and every other
    operation, comes to nothing.

    Args:
        now: The moment at which exemptions are looked at; aware of its zone.
    """
    if request.operation not in EVALUATED_OPERATIONS:
        return EMPTY_DECISION
    if request.pod is not None:
        return decide_pod(request, request.pod, policies, view, usage, now)
    if request.kind in LINTED_KINDS and not request.group:
        return _lint_object(request, view)
    judged = [
        TemplateDecision(template, decide_pod(of_template, pod, policies, view, usage, now))
        for template, of_template, pod in pods_of_workload(request, policies, view)
    ]
    return combine_template_decisions(judged)


def _lint_object(request: AdmissionRequest, view: ClusterView) -> Decision:
    """Traps in a LimitRange or a quota, for the admin who applies it: warnings only."""
    others = [quota for quota in view.quotas(request.namespace) if quota.metadata.name != request.name]
    counting = [scopes for quota in others for scopes in scopes_covering_all_gpus({"spec": msgspec.to_builtins(quota.spec)})]
    ranges = [each for each in view.ranges(request.namespace) if each.name != request.name]
    given = {name: amount for each in ranges for name, amount in each.default_limits.items()}
    findings = lint_object(request.load_object(), counting, view.classes, given)
    return Decision(findings=tuple(findings), involves_gpus=bool(findings))


def decide_pod(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
    """The eight steps, for one pod."""
    asked, given = gpu_requests_of_pod(pod), _injected_gpus(request, pod, view)
    # 1 match
    speaking = match_policies(request, pod, asked, policies, view, [one.resource for one in given] if given else ())
    rules, findings = speaking.policies, _condition_findings(speaking) if speaking.failures else []
    # 2 guard
    evaluate_security(request, pod, asked, given, rules, view, findings)
    # 3 demand, 4 fit, 5 judge, 6 hints, 8 patch: of a pod on its way in; one that is stored keeps its shape
    if request.operation == "CREATE":
        created = admit_new_pod(AdmissionInput(request, pod, asked, given, rules, view, usage), findings, policies.digest)
    else:
        created = AdmissionOutcome(asked)
        evaluate_update(request, pod, asked, rules, view, findings)
    left, shape = created.remaining, created.mutation
    weight = _pool_weight(request, pod, left, shape, policies, view)
    if weight and rules.quotas:
        evaluate_shared_quotas(request, pod, weight, rules, view, findings)
    # 7 settle
    standing, exempted = _settle_findings(findings, policies, request, pod, now)
    before = total_milli(asked.totals, view.fleet)
    unsized = before if left is asked else total_milli(left.totals, view.fleet)
    return Decision(
        findings=standing,
        exempted=exempted,
        patch=created.patch,
        outcome=created.outcome,
        applied=shape is not None and shape.fit is not None,
        gpu_milli_before=before,
        gpu_milli_after=_gpu_milli_after(shape, unsized),
        remaining_units=left.totals,
        policies=rules.names,
        audit_policies=rules.outside_rollout,
        weight=weight,
        involves_gpus=bool(asked.requests or asked.unknown_resources or standing or exempted),
    )


def _injected_gpus(request: AdmissionRequest, pod: Pod, view: ClusterView) -> tuple[InjectedAmount, ...]:
    """GPUs that LimitRanges put into a pod on its way in."""
    return find_injected_gpus(pod, view.ranges(request.namespace)) if request.operation == "CREATE" else ()


def _pool_weight(
    request: AdmissionRequest, pod: Pod, left: PodGpuRequests, shape: PodMutation | None, policies: PolicySet, view: ClusterView
) -> GpuWeight:
    """What a new pod weighs, also where no policy speaks about it: its namespace may share a quota all the same."""
    if not policies.has_shared_quotas or not left.totals or request.operation != "CREATE" or request.sub_resource:
        return ()
    return compute_pod_weight(pod, left, shape, view.fleet)


def _condition_findings(speaking: MatchResult) -> list[Finding]:
    """The first findings: what went wrong while the policies were asked."""
    findings: list[Finding] = []
    for voice, failure in speaking.failures:
        record_findings(findings, voice, (failure,))
    return findings


def _settle_findings(
    findings: list[Finding], policies: PolicySet, request: AdmissionRequest, pod: Pod, now: datetime
) -> tuple[tuple[Finding, ...], tuple[ExemptedFinding, ...]]:
    if not findings:
        return (), ()
    standing, exempted = apply_exemptions(findings, policies.exemptions, request, pod, now)
    return (merge_duplicates(standing) if len(standing) > 1 else standing), exempted


def _gpu_milli_after(shape: PodMutation | None, unsized: int) -> int:
    return unsized if shape is None or shape.fit is None else shape.fit.gpu_milli
