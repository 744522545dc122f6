"""Policies that come to speak about a pod only once it asks for something smaller: those that name resources."""

from __future__ import annotations

from webhook.engine.case import PodContext
from webhook.engine.match import candidate_policies, matched_resource_names
from webhook.model.modes import PolicyMode
from webhook.policy.compiled import Policy


def newly_matching_policy(case: PodContext, resource: str) -> Policy | None:
    """The first policy that has no say over a pod, and may change or refuse it once it asks for `resource` instead.

    Its match conditions may hold then: they are not asked, because that pod is not there yet.
    """
    given = [one.resource for one in case.injected.amounts]
    policies, labels = case.policies.policy_set, case.view.labels_of(case.request.namespace)
    later, _ = candidate_policies(case.request, case.pod, (resource,), policies, labels)
    now, _ = candidate_policies(case.request, case.pod, matched_resource_names(case.gpu_requests, given), policies, labels)
    coming = (policy for index, policy in enumerate(policies.policies) if (later & ~now) >> index & 1)
    return next((policy for policy in coming if policy.strictest_mode is PolicyMode.ENFORCE), None)
