"""Check that a smaller GPU stays covered by the quotas that count the original request, and fits them."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.errors import QuantityError
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import quota_matches_pod


def find_full_quota(quotas: Sequence[ResourceQuota], pod: Pod, target: str) -> str:
    """Return the name of the first quota with less than one unit of `target` left; "" if there is none.

    A quota whose amounts cannot be read is skipped.
    """
    key = f"requests.{target}"
    for quota in quotas:
        hard = (quota.status.hard or quota.spec.hard).get(key)
        if hard is None or not quota_matches_pod(quota, pod):
            continue
        try:
            remaining = parse_units(hard) - parse_units(quota.status.used.get(key, 0))
        except QuantityError:
            continue
        if remaining < 1:
            return quota.metadata.name or "without a name"
    return ""


def escapes_quota(
    quotas: Sequence[ResourceQuota], pod: Pod, requested: str, target: str, *, accounted: str = ""
) -> bool:
    """Return whether a quota that counts `requested` would not count `target`.

    Args:
        requested: The requested resource.
        target: The resource that replaces it.
        accounted: The accounting resource, if the pod carries it: a quota on it counts both.
    """
    for quota in quotas:
        if not quota_matches_pod(quota, pod):
            continue
        hard = quota.status.hard or quota.spec.hard
        requested_key, target_key = f"requests.{requested}", f"requests.{target}"
        if requested_key in hard and target_key not in hard and not (accounted and f"requests.{accounted}" in hard):
            return True
    return False
