"""Would a rewrite leave a quota behind, or run into one?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from webhook.errors import QuantityError
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod, QuantityText
from webhook.model.quantity import parse_units
from webhook.model.quota_scopes import quota_matches_pod


def _hard_limits(quota: ResourceQuota) -> Mapping[str, QuantityText]:
    """What is enforced: the counted ceilings; of a quota that is not counted yet, those written."""
    return quota.status.hard or quota.spec.hard


def _remaining_units(quota: ResourceQuota, name: str) -> int | None:
    """Units of a resource that a quota still allows; None if it does not count it, or cannot be read."""
    key = f"requests.{name}"
    hard = _hard_limits(quota).get(key)
    if hard is None:
        return None
    try:
        return parse_units(hard) - parse_units(quota.status.used.get(key, 0))
    except QuantityError:
        return None


def find_full_quota(quotas: Sequence[ResourceQuota], pod: Pod, target: str) -> str:
    """The name of the first quota without room for one more unit of `target`; "" where all have room."""
    for quota in quotas:
        left = _remaining_units(quota, target) if quota_matches_pod(quota, pod) else None
        if left is not None and left < 1:
            return quota.metadata.name or "without a name"
    return ""


def escapes_quota(quotas: Sequence[ResourceQuota], pod: Pod, source: str, target: str, *, accounted: str = "") -> bool:
    """Would asking for `target` instead of `source` leave a quota behind?

    Args:
        accounted: Name of the accounting resource if the pod carries it too: a quota on it covers both forms.
    """
    for quota in quotas:
        if not quota_matches_pod(quota, pod):
            continue
        hard = _hard_limits(quota)
        source_key, target_key = f"requests.{source}", f"requests.{target}"
        if source_key in hard and target_key not in hard and not (accounted and f"requests.{accounted}" in hard):
            return True
    return False
