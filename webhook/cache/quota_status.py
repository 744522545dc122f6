"""Compute the status of a quota that no controller has counted, as the quota controller's pod evaluator does."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from webhook.model.claims import NO_CLAIMS, ClaimContext, is_filled_by_claims
from webhook.model.objects import ResourceQuota, ResourceQuotaStatus
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import Pod, QuantityText
from webhook.model.quantity import NANO, format_nano
from webhook.model.quota_matching import has_scopes, quota_matches_pod, resource_of_quota_key


def with_quota_status(quota: ResourceQuota, pods: Sequence[Pod], claiming: ClaimContext = NO_CLAIMS) -> ResourceQuota:
    """Return the quota with a status; usage that was not counted yet is computed from the pods.

    Args:
        quota: The quota, from a cluster or from a file.
        pods: The active pods of its namespace.
        claiming: The templates and classes of their claims.
    """
    status = quota.status
    hard = status.hard or quota.spec.hard
    if status.used:
        return msgspec.structs.replace(quota, status=ResourceQuotaStatus(hard=hard, used=status.used))
    matching = [pod for pod in pods if quota_matches_pod(quota, pod)]
    claiming_pods = () if has_scopes(quota) else pods
    used: dict[str, QuantityText] = {
        key: format_nano(_used_by_pods(key, matching) + _used_by_claims(key, claiming_pods, claiming))
        for key in hard
        if resource_of_quota_key(key) or is_filled_by_claims(key, claiming.classes)
    }
    return msgspec.structs.replace(quota, status=ResourceQuotaStatus(hard=hard, used=used))


def _used_by_pods(key: str, pods: Sequence[Pod]) -> int:
    what = resource_of_quota_key(key)
    if what is None:
        return 0
    if not what.resource:
        return NANO * len(pods)
    return max(0, sum(effective_amount(pod, what.resource, limits=what.side == "limits") for pod in pods))


def _used_by_claims(key: str, pods: Sequence[Pod], claiming: ClaimContext) -> int:
    names = (claim.resource_claim_template_name for pod in pods for claim in pod.spec.resource_claims)
    found = (claiming.templates[name] for name in names if name in claiming.templates)
    return NANO * sum(claiming.charge(spec).get(key, 0) for spec in found)
