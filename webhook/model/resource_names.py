"""Classify resource names as the API server's rules do.

Source: `k8s.io/kubernetes/pkg/apis/core/helper`.
"""

from __future__ import annotations

import re

from webhook.model.bounded_cache import request_cache

HUGE_PAGES = "hugepages-"
REQUESTS = "requests."
_NATIVE = "kubernetes.io/"
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z", re.ASCII)
_CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")


@request_cache(1024)
def is_native(name: str) -> bool:
    """Return whether it is a resource of Kubernetes itself, such as every name without a prefix."""
    return "/" not in name or _NATIVE in name


@request_cache(1024)
def is_extended(name: str) -> bool:
    """Return whether it is an extended resource: counted in whole units, with requests that equal limits."""
    return not is_native(name) and not name.startswith(REQUESTS) and is_qualified_name(REQUESTS + name)


def is_huge_pages(name: str) -> bool:
    """Return whether it is a huge page resource."""
    return name.startswith(HUGE_PAGES)


def allows_overcommit(name: str) -> bool:
    """Return whether its limit may be above its request."""
    return is_native(name) and not is_huge_pages(name)


def is_qualified_name(name: str) -> bool:
    """Return whether it is a name, or a DNS prefix, a slash and a name."""
    prefix, slash, rest = name.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.match(prefix)):
        return False
    return len(rest) <= 63 and _NAME.match(rest) is not None


@request_cache(1024)
def is_container_resource(name: str) -> bool:
    """Return whether a container may name it at all."""
    if not is_qualified_name(name):
        return False
    if "/" not in name:
        return name in _CONTAINER_RESOURCES or is_huge_pages(name)
    return is_native(name) or is_extended(name)


def is_pod_level_resource(name: str) -> bool:
    """Return whether `spec.resources` of a pod may name it."""
    return is_qualified_name(name) and (name in ("cpu", "memory") or is_huge_pages(name))
