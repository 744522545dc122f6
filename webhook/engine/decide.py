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

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec.structs import replace

from webhook.engine.accounting import names_accounting_resource, zero_other_accounting
from webhook.engine.eligibility import has_preset_node, is_mirror_pod
from webhook.engine.evaluate import (
    evaluate_amounts,
    evaluate_gpu_pod,
    evaluate_security,
    evaluate_shared_quotas,
    evaluate_update,
)
from webhook.engine.gpu_requests import PodGpuRequests, gpu_requests_of_pod, sum_gpu_requests
from webhook.engine.limitrange import (
    NO_INJECTED_GPUS,
    InjectedAmount,
    InjectedGpus,
    find_injected_gpus,
    remove_injected_gpus,
)
from webhook.engine.linting import LINTED_KINDS, lint_object, scopes_covering_all_gpus
from webhook.engine.match import MatchResult, match_policies
from webhook.engine.matched_policies import MatchedPolicies, without_additions
from webhook.engine.mutate import mutate_pod
from webhook.engine.mutation import PodMutation
from webhook.engine.patch import build_patch
from webhook.engine.pod_context import PodContext
from webhook.engine.quota import compute_pod_weight
from webhook.engine.rightsize import kept_violation
from webhook.engine.violations import apply_exemptions, merge_duplicates, record_findings
from webhook.engine.workload_review import TemplateDecision, combine_template_decisions, pods_of_workload
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import NOT_REQUESTED, Decision, KeepReason, KeepRequest, OfferChoice, PatchOperation
from webhook.model.enums import PolicyMode
from webhook.model.findings import ExemptedFinding, Finding
from webhook.model.fleet import Fleet
from webhook.model.pods import Pod
from webhook.model.pools import GpuWeight, unit_milli
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet

RECORD_TOO_LARGE = KeepRequest(KeepReason.RECORD_TOO_LARGE)


class AdmissionInput(msgspec.Struct, frozen=True, gc=False):
    """A pod on its way in.

    Attributes:
        given: GPUs that LimitRanges put in.
        rules: What the policies that speak about it say.
    """

    request: AdmissionRequest
    pod: Pod
    gpu_requests: PodGpuRequests
    injected: tuple[InjectedAmount, ...]
    policies: MatchedPolicies
    view: ClusterView
    usage: UsageView


class AdmissionOutcome(msgspec.Struct, frozen=True, gc=False):
    """What becomes of a pod.

    Attributes:
        left: What it asks for, without GPUs that are taken out again.
        shape: None where nothing is said of its amounts and so nothing is changed.
        outcome: What became of its size.
        patch: The operations from the pod to its shape.
    """

    remaining: PodGpuRequests
    mutation: PodMutation | None = None
    outcome: OfferChoice | KeepRequest = NOT_REQUESTED
    patch: tuple[PatchOperation, ...] = ()


EVALUATED_OPERATIONS = ("CREATE", "UPDATE")
EMPTY_DECISION = Decision()


def decide(
    request: AdmissionRequest, policies: PolicySet, view: ClusterView, usage: UsageView, now: datetime
) -> Decision:
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
    counting = [
        scopes for quota in others for scopes in scopes_covering_all_gpus({"spec": msgspec.to_builtins(quota.spec)})
    ]
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
        created = admit_new_pod(
            AdmissionInput(request, pod, asked, given, rules, view, usage), findings, policies.digest
        )
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
    request: AdmissionRequest,
    pod: Pod,
    left: PodGpuRequests,
    shape: PodMutation | None,
    policies: PolicySet,
    view: ClusterView,
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


def admit_new_pod(coming: AdmissionInput, findings: list[Finding], digest: str) -> AdmissionOutcome:
    """Shape a pod and judge the shape; the pod as it came where what would be written finds no room in it.

    Args:
        findings: What is found is added to these.
        digest: Digest of the policy set, for the record.
    """
    coming = _leave_placed_pod(coming) if has_preset_node(coming.pod) else coming
    rules = coming.policies
    if not rules.names or not (coming.gpu_requests.requests or coming.injected or _has_namespace_limits(coming)):
        return AdmissionOutcome(coming.gpu_requests)
    known, shape = len(findings), PodMutation(coming.pod)
    left, outcome = _mutate_and_evaluate(coming, shape, findings)
    patch = build_patch(shape, rules.names, digest)
    if patch is not None:
        return AdmissionOutcome(left, shape, outcome, patch)
    del findings[known:]
    return _evaluate_unchanged(coming, findings, speaker=", ".join(shape.changes_by_policy))


