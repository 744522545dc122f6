"""ResourceQuotas and shared quotas: predict rejections, and keep a smaller GPU from escaping a quota.

ResourceQuotas are enforced by the API server: `admission` predicts its answer, `findings` words it, `charges` computes
usage, `coverage` guards rewrites. `shared_quotas` is enforced here.
"""

from webhook.engine.quota.admission import compute_claims_charge
from webhook.engine.quota.charges import release_pod_usage
from webhook.engine.quota.coverage import escapes_quota, find_full_quota
from webhook.engine.quota.findings import (
    QuotaConsumerLookup,
    claim_quota_violations,
    quota_violations,
    resize_quota_violations,
    update_quota_violations,
)
from webhook.engine.quota.shared_quotas import compute_pod_weight, shared_quota_violations

__all__ = [
    "QuotaConsumerLookup",
    "claim_quota_violations",
    "compute_claims_charge",
    "compute_pod_weight",
    "escapes_quota",
    "find_full_quota",
    "quota_violations",
    "release_pod_usage",
    "resize_quota_violations",
    "shared_quota_violations",
    "update_quota_violations",
]
