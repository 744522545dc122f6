"""Which keys of a ResourceQuota pods fill, and with what.

Source: `pkg/quota/v1/evaluator/core`. Extended resources count under `requests.` only: a key such as
`limits.nvidia.com/gpu` or a bare `nvidia.com/gpu` is accepted and never counted.
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
    """What a key counts: `side` of `resource`, or pods where `resource` is ""."""

    resource: str
    side: str


@lru_cache(maxsize=1024)
def resource_of_quota_key(key: str) -> CountedResource | None:
    """What pods are charged for under a key; None where no pod fills it.

    >>> counted("requests.nvidia.com/gpu"), counted("limits.nvidia.com/gpu")
    (Counted(resource='nvidia.com/gpu', side='requests'), None)
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
