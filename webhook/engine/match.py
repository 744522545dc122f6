"""Step 1, match: the policies that match a pod, and its context under them: what it requests, and where it may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from webhook.engine.claimed_gpus import NO_CLAIMED_GPUS, find_claimed_gpus
from webhook.engine.feasible_nodes import FeasibleNodes
from webhook.engine.gpu_requests import NEED_ANNOTATIONS, NOTHING_DECLARED, declared_need_of, gpu_requests_of_pod
from webhook.engine.limitrange.findings import find_injected_gpus, remove_injected_gpus, without_injected_gpus
from webhook.engine.matched_policies import (
    combine_policies,
    for_templates,
    without_additions,
    without_changes,
    without_tolerations,
)
from webhook.engine.pod_context import GpuPodContext, InjectedGpus, PodContext
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.errors import shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.annotations import MIRROR_ANNOTATION
from webhook.model.cluster_view import ClusterView, NamespaceView
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.filters.inter_pod_affinity import NOT_EXCLUDED, ExclusionByOthers, PodIdentity, combine_exclusions
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.pods import Pod
from webhook.model.usage import UsageView
from webhook.model.workloads import rollout_workload
from webhook.policy.policy_set import ConditionError, MatchCondition, Policy, PolicySet, as_audit

NO_FAILURES: tuple[SectionFinding, ...] = ()

TOLERATIONS_WHITELIST = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
"""Namespace annotation of PodTolerationRestriction: an added toleration could get the pod rejected."""


class MatchResult(NamedTuple):
    """The context of a pod under the policies that match it, and the match conditions that failed at run time."""

    context: PodContext
    failures: tuple[SectionFinding, ...]


def match_policies(
    request: AdmissionRequest, pod: Pod, policies: PolicySet, view: ClusterView, usage: UsageView
) -> MatchResult:
    """Find the policies that match a pod, or a template read as one, and build its context."""
    created, namespace = request.operation == "CREATE", view.view_namespace(request.namespace)
    gpu_requests, ranges = gpu_requests_of_pod(pod), namespace.ranges
    injected = find_injected_gpus(pod, ranges, request.load_object) if created and ranges.gpu_defaults else ()
    claimed, class_by_resource = NO_CLAIMED_GPUS, view.devices.class_by_resource
    served_by_classes = frozenset(class_by_resource.keys() & gpu_requests.extended_names)
    if served_by_classes or pod.spec.resource_claims:
        claimed = find_claimed_gpus(pod, request.namespace, view, served_by_classes)
    requested = (*gpu_requests.totals, *gpu_requests.unknown_resources, *[amount.resource for amount in injected])
    requested = (*requested, *claimed.units) if claimed.units else requested
    candidates, conditional = policies.candidates_for(
        request.namespace,
        namespace.labels,
        request.operation,
        tuple(dict.fromkeys(requested)),
        pod.metadata.labels,
    )
    outside_rollout = _outside_rollouts(request, pod, policies) if policies.rollouts else 0
    matching, failures = candidates, NO_FAILURES
    if conditional:
        matching, failures = _evaluate_conditions(
            candidates, conditional, outside_rollout, request, namespace, policies
        )
    matched = combine_policies(policies, matching, outside_rollout & matching)
    matched = for_templates(matched) if request.queued is not None else matched
    submitted = PodContext(
        request=request,
        pod=pod,
        submitted_requests=gpu_requests,
        gpu_requests=gpu_requests,
        policy_set=policies,
        policies=matched,
        candidates=candidates,
        view=view,
        namespace=namespace,
        usage=usage,
        limit_range_gpus=InjectedGpus(injected),
        claimed=claimed,
    )
    return MatchResult(build_context(submitted) if created and matched.names else submitted, failures)


def build_context(submitted: PodContext) -> PodContext:
    """Return the context of a new pod under its policies: a `GpuPodContext` if it requests GPUs.

    GPUs that a LimitRange injects and a policy removes do not count from here on; step 5 writes their removal.

    A pod that comes with its node must stay there, so policies add nothing that could prevent it: only injected GPUs
    are removed, which no kubelet minds, and its GPUs are accounted, because a node name must not bypass a quota. A
    mirror of a static pod stays unchanged; no kubelet runs a mirror that another client created. Where a whitelist
    restricts tolerations, policies add none, and only nodes that the pod tolerates itself count.
    """
    pod, policies, view = submitted.pod, submitted.policies, submitted.view
    gpu_requests, injected = submitted.gpu_requests, submitted.limit_range_gpus
    if MIRROR_ANNOTATION in pod.metadata.annotations:
        policies = without_changes(policies)
    elif pod.spec.node_name:
        policies = without_additions(policies)
    elif policies.injections and TOLERATIONS_WHITELIST in submitted.namespace.annotations:
        policies = without_tolerations(policies)
    if injected.amounts and policies.limit_range_gpu_policies and not pod.has_uid:
        injected = remove_injected_gpus(pod, injected.amounts, submitted.namespace.ranges)
        gpu_requests = without_injected_gpus(gpu_requests, injected) if injected.removed else gpu_requests
    if not gpu_requests.requests:
        return replace(submitted, gpu_requests=gpu_requests, policies=policies, limit_range_gpus=injected)
    fleet, additions = view.fleet, policies.additions
    declares = not NEED_ANNOTATIONS.isdisjoint(pod.metadata.annotations)
    need = declared_need_of(pod, fleet) if declares else NOTHING_DECLARED
    labels = {**policies.added_labels, **pod.metadata.labels} if policies.added_labels else pod.metadata.labels
    identity = PodIdentity(submitted.request.namespace, labels)
    feasible = FeasibleNodes(
        view,
        pod,
        additions.tolerations,
        tolerate_gpu_taints=additions.tolerate_gpu_taints,
        identity=identity,
        exclusion=_exclusion_by_pods(identity, pod, view) if view.has_anti_affinity else NOT_EXCLUDED,
        request=submitted.request,
    )
    whole = fleet.nodes_advertising(WHOLE_GPU) & feasible.selected & feasible.tolerated
    offers, offer_nodes = fleet.offers_on_nodes(tuple(gpu_requests.totals), feasible.selected)
    return GpuPodContext(
        request=submitted.request,
        pod=pod,
        submitted_requests=submitted.submitted_requests,
        gpu_requests=gpu_requests,
        policy_set=submitted.policy_set,
        policies=policies,
        candidates=submitted.candidates,
        view=view,
        namespace=submitted.namespace,
        usage=submitted.usage,
        limit_range_gpus=injected,
        claimed=submitted.claimed,
        declared_need=need,
        feasible=feasible,
        offers=offers,
        offer_nodes=offer_nodes,
        mixes_whole_and_partial=WHOLE_GPU in gpu_requests.totals and whole & fleet.partial_gpu_nodes not in (0, whole),
    )


def _exclusion_by_pods(identity: PodIdentity, pod: Pod, view: ClusterView) -> ExclusionByOthers:
    """Return the nodes from which other pods exclude a pod, with its labels or with those that policies add."""
    excluded = view.exclusion_by_pods(identity.namespace, tuple(pod.metadata.labels.items()))
    if len(identity.labels) == len(pod.metadata.labels):
        return excluded
    with_added = view.exclusion_by_pods(identity.namespace, tuple(identity.labels.items()))
    return combine_exclusions([excluded, with_added])


def context_without_changes(context: PodContext) -> PodContext:
    """Return the context of a pod that policies must leave as submitted."""
    submitted = PodContext(
        request=context.request,
        pod=context.pod,
        submitted_requests=context.submitted_requests,
        gpu_requests=context.submitted_requests,
        policy_set=context.policy_set,
        policies=without_changes(context.policies),
        candidates=context.candidates,
        view=context.view,
        namespace=context.namespace,
        usage=context.usage,
        limit_range_gpus=InjectedGpus(context.limit_range_gpus.amounts),
        claimed=context.claimed,
    )
    return build_context(submitted)


def _outside_rollouts(request: AdmissionRequest, pod: Pod, policies: PolicySet) -> int:
    """Return the policies whose rollout does not include the pod's workload, as a mask."""
    workload = rollout_workload(pod)
    excluded = [i for i, rollout in policies.rollouts if not rollout.includes(request.namespace, workload)]
    return sum([1 << index for index in excluded])


