"""Steps 3 to 6 and 8 for a pod on its way in: its shape, what speaks against the pod in that shape, and the patch.

A pod that is stored already keeps its shape; nothing here is asked about it.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from webhook.engine.accounting import zero_other_accounting, names_accounting_resource
from webhook.engine.asking import PodGpuRequests, sum_gpu_requests
from webhook.engine.case import PodContext
from webhook.engine.judge import evaluate_gpu_pod, evaluate_amounts
from webhook.engine.limitrange import NO_INJECTED_GPUS, InjectedAmount, InjectedGpus, remove_injected_gpus
from webhook.engine.patch import build_patch
from webhook.engine.remarks import Violation
from webhook.engine.rules import MatchedPolicies, without_additions
from webhook.engine.settle import record_findings
from webhook.engine.shape import PodMutation
from webhook.engine.shaping import NOT_REQUESTED, mutate_pod
from webhook.engine.staying import is_mirror_pod, has_preset_node
from webhook.model.cluster import ClusterView
from webhook.model.decisions import OfferChoice, KeepRequest, PatchOperation, KeepReason
from webhook.model.findings import Finding
from webhook.model.modes import PolicyMode
from webhook.model.pods import Pod
from webhook.model.requests import AdmissionRequest
from webhook.model.usage import UsageView

RECORD_TOO_LARGE = KeepRequest(KeepReason.NO_ROOM)


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
    return replace(coming, policies=replace(rules, accounting_policies="", injection_removers="") if is_mirror_pod(coming.pod) else rules)


def _mutate_and_evaluate(coming: AdmissionInput, shape: PodMutation, findings: list[Finding]) -> tuple[PodGpuRequests, OfferChoice | KeepRequest]:
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
    record_findings(findings, (PolicyMode.WARN, speaker), (Violation("GPU-R103", path, f"stays as it is: {RECORD_TOO_LARGE}", fix),))
    if asked.requests:
        evaluate_gpu_pod(PodContext(request, coming.pod, asked, without_additions(rules), view, coming.usage, injected), shape, findings)
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
