"""ResourceQuota: what counts, what the quota plugin would say of a pod, and what a rewrite may not do.

Advisory: the plugin runs last in the API server and is exact. This predicts its answer, words it better, and keeps a
rewrite from moving a pod to a key that is not counted as strictly.
"""

from webhook.engine.quota.claiming import predict_claim_refusals, compute_claims_charge
from webhook.engine.quota.escaping import escapes_quota, find_full_quota
from webhook.engine.quota.pooling import compute_pod_weight, shared_quota_violations
from webhook.engine.quota.refusing import QuotaRefusal, predict_quota_refusals, predict_resize_refusals, predict_update_refusals
from webhook.engine.quota.telling import QuotaConsumerLookup, claim_quota_violations, update_quota_violations, quota_violations, resize_quota_violations
from webhook.engine.quota.vacating import release_pod_usage

__all__ = [
    "QuotaConsumerLookup",
    "QuotaRefusal",
    "predict_claim_refusals",
    "claim_quota_violations",
    "compute_claims_charge",
    "escapes_quota",
    "find_full_quota",
    "update_quota_violations",
    "compute_pod_weight",
    "shared_quota_violations",
    "quota_violations",
    "predict_quota_refusals",
    "predict_resize_refusals",
    "predict_update_refusals",
    "resize_quota_violations",
    "release_pod_usage",
]