def _evaluate_conditions(
    matching: int,
    conditional: int,
    outside_rollout: int,
    request: AdmissionRequest,
    namespace: NamespaceView,
    policies: PolicySet,
) -> tuple[int, tuple[SectionFinding, ...]]:
    """Return those of the matching policies whose conditions hold, and the conditions that failed."""
    variables = condition_variables(request, namespace)
    failures: list[SectionFinding] = []
    for index, policy in enumerate(policies.policies):
        if not conditional >> index & 1:
            continue
        outcome = _evaluate_all(policy.match.conditions, variables)
        if isinstance(outcome, ConditionError):
            effective = as_audit(policy) if outside_rollout >> index & 1 else policy
            failures.append(((effective.strictest_mode, policy.name), _condition_failure(effective, outcome)))
        if outcome is not True:
            matching &= ~(1 << index)
    return matching, tuple(failures)


def _evaluate_all(conditions: Sequence[MatchCondition], variables: Mapping[str, Any]) -> bool | ConditionError:
    """Return whether all conditions hold; as in the API server, a false one outweighs one that fails."""
    failure: ConditionError | None = None
    for condition in conditions:
        try:
            if not condition.evaluate(variables):
                return False
        except ConditionError as error:
            failure = failure or error
    return failure or True


POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}
POD_RESOURCE = {"group": "", "version": "v1", "resource": "pods"}
"""Only pods are evaluated, and pods have one version."""


