"""Step 1: which policies speak about an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from webhook.engine.asking import Asked
from webhook.engine.remarks import Remark
from webhook.engine.rules import Rules, rules_of
from webhook.engine.settle import Voice
from webhook.errors import shorten
from webhook.model.cluster import ClusterView
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.model.workloads import rolled_out_as
from webhook.policy.capping import tried
from webhook.policy.compiled import ConditionError, Policy, PolicySet


class Speaking(msgspec.Struct, frozen=True):
    """What the policies that speak say together, and what went wrong while asking the others.

    Attributes:
        failures: A match condition that failed at run time, in the voice of the policy that owns it.
    """

    rules: Rules
    failures: tuple[tuple[Voice, Remark], ...] = ()


def match(
    request: Request, pod: Pod, asked: Asked, policies: PolicySet, view: ClusterView, given: Sequence[str] = ()
) -> Speaking:
    """Find the policies that speak about a pod (or a template read as one).

    Args:
        given: GPU resources that LimitRanges put in beside those asked for.
    """
    labels = view.labels_of(request.namespace)
    chosen, conditional = let_in(request, pod, names_of(asked, given), policies, labels)
    on_trial = _on_trial(policies, request.namespace, pod) & chosen if policies.rollouts else 0
    if not conditional:
        return Speaking(rules_of(policies, chosen, on_trial))
    chosen, failures = _ask_conditions(chosen, conditional, on_trial, request, view, policies)
    return Speaking(rules_of(policies, chosen, on_trial & chosen), failures)


def let_in(
    request: Request, pod: Pod, names: tuple[str, ...], policies: PolicySet, labels: Mapping[str, str]
) -> tuple[int, int]:
    """The policies that speak about such resources of a pod, match conditions aside; and those of them that have some.

    Args:
        names: The resources.
        labels: Those of its namespace.
    """
    chosen, asking = policies.for_request(request.namespace, labels, request.operation, names)
    conditional = 0
    for index, policy in asking:
        rule = policy.match
        if rule.labels is None or rule.labels(pod.metadata.labels):
            chosen |= 1 << index
            if rule.conditions:
                conditional |= 1 << index
    return chosen, conditional


def names_of(asked: Asked, given: Sequence[str]) -> tuple[str, ...]:
    """The resources by which policies are chosen: those asked for, and those that LimitRanges put in."""
    if not asked.strangers and not given:
        return tuple(asked.totals)
    return tuple(dict.fromkeys((*asked.totals, *asked.strangers, *given)))


def _on_trial(policies: PolicySet, namespace: str, pod: Pod) -> int:
    """The policies that are on trial for this pod: its workload is not in the share that they are rolled out to."""
    workload = rolled_out_as(pod)
    return sum([1 << index for index, rollout in policies.rollouts if not rollout.takes(namespace, workload)])


def _ask_conditions(
    chosen: int, conditional: int, on_trial: int, request: Request, view: ClusterView, policies: PolicySet
) -> tuple[int, tuple[tuple[Voice, Remark], ...]]:
    """Those of the chosen policies whose conditions hold, and the conditions that failed."""
    facts = facts_of(request, view)
    failures: list[tuple[Voice, Remark]] = []
    for index, policy in enumerate(policies.policies):
        if not conditional >> index & 1:
            continue
        try:
            holds = all(condition.holds(facts) for condition in policy.match.conditions)
        except ConditionError as error:
            speaking = tried(policy) if on_trial >> index & 1 else policy
            failures.append(((speaking.strictest, policy.name), _failure(speaking, error)))
            holds = False
        if not holds:
            chosen &= ~(1 << index)
    return chosen, tuple(failures)


KIND = {"group": "", "version": "v1", "kind": "Pod"}
RESOURCE = {"group": "", "version": "v1", "resource": "pods"}
"""What is asked about is always a pod, and pods are served in one way."""


def facts_of(request: Request, view: ClusterView) -> dict[str, Any]:
    """The variables of a match condition; `webhook.policy.conditions.FIELDS` lists their fields."""
    namespace = view.namespace(request.namespace)
    return {
        "object": request.load(),
        "oldObject": request.load_old(),
        "request": {
            "uid": request.uid,
            "operation": request.operation,
            "namespace": request.namespace,
            "name": request.name,
            "kind": KIND,
            "resource": RESOURCE,
            "subResource": request.sub_resource,
            "requestKind": KIND,
            "requestResource": RESOURCE,
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


def _failure(policy: Policy, error: ConditionError) -> Remark:
    return Remark(
        "GPU-P201",
        (),
        f"a match condition of policy {policy.name} failed on this object ({shorten(str(error), 120)}), "
        f"so the policy {_in_consequence(policy)}",
        "Ask the admin to guard optional fields with has().",
        at_most=Mode.ENFORCE if policy.match.fail else Mode.WARN,
    )


def _in_consequence(policy: Policy) -> str:
    if not policy.match.fail:
        return "does not speak"
    return "refuses it" if policy.strictest is Mode.ENFORCE else "would refuse it if it were enforced"