def _leave_placed_pod(coming: AdmissionInput) -> AdmissionInput:
    """A pod that comes with its node: nothing may come between the two.

    Only what it asks for is written, which no kubelet minds: GPUs that a LimitRange put in are taken out, and the rest
    is counted, for no quota is escaped by naming a node. A mirror is left as its node wrote it.
    """
    rules = without_additions(coming.policies)
    return replace(
        coming,
        policies=replace(rules, accounting_policies="", injection_removers="") if is_mirror_pod(coming.pod) else rules,
    )


def _mutate_and_evaluate(
    coming: AdmissionInput, shape: PodMutation, findings: list[Finding]
) -> tuple[PodGpuRequests, OfferChoice | KeepRequest]:
    """Give a pod its shape and judge that. What it still asks for, and what became of its size."""
    request, pod, given, rules, view = coming.request, coming.pod, coming.injected, coming.policies, coming.view
    injected = InjectedGpus(given) if given else NO_INJECTED_GPUS
    if given and rules.injection_removers and not pod.is_stored:
        shape.policy = rules.injection_removers
        injected = remove_injected_gpus(pod, shape, given, view.ranges(request.namespace))
    left = _without_removed(injected, coming.gpu_requests) if injected.removed else coming.gpu_requests
    if left.requests:
        case = PodContext(request, pod, left, rules, view, coming.usage, injected)
        outcome = mutate_pod(case, shape, findings)
        evaluate_gpu_pod(case, shape, findings)
        return left, outcome
    if rules.accounting_policies:
        shape.policy = rules.accounting_policies
        zero_other_accounting(shape, view.ranges(request.namespace))
    evaluate_amounts(request, shape, rules, view, injected, findings)
    return left, NOT_REQUESTED


def _evaluate_unchanged(coming: AdmissionInput, findings: list[Finding], speaker: str) -> AdmissionOutcome:
    """Judge a pod as it came; `speaker` names the policies that would have changed it."""
    request, asked, rules, view = coming.request, coming.gpu_requests, coming.policies, coming.view
    shape, injected = PodMutation(coming.pod), InjectedGpus(coming.injected) if coming.injected else NO_INJECTED_GPUS
    path, fix = ("metadata", "annotations"), "Shorten its annotations; all of them may have 256 KiB together."
    remark = kept_violation(RECORD_TOO_LARGE, path, PolicyMode.WARN, fix)
    record_findings(findings, (PolicyMode.WARN, speaker), (remark,))
    if asked.requests:
        evaluate_gpu_pod(
            PodContext(request, coming.pod, asked, without_additions(rules), view, coming.usage, injected),
            shape,
            findings,
        )
    else:
        evaluate_amounts(request, shape, rules, view, injected, findings)
    return AdmissionOutcome(asked, shape, RECORD_TOO_LARGE)


def _has_namespace_limits(coming: AdmissionInput) -> bool:
    """Is there something to say, or to write, to a pod without GPUs?

    What the namespace's LimitRanges and quotas will say, if some policy speaks for them; and the accounting resource
    is nobody's own to write.
    """
    rules, view, namespace = coming.policies, coming.view, coming.request.namespace
    if not rules.limits:
        return False
    if view.ranges(namespace) or view.quota_room(namespace):
        return True
    return bool(rules.accounting_policies) and names_accounting_resource(coming.pod)


def _without_removed(injected: InjectedGpus, asked: PodGpuRequests) -> PodGpuRequests:
    """What is left to ask for once GPUs that nobody asked for are taken out."""
    asks = tuple([ask for ask in asked.requests if not injected.contains(ask.path, ask.resource.name)])
    return sum_gpu_requests(asks, asked.unknown_resources, asked.errors)


def total_milli(totals: Mapping[str, int], fleet: Fleet) -> int:
    """Thousandths of a whole card that a pod's totals take."""
    return sum([count * unit_milli(name, fleet) for name, count in totals.items()])