def condition_variables(request: AdmissionRequest, namespace: NamespaceView) -> dict[str, Any]:
    """Return the variables of match conditions; `webhook.policy.match_conditions.KNOWN_FIELDS` lists their fields."""
    return {
        "object": request.load_object(),
        "oldObject": request.load_old_object(),
        "request": {
            "uid": request.uid,
            "operation": request.operation,
            "namespace": request.namespace,
            "name": request.name,
            "kind": POD_KIND,
            "resource": POD_RESOURCE,
            "subResource": request.sub_resource,
            "requestKind": POD_KIND,
            "requestResource": POD_RESOURCE,
            "requestSubResource": request.sub_resource,
            "dryRun": request.dry_run,
            "userInfo": {"username": request.user, "uid": request.user_uid, "groups": list(request.groups)},
        },
        "namespaceObject": {
            "metadata": {
                "name": request.namespace,
                "labels": dict(namespace.labels),
                "annotations": dict(namespace.annotations),
            }
        },
    }


def _condition_failure(policy: Policy, error: ConditionError) -> PolicyFinding:
    rejecting = policy.rejecting_mode if policy.match.fail_closed else None
    effect, at_most = "is ignored", PolicyMode.WARN
    if rejecting is not None:
        effect = "denies it" if rejecting is PolicyMode.ENFORCE else "would deny it if it were enforced"
        at_most = max(rejecting, PolicyMode.WARN)
    message = (
        f"a match condition of policy {policy.name} failed on this object ({shorten_text(str(error), 120)}), "
        f"so the policy {effect}"
    )
    return PolicyFinding("GPU-P201", (), message, CODES["GPU-P201"].fix, at_most)


def candidates_with(context: GpuPodContext, names: tuple[str, ...]) -> int:
    """Return the policies that would match a pod if it requested these resources, match conditions aside; a mask."""
    request, labels = context.request, context.namespace.labels
    by_labels = context.policy_set.candidates_for(
        request.namespace, labels, request.operation, names, context.pod.metadata.labels
    )
    return by_labels.matching


def newly_matching_policy(context: GpuPodContext, names: tuple[str, ...]) -> Policy | None:
    """Return the first enforced policy that would match a pod with these resources, and does not match it now.

    Its match conditions are not evaluated, because that pod does not exist yet; they may hold.
    """
    policies, new = context.policy_set, candidates_with(context, names) & ~context.candidates
    if not new:
        return None
    matching = (policy for index, policy in enumerate(policies.policies) if new >> index & 1)
    return next((policy for policy in matching if policy.strictest_mode is PolicyMode.ENFORCE), None)
