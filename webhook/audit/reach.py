"""Finds out whether a pod that keeps its GPUs could use a smaller one: by a policy without restrictions.

That policy right-sizes everywhere, to hardware-isolated slices that are free now. The pod is evaluated without signs of
a queue, without scheduling gates and without the annotation that opts it out.

A pod of a workload under Kueue counts as its template would if the workload were created again: the reason is that of
its queue, if that would not admit slices either.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import msgspec

from webhook.audit.evaluate import EvaluationContext, build_admission_request
from webhook.engine.decide import decide
from webhook.engine.demand import charging_system_of_pod
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import KEEP_ANNOTATION
from webhook.model.batch import KUEUE, QUEUEING_PREFIXES, gang_sign
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import DENIED, NO_OFFER_REASONS, Decision, KeepReason, KeepRequest, OfferChoice
from webhook.model.enums import GpuForm
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.node_masks import union_masks
from webhook.model.pods import Pod
from webhook.model.queues import POD_QUEUE_LABEL, QUEUE_NAME_LABEL
from webhook.model.volcano_queues import QueuedPodSet
from webhook.policy.loader import load_policies
from webhook.policy.policy_set import PolicySet
from webhook.report.results import PodReach

UNRESTRICTED_POLICY = """
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: unrestricted}
spec:
  mode: enforce
  rightSizing: {isolation: hardware, forms: [mig], whenFull: keep, memoryFraction: patch, templates: enforce}
  injection: {tolerations: auto}
"""

INHERENT_REASONS = frozenset(
    {
        KeepReason.NO_GPU_REQUEST,
        KeepReason.UNKNOWN_CLAIM,
        KeepReason.NO_WHOLE_GPU,
        KeepReason.MULTIPLE_GPUS,
        KeepReason.GANG_MEMBER,
        KeepReason.MIXED_RESOURCES,
        KeepReason.DAEMON_SET,
        KeepReason.MIRROR,
        KeepReason.RESOURCE_CLAIMS,
        KeepReason.INVALID_AMOUNT,
        KeepReason.INJECTED,
    }
)
"""Reasons in the pod itself, which no policy changes."""

NO_SLICE_REASONS = NO_OFFER_REASONS | {KeepReason.NO_FREE_CAPACITY}
"""Reasons that other partitions would change."""


class ReachDecision(NamedTuple):
    """Whether a pod could use a smaller GPU, and that GPU.

    Attributes:
        reach: None for a pod without GPUs.
        choice: None if it is not eligible.
    """

    reach: PodReach | None
    choice: OfferChoice | None = None


def reach_of_pod(
    request: AdmissionRequest, decision: Decision, allocated_milli: int, context: EvaluationContext
) -> ReachDecision:
    """Return whether a pod could use a smaller GPU, and why it keeps its own.

    Args:
        request: The pod, as it would be created again.
        decision: About it under the policies of the context.
        allocated_milli: Thousandths of a GPU that it has now.
        context: The policies and the cluster without the pod.
    """
    outcome = decision.outcome
    if not allocated_milli or request.pod is None:
        return ReachDecision(None)
    if decision.denials:
        return _not_eligible(DENIED)
    if isinstance(outcome, OfferChoice):
        return _with_choice(outcome, decision.right_sizing_outcome, allocated_milli)
    if outcome.reason in INHERENT_REASONS:
        return _not_eligible(outcome.reason)
    if gang_sign(request.pod):  # its queue's labels may be the only sign, and are removed below
        return _not_eligible(KeepReason.GANG_MEMBER)
    unrestricted = msgspec.structs.replace(context, policies=unrestricted_policies())
    free = build_admission_request(without_restrictions(request.load_object()), unrestricted)
    unrestricted_decision = decide(free, unrestricted.policies, context.view, context.usage, context.now)
    found = unrestricted_decision.outcome
    if isinstance(found, OfferChoice):
        queued = _outcome_in_queue(request, context) or _outcome_with_charge(request, outcome, context)
        return _with_choice(found, queued or outcome.reason.value, allocated_milli)
    missing = unrestricted_decision.needed_mib if found.reason in NO_SLICE_REASONS else 0
    nodes = _card_nodes(free.pod or request.pod, context.view) if missing else 0
    return ReachDecision(PodReach(eligible=False, outcome=found.reason.value, missing_mib=missing, card_nodes=nodes))


def _with_choice(choice: OfferChoice, outcome: str, allocated_milli: int) -> ReachDecision:
    """Return that a pod is eligible, unless its choice is no smaller than what it has."""
    if choice.gpu_milli >= allocated_milli:
        return _not_eligible(KeepReason.NO_WHOLE_GPU)
    return ReachDecision(PodReach(eligible=True, outcome=outcome), choice)


def _not_eligible(outcome: str) -> ReachDecision:
    return ReachDecision(PodReach(eligible=False, outcome=outcome))


def _outcome_in_queue(request: AdmissionRequest, context: EvaluationContext) -> str:
    """Return the outcome of a pod as part of a template that Kueue has not charged yet; "" if no template is known."""
    pod, view = request.pod, context.view
    if pod is None or charging_system_of_pod(pod) is not KUEUE:
        return ""
    labels = pod.metadata.labels
    queue = view.queues.find(request.namespace, labels.get(QUEUE_NAME_LABEL) or labels.get(POD_QUEUE_LABEL, ""))
    if queue is None:
        return ""
    queued = msgspec.structs.replace(request, queued=QueuedPodSet(queue, 1))
    found = decide(queued, context.policies, view, context.usage, context.now)
    if found.right_sizing_outcome != KeepReason.QUEUED.value:
        return found.right_sizing_outcome
    unrestricted = decide(queued, unrestricted_policies(), view, context.usage, context.now).outcome
    return unrestricted.reason.value if isinstance(unrestricted, KeepRequest) else ""


def _outcome_with_charge(request: AdmissionRequest, kept: KeepRequest, context: EvaluationContext) -> str:
    """Return why a scheduler that charges pods would also keep one under the policy without restrictions; "" if not."""
    if kept.reason is not KeepReason.CHARGED_AS_WHOLE:
        return ""
    found = decide(request, unrestricted_policies(), context.view, context.usage, context.now).outcome
    return found.reason.value if isinstance(found, KeepRequest) else ""


def _card_nodes(pod: Pod, view: ClusterView) -> int:
    """Return the nodes with whole cards that a pod may use, with tolerations for the taints of GPUs."""
    feasible = FeasibleNodes(view, pod, tolerate_gpu_taints=True)
    whole = (offer.nodes for offer in view.fleet.by_resource.get(WHOLE_GPU, ()) if offer.form is GpuForm.WHOLE)
    return feasible.nodes & union_masks(whole)


@cache
def unrestricted_policies() -> PolicySet:
    """Return the policy that right-sizes everywhere."""
    loaded = load_policies([("unrestricted.yaml", UNRESTRICTED_POLICY)])
    assert loaded.policies is not None, loaded.errors
    return loaded.policies


def without_restrictions(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod without its queue, its scheduling gates and its opt-out."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("schedulerName", "schedulingGates")}
    metadata = dict(pod["metadata"])
    for kind in ("labels", "annotations"):
        texts = metadata.get(kind) or {}
        metadata[kind] = {key: text for key, text in texts.items() if not _is_restriction(key)}
    return {**pod, "spec": spec, "metadata": metadata}


def _is_restriction(key: str) -> bool:
    return key == KEEP_ANNOTATION or key.startswith(QUEUEING_PREFIXES)
