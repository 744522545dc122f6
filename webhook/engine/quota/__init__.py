"""ResourceQuota: what counts, what the quota plugin would say of a pod, and what a rewrite may not do.

Advisory: the plugin runs last in the API server and is exact. This predicts its answer, words it better, and keeps a
rewrite from moving a pod to a key that is not counted as strictly.
"""

from webhook.engine.quota.claiming import claim_refusals, claims_charge
from webhook.engine.quota.escaping import escapes, full
from webhook.engine.quota.pooling import pod_weight, pool_remarks
from webhook.engine.quota.refusing import QuotaRefusal, refusals, refusals_on_resize, refusals_on_update
from webhook.engine.quota.telling import Held, claim_remarks, moved_remarks, quota_remarks, resized_remarks
from webhook.engine.quota.vacating import vacated

__all__ = [
    "Held",
    "QuotaRefusal",
    "claim_refusals",
    "claim_remarks",
    "claims_charge",
    "escapes",
    "full",
    "moved_remarks",
    "pod_weight",
    "pool_remarks",
    "quota_remarks",
    "refusals",
    "refusals_on_resize",
    "refusals_on_update",
    "resized_remarks",
    "vacated",
]
