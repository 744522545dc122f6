"""Match the keys and scopes of ResourceQuotas with pods, as `k8s.io/kubernetes/pkg/quota/v1/evaluator/core` does.

Extended resources count under `requests.` only: keys such as `limits.nvidia.com/gpu` or a bare `nvidia.com/gpu` are
accepted and never counted. Quality of service considers CPU and memory only: a pod that requests only GPUs is best
effort.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from webhook.model.bounded_cache import request_cache
from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.objects import ResourceQuota, ScopeRequirement
from webhook.model.pods import Pod
from webhook.model.quantity import parse_nano_or_none
from webhook.model.resource_names import is_huge_pages, is_native

_OBJECTS = ("pods", "count/pods")

_COMPUTE = ("cpu", "memory", "ephemeral-storage")

_REQUESTS, _LIMITS = "requests.", "limits."


class CountedResource(NamedTuple):
    """The amount that a key counts: `side` of `resource`, or pods if `resource` is ""."""

    resource: str
    side: str


@request_cache(1024)
def resource_of_quota_key(key: str) -> CountedResource | None:
    """Return the amount of a pod that a key counts; None if it counts no pods.

    >>> resource_of_quota_key("requests.nvidia.com/gpu"), resource_of_quota_key("limits.nvidia.com/gpu")
    (CountedResource(resource='nvidia.com/gpu', side='requests'), None)
    """
    if key in _OBJECTS:
        return CountedResource("", "requests")
    if key in _COMPUTE or is_huge_pages(key):
        return CountedResource(key, "requests")
    if key.startswith(_LIMITS):
        resource = key.removeprefix(_LIMITS)
        return CountedResource(resource, "limits") if resource in _COMPUTE else None
    resource = key.removeprefix(_REQUESTS)
    if resource == key:
        return None
    known = resource in _COMPUTE or is_huge_pages(resource) or resource.startswith(DEVICE_CLASS_PREFIX)
    return CountedResource(resource, "requests") if known or not is_native(key) else None


_QOS_RESOURCES = ("cpu", "memory")


class PodScopeAttributes(msgspec.Struct, frozen=True, gc=False):
    """The attributes that scopes match; `crosses_namespaces` if pod affinity names other namespaces."""

    has_deadline: bool = False
    best_effort: bool = True
    priority_class: str = ""
    crosses_namespaces: bool = False


def scope_attributes(pod: Pod, *, best_effort: bool | None = None) -> PodScopeAttributes:
    """Return the attributes of a pod. See `quota_matches_pod`."""
    spec = pod.spec
    is_least = is_best_effort_pod(pod) if best_effort is None else best_effort
    return _scope_attributes_cached(
        spec.active_deadline_seconds is not None, is_least, spec.priority_class_name, _has_cross_namespace_affinity(pod)
    )


_scope_attributes_cached = request_cache(1024)(PodScopeAttributes)
"""Pods have few different attributes."""


def quota_matches_pod(quota: ResourceQuota, pod: Pod, *, best_effort: bool | None = None) -> bool:
    """Return whether a pod matches every scope of a quota.

    `best_effort` overrides what the pod's own amounts say.
    """
    return not has_scopes(quota) or scopes_match(quota, scope_attributes(pod, best_effort=best_effort))


def has_scopes(quota: ResourceQuota) -> bool:
    """Return whether a quota has scopes: then it counts some pods only, and no claims."""
    return bool(quota.spec.scopes) or quota.spec.scope_selector is not None


def scopes_match(quota: ResourceQuota, attributes: PodScopeAttributes) -> bool:
    """Return whether pods with these attributes match every scope of a quota."""
    selector = quota.spec.scope_selector
    requirements = selector.match_expressions if selector else ()
    plain = (ScopeRequirement(scope_name=scope, operator="Exists") for scope in quota.spec.scopes)
    return all(_requirement_matches(requirement, attributes) for requirement in (*plain, *requirements))


def _requirement_matches(requirement: ScopeRequirement, attributes: PodScopeAttributes) -> bool:
    match requirement.scope_name:
        case "Terminating" | "NotTerminating":
            return attributes.has_deadline == (requirement.scope_name == "Terminating")
        case "BestEffort" | "NotBestEffort":
            return attributes.best_effort == (requirement.scope_name == "BestEffort")
        case "PriorityClass":
            return _priority_class_matches(requirement, attributes.priority_class)
        case "CrossNamespacePodAffinity":
            return attributes.crosses_namespaces
        case _:
            return False


def is_best_effort_pod(pod: Pod) -> bool:
    """Return whether the pod requests neither CPU nor memory. Pod-level resources replace those of containers."""
    spec = pod.spec
    each = [container.resources for container in (*spec.containers, *spec.init_containers)]
    if spec.resources is not None:
        each = [spec.resources]
    return not any(
        (parse_nano_or_none(side.get(name)) or 0) > 0
        for resources in each
        for side in (resources.limits, resources.requests)
        for name in _QOS_RESOURCES
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
