"""Step 1: which policies speak about an object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from webhook.engine.asking import Asked
from webhook.engine.remarks import Remark
from webhook.errors import shorten
from webhook.model.cluster import ClusterView
from webhook.model.modes import Mode
from webhook.model.pods import Pod
from webhook.model.requests import Request
from webhook.policy.compiled import ConditionError, Policy, PolicySet


class Speaking(msgspec.Struct, frozen=True):
    """The policies that speak, and what went wrong while asking the others.

    Attributes:
        failures: A match condition that failed at run time: with the policy that owns it.
    """

    policies: tuple[Policy, ...] = ()
    failures: tuple[tuple[Policy, Remark], ...] = ()


def match(request: Request, pod: Pod, asked: Asked, policies: PolicySet, view: ClusterView) -> Speaking:
    """Find the policies that speak about a pod (or a template read as one)."""
    labels = namespace_labels(request.namespace, view)
    candidates = [
        policy for policy in policies.for_namespace(request.namespace, labels) if _is_about(policy, request, pod, asked)
    ]
    if not any(policy.match.conditions for policy in candidates):
        return Speaking(tuple(candidates))
    return _ask_conditions(candidates, request, labels)


def namespace_labels(name: str, view: ClusterView) -> Mapping[str, str]:
    """The namespace's labels; of one that the view does not know, only its name."""
    namespace = view.namespace(name)
    return namespace.metadata.labels if namespace else {"kubernetes.io/metadata.name": name}


def _is_about(policy: Policy, request: Request, pod: Pod, asked: Asked) -> bool:
    rule = policy.match
    if request.operation not in rule.operations:
        return False
    if rule.resource is not None and not any(map(rule.resource, asked.names)):
        return False
    return rule.labels is None or rule.labels(pod.metadata.labels)


def _ask_conditions(candidates: list[Policy], request: Request, labels: Mapping[str, str]) -> Speaking:
    facts = _facts(request, labels)
    speaking: list[Policy] = []
    failures: list[tuple[Policy, Remark]] = []
    for policy in candidates:
        try:
            if all(condition.holds(facts) for condition in policy.match.conditions):
                speaking.append(policy)
        except ConditionError as error:
            failures.append((policy, _failure(policy, error)))
    return Speaking(tuple(speaking), tuple(failures))


def _facts(request: Request, labels: Mapping[str, str]) -> dict[str, Any]:
    return {
        "object": request.load(),
        "oldObject": request.load_old(),
        "request": {
            "operation": request.operation,
            "namespace": request.namespace,
            "name": request.name,
            "subResource": request.sub_resource,
            "dryRun": request.dry_run,
            "kind": {"group": request.group, "kind": request.kind},
            "userInfo": {"username": request.user, "groups": list(request.groups)},
        },
        "namespaceObject": {"metadata": {"name": request.namespace, "labels": dict(labels)}},
    }


def _failure(policy: Policy, error: ConditionError) -> Remark:
    return Remark(
        "GPU-P201",
        (),
        f"a match condition of policy {policy.name} failed on this object ({shorten(str(error), 120)}), "
        f"so the policy {'refuses it' if policy.match.fail else 'does not speak'}",
        "Ask the admin to guard optional fields with has().",
        at_most=Mode.ENFORCE if policy.match.fail else Mode.WARN,
    )
