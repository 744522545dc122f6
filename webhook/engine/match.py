"""Step 1: which policies speak about an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.engine.gpu_requests import PodGpuRequests
from webhook.engine.matched_policies import MatchedPolicies, combine_policies
from webhook.engine.pod_context import PodContext
from webhook.engine.violations import PolicyRef, Violation
from webhook.errors import shorten_text
from webhook.model.admission import AdmissionRequest
from webhook.model.cluster_view import ClusterView
from webhook.model.enums import PolicyMode
from webhook.model.pods import Pod
from webhook.model.workloads import rollout_workload
from webhook.policy.policy_set import ConditionError, Policy, PolicySet, as_audit


class MatchResult(msgspec.Struct, frozen=True):
    """What the policies that speak say together, and what went wrong while asking the others.

    Attributes:
        failures: A match condition that failed at run time, in the voice of the policy that owns it.
    """

    policies: MatchedPolicies
    failures: tuple[tuple[PolicyRef, Violation], ...] = ()


def match_policies(
    request: AdmissionRequest,
    pod: Pod,
    asked: PodGpuRequests,
    policies: PolicySet,
    view: ClusterView,
    given: Sequence[str] = (),
) -> MatchResult:
    """Find the policies that speak about a pod (or a template read as one).

    Args:
        given: GPU resources that LimitRanges put in beside those asked for.
    """
    labels = view.labels_of(request.namespace)
    chosen, conditional = candidate_policies(request, pod, matched_resource_names(asked, given), policies, labels)
    on_trial = _outside_rollout(policies, request.namespace, pod) & chosen if policies.rollouts else 0
    if not conditional:
        return MatchResult(combine_policies(policies, chosen, on_trial))
    chosen, failures = _evaluate_conditions(chosen, conditional, on_trial, request, view, policies)
    return MatchResult(combine_policies(policies, chosen, on_trial & chosen), failures)


def candidate_policies(
    request: AdmissionRequest, pod: Pod, names: tuple[str, ...], policies: PolicySet, labels: Mapping[str, str]
) -> tuple[int, int]:
    """The policies that speak about such resources of a pod, match conditions aside; and those of them that have some.

    Args:
        names: The resources.
        labels: Those of its namespace.
    """
    chosen, asking = policies.candidates_for(request.namespace, labels, request.operation, names)
    conditional = 0
    for index, policy in asking:
        rule = policy.match
        if rule.labels is None or rule.labels(pod.metadata.labels):
            chosen |= 1 << index
            if rule.conditions:
                conditional |= 1 << index
    return chosen, conditional


def matched_resource_names(asked: PodGpuRequests, given: Sequence[str]) -> tuple[str, ...]:
    """The resources by which policies are chosen: those asked for, and those that LimitRanges put in."""
    if not asked.unknown_resources and not given:
        return tuple(asked.totals)
    return tuple(dict.fromkeys((*asked.totals, *asked.unknown_resources, *given)))


def _outside_rollout(policies: PolicySet, namespace: str, pod: Pod) -> int:
    """The policies that are on trial for this pod: its workload is not in the share that they are rolled out to."""
    workload = rollout_workload(pod)
    return sum([1 << index for index, rollout in policies.rollouts if not rollout.includes(namespace, workload)])


def _evaluate_conditions(
    chosen: int, conditional: int, on_trial: int, request: AdmissionRequest, view: ClusterView, policies: PolicySet
) -> tuple[int, tuple[tuple[PolicyRef, Violation], ...]]:
    """Those of the chosen policies whose conditions hold, and the conditions that failed."""
    facts = condition_variables(request, view)
    failures: list[tuple[PolicyRef, Violation]] = []
    for index, policy in enumerate(policies.policies):
        if not conditional >> index & 1:
            continue
        try:
            holds = all(condition.evaluate(facts) for condition in policy.match.conditions)
        except ConditionError as error:
            speaking = as_audit(policy) if on_trial >> index & 1 else policy
            failures.append(((speaking.strictest_mode, policy.name), _condition_failure(speaking, error)))
            holds = False
        if not holds:
            chosen &= ~(1 << index)
    return chosen, tuple(failures)


POD_KIND = {"group": "", "version": "v1", "kind": "Pod"}
POD_RESOURCE = {"group": "", "version": "v1", "resource": "pods"}
"""What is asked about is always a pod, and pods are served in one way."""


def condition_variables(request: AdmissionRequest, view: ClusterView) -> dict[str, Any]:
    """The variables of a match condition; `webhook.policy.match_conditions.KNOWN_FIELDS` lists their fields."""
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


def _condition_failure(policy: Policy, error: ConditionError) -> Violation:
    return Violation(
        "GPU-P201",
        (),
        f"a match condition of policy {policy.name} failed on this object ({shorten_text(str(error), 120)}), "
        f"so the policy {_failure_effect(policy)}",
        "Ask the admin to guard optional fields with has().",
        at_most=PolicyMode.ENFORCE if policy.match.fail_closed else PolicyMode.WARN,
    )


def _failure_effect(policy: Policy) -> str:
    if not policy.match.fail_closed:
        return "does not speak"
    return "refuses it" if policy.strictest_mode is PolicyMode.ENFORCE else "would refuse it if it were enforced"


def newly_matching_policy(case: PodContext, resource: str) -> Policy | None:
    """The first policy that has no say over a pod, and may change or refuse it once it asks for `resource` instead.

    Its match conditions may hold then: they are not asked, because that pod is not there yet.
    """
    given = [one.resource for one in case.injected.amounts]
    policies, labels = case.policies.policy_set, case.view.labels_of(case.request.namespace)
    later, _ = candidate_policies(case.request, case.pod, (resource,), policies, labels)
    now, _ = candidate_policies(
        case.request, case.pod, matched_resource_names(case.gpu_requests, given), policies, labels
    )
    coming = (policy for index, policy in enumerate(policies.policies) if (later & ~now) >> index & 1)
    return next((policy for policy in coming if policy.strictest_mode is PolicyMode.ENFORCE), None)
