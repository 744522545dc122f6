"""Map the keys of a ResourceQuota to the pod amounts that they count.

Source: `pkg/quota/v1/evaluator/core`. Extended resources count under `requests.` only: keys such as
`limits.nvidia.com/gpu` or a bare `nvidia.com/gpu` are accepted and never counted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from webhook.model.gpu_resources import DEVICE_CLASS_PREFIX
from webhook.model.resource_names import is_huge_pages, is_native

_OBJECTS = ("pods", "count/pods")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_REQUESTS, _LIMITS = "requests.", "limits."


class CountedResource(NamedTuple):
    """The amount that a key counts: `side` of `resource`, or pods if `resource` is ""."""

    resource: str
    side: str


@lru_cache(maxsize=1024)
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
