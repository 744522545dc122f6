"""ResourceQuota: what counts, what the quota plugin would say of a pod, and what a rewrite may not do.

Advisory: the plugin runs last in the API server and is exact. This predicts its answer, words it better, and keeps a
rewrite from moving a pod to a key that is not counted as strictly.
"""

from webhook.engine.quota.admission import (
    QuotaRefusal,
    compute_claims_charge,
    predict_claim_refusals,
    predict_quota_refusals,
    predict_resize_refusals,
    predict_update_refusals,
)
from webhook.engine.quota.coverage import escapes_quota, find_full_quota
from webhook.engine.quota.findings import (
    QuotaConsumerLookup,
    claim_quota_violations,
    quota_violations,
    resize_quota_violations,
    update_quota_violations,
)
from webhook.engine.quota.release import release_pod_usage
from webhook.engine.quota.shared_quotas import compute_pod_weight, shared_quota_violations

__all__ = [
    "QuotaConsumerLookup",
    "QuotaRefusal",
    "claim_quota_violations",
    "compute_claims_charge",
    "compute_pod_weight",
    "escapes_quota",
    "find_full_quota",
    "predict_claim_refusals",
    "predict_quota_refusals",
    "predict_resize_refusals",
    "predict_update_refusals",
    "quota_violations",
    "release_pod_usage",
    "resize_quota_violations",
    "shared_quota_violations",
    "update_quota_violations",
]
