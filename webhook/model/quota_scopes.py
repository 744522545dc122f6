"""Which pods a ResourceQuota counts, by its scopes.

Source: `k8s.io/kubernetes/pkg/quota/v1/evaluator/core`, podMatchesScopeFunc. Quality of service looks at CPU
and memory only: a pod that asks for nothing but GPUs is best effort.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from webhook.model.objects import ResourceQuota, ScopeRequirement
from webhook.model.pods import Pod
from webhook.model.quantity import parse_nano_or_none

_COMPUTE = ("cpu", "memory")


class PodScopeAttributes(msgspec.Struct, frozen=True, gc=False):
    """All that scopes look at in a pod.

    Attributes:
        ends: It has a deadline.
        reaches_out: Its affinity speaks about pods of other namespaces.
    """

    has_deadline: bool = False
    best_effort: bool = True
    priority_class: str = ""
    crosses_namespaces: bool = False


def scope_attributes(pod: Pod, *, best_effort: bool | None = None) -> PodScopeAttributes:
    """What scopes see of a pod. See `quota_matches_pod`."""
    spec = pod.spec
    least = is_best_effort_pod(pod) if best_effort is None else best_effort
    return _scope_attributes_cached(
        spec.active_deadline_seconds is not None, least, spec.priority_class_name, _has_cross_namespace_affinity(pod)
    )


_scope_attributes_cached = lru_cache(maxsize=1024)(PodScopeAttributes)
"""Pods are of few kinds."""


def quota_matches_pod(quota: ResourceQuota, pod: Pod, *, best_effort: bool | None = None) -> bool:
    """Does every scope of the quota hold for the pod?

    Args:
        best_effort: Whether the pod is best effort, where that is known better than from its own amounts.
    """
    return not has_scopes(quota) or scopes_match(quota, scope_attributes(pod, best_effort=best_effort))


def has_scopes(quota: ResourceQuota) -> bool:
    """Does it count some pods only, and no claims?"""
    return bool(quota.spec.scopes) or quota.spec.scope_selector is not None


def scopes_match(quota: ResourceQuota, kind: PodScopeAttributes) -> bool:
    """Does every scope of the quota hold for pods of this kind?"""
    selector = quota.spec.scope_selector
    requirements = selector.match_expressions if selector else ()
    plain = (ScopeRequirement(scope_name=scope, operator="Exists") for scope in quota.spec.scopes)
    return all(_requirement_matches(requirement, kind) for requirement in (*plain, *requirements))


def _requirement_matches(requirement: ScopeRequirement, kind: PodScopeAttributes) -> bool:
    match requirement.scope_name:
        case "Terminating" | "NotTerminating":
            return kind.has_deadline == (requirement.scope_name == "Terminating")
        case "BestEffort" | "NotBestEffort":
            return kind.best_effort == (requirement.scope_name == "BestEffort")
        case "PriorityClass":
            return _priority_class_matches(requirement, kind.priority_class)
        case "CrossNamespacePodAffinity":
            return kind.crosses_namespaces
        case _:
            return False


def is_best_effort_pod(pod: Pod) -> bool:
    """Does nothing ask for CPU or memory? What a pod says as a whole, where it says anything, stands alone."""
    spec = pod.spec
    each = [container.resources for container in (*spec.containers, *spec.init_containers)]
    if spec.resources is not None:
        each = [spec.resources]
    return not any(
        (parse_nano_or_none(side.get(name)) or 0) > 0
        for resources in each
        for side in (resources.limits, resources.requests)
        for name in _COMPUTE
    )


def _priority_class_matches(requirement: ScopeRequirement, name: str) -> bool:
    match requirement.operator:
        case "In":
            return name in requirement.values
        case "NotIn":
            return name not in requirement.values
        case "Exists":
            return bool(name)
        case "DoesNotExist":
            return not name
        case _:
            return False


def _has_cross_namespace_affinity(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is None:
        return False
    for part in (affinity.pod_affinity, affinity.pod_anti_affinity):
        for term in (*part.required, *part.preferred) if part else ():
            inner = term.get("podAffinityTerm", term) if isinstance(term, dict) else {}
            if isinstance(inner, dict) and (inner.get("namespaces") or inner.get("namespaceSelector") is not None):
                return True
    return False
