"""Policies that come to speak about a pod only once it asks for something smaller: those that name resources."""

from __future__ import annotations

from webhook.engine.case import Case
from webhook.engine.match import names_of, namespace_labels
from webhook.model.modes import Mode
from webhook.policy.compiled import Policy


def newcomer(case: Case, resource: str) -> Policy | None:
    """The first policy that has no say over a pod, and may change or refuse it once it asks for `resource` instead.

    Its match conditions may hold then: they are not asked, because that pod is not there yet.
    """
    given = [one.resource for one in case.injected.given]
    new = _let_in(case, (resource,)) & ~_let_in(case, names_of(case.asked, given))
    if not new:
        return None
    coming = (policy for index, policy in enumerate(case.rules.among.policies) if new >> index & 1)
    return next((policy for policy in coming if policy.strictest is Mode.ENFORCE), None)


def _let_in(case: Case, names: tuple[str, ...]) -> int:
    """Mask of the policies that speak about such names, as far as the pod's labels tell."""
    request, labels = case.request, case.pod.metadata.labels
    spaced = namespace_labels(request.namespace, case.view)
    chosen, asking = case.rules.among.for_request(request.namespace, spaced, request.operation, names)
    for index, policy in asking:
        if policy.match.labels is None or policy.match.labels(labels):
            chosen |= 1 << index
    return chosen
