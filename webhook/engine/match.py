"""Step 1, match: the policies that match a pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.limitrange.injected_gpus import InjectedAmount
from webhook.engine.matched_policies import MatchedPolicies, combine_policies
from webhook.engine.pod_context import GpuPodContext
from webhook.engine.policy_findings import PolicyFinding, SectionFinding
from webhook.errors import shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.codes import CODES
from webhook.model.enums import PolicyMode
from webhook.model.pods import Pod
from webhook.model.workloads import rollout_workload
from webhook.policy.policy_set import ConditionError, MatchCondition, Policy, PolicySet, as_audit


class MatchResult(msgspec.Struct, frozen=True):
    """The policies that match a pod, and the match conditions that failed at run time."""

    policies: MatchedPolicies
    failures: tuple[SectionFinding, ...] = ()


def match_policies(
    request: AdmissionRequest,
    pod: Pod,
    gpu_requests: PodGpuRequests,
    injected: Sequence[InjectedAmount],
    policies: PolicySet,
    view: ClusterView,
) -> MatchResult:
    """Find the policies that match a pod, or a template read as one.

    Args:
        injected: GPUs that LimitRanges inject; they count as requested.
    """
    labels, names = view.labels_of(request.namespace), matched_resource_names(gpu_requests, injected)
    matching, conditional = candidate_policies(request, pod, names, policies, labels)
    outside = 0
    if policies.rollouts:
        workload = rollout_workload(pod)
        excluded = [i for i, rollout in policies.rollouts if not rollout.includes(request.namespace, workload)]
        outside = matching & sum([1 << index for index in excluded])
    if not conditional:
        return MatchResult(combine_policies(policies, matching, outside))
    matching, failures = _evaluate_conditions(matching, conditional, outside, request, view, policies)
    return MatchResult(combine_policies(policies, matching, outside & matching), failures)


def candidate_policies(
    request: AdmissionRequest, pod: Pod, names: tuple[str, ...], policies: PolicySet, labels: Mapping[str, str]
) -> tuple[int, int]:
    """Return the policies that match these resources of a pod, and those of them with match conditions; two masks.

    Args:
        names: The resources.
        labels: The labels of the namespace.
    """
    matching, candidates = policies.candidates_for(request.namespace, labels, request.operation, names)
    conditional = 0
    for index, policy in candidates:
        rule = policy.match
        if rule.labels is None or rule.labels(pod.metadata.labels):
            matching |= 1 << index
            if rule.conditions:
                conditional |= 1 << index
    return matching, conditional


def matched_resource_names(gpu_requests: PodGpuRequests, injected: Sequence[InjectedAmount]) -> tuple[str, ...]:
    """Return the resources by which policies match: requested and injected ones."""
    if not gpu_requests.unknown_resources and not injected:
        return tuple(gpu_requests.totals)
    added = [amount.resource for amount in injected]
    return tuple(dict.fromkeys((*gpu_requests.totals, *gpu_requests.unknown_resources, *added)))


def _evaluate_conditions(
    matching: int, conditional: int, outside: int, request: AdmissionRequest, view: ClusterView, policies: PolicySet
) -> tuple[int, tuple[SectionFinding, ...]]:
    """Return those of the matching policies whose conditions hold, and the conditions that failed."""
    variables = condition_variables(request, view)
    failures: list[SectionFinding] = []
    for index, policy in enumerate(policies.policies):
        if not conditional >> index & 1:
            continue
        outcome = _evaluate_all(policy.match.conditions, variables)
        if isinstance(outcome, ConditionError):
            effective = as_audit(policy) if outside >> index & 1 else policy
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


def condition_variables(request: AdmissionRequest, view: ClusterView) -> dict[str, Any]:
    """Return the variables of match conditions; `webhook.policy.match_conditions.KNOWN_FIELDS` lists their fields."""
    namespace = view.namespace(request.namespace)
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
                "labels": dict(view.labels_of(request.namespace)),
                "annotations": dict(namespace.metadata.annotations) if namespace else {},
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


def newly_matching_policy(context: GpuPodContext, resource: str) -> Policy | None:
    """Return the first enforced policy that would match a pod with `resource`, and does not match it now.

    Its match conditions are not evaluated, because that pod does not exist yet; they may hold.
    """
    request, pod, policies = context.request, context.pod, context.policies.policy_set
    labels, names = (
        context.view.labels_of(request.namespace),
        matched_resource_names(context.gpu_requests, context.limit_range_gpus.amounts),
    )
    after, _ = candidate_policies(request, pod, (resource,), policies, labels)
    before, _ = candidate_policies(request, pod, names, policies, labels)
    new = after & ~before
    if not new:
        return None
    matching = (policy for index, policy in enumerate(policies.policies) if new >> index & 1)
    return next((policy for policy in matching if policy.strictest_mode is PolicyMode.ENFORCE), None)
