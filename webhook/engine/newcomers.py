"""Policies that come to speak about a pod only once it asks for something smaller: those that name resources."""

from __future__ import annotations

from webhook.engine.case import Case
from webhook.engine.match import let_in, names_of
from webhook.model.modes import Mode
from webhook.policy.compiled import Policy


def newcomer(case: Case, resource: str) -> Policy | None:
    """The first policy that has no say over a pod, and may change or refuse it once it asks for `resource` instead.

    Its match conditions may hold then: they are not asked, because that pod is not there yet.
    """
    given = [one.resource for one in case.injected.given]
    policies, labels = case.rules.among, case.view.labels_of(case.request.namespace)
    later, _ = let_in(case.request, case.pod, (resource,), policies, labels)
    now, _ = let_in(case.request, case.pod, names_of(case.asked, given), policies, labels)
    coming = (policy for index, policy in enumerate(policies.policies) if (later & ~now) >> index & 1)
    return next((policy for policy in coming if policy.strictest is Mode.ENFORCE), None)
