"""Charge new claims and pods of files to ResourceQuotas, in order, as the API server does when it creates them.

Workloads are not charged, because files often have those that run already: the cluster's usage counts their pods. Nor
are shared quotas of policies.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from webhook.engine.claim_review import CLAIM_GROUP
from webhook.engine.decide import decide_replicas
from webhook.engine.quota.admission import predict_claim_refusals
from webhook.engine.quota.replicas import charge_claim
from webhook.model.admission import AdmissionRequest
from webhook.model.claims import ResourceClaim
from webhook.model.cluster_view import ClusterView
from webhook.model.decisions import Decision
from webhook.model.usage import UsageView
from webhook.policy.policy_set import PolicySet
from webhook.report.object_diff import apply_json_patch


def view_after_creation(
    request: AdmissionRequest,
    decision: Decision,
    policies: PolicySet,
    view: ClusterView,
    usage: UsageView,
    now: datetime,
) -> ClusterView:
    """Return the view after a claim or a pod was created, which the webhook admits, if quotas admit it too."""
    if (request.group, request.kind) == (CLAIM_GROUP, "ResourceClaim"):
        return _with_claim(request, decision, view)
    if request.pod is None or view.has_pod(request.namespace, request.name):
        return view
    decided = decide_replicas(request, request.pod, 1, policies, view, usage, now)
    for each in decided.alike:
        replica = each.replica and each.replica._replace(weight=())  # shared quotas are not charged
        view = each._replace(replica=replica).charge(view)
    return view


def _with_claim(request: AdmissionRequest, decision: Decision, view: ClusterView) -> ClusterView:
    spec = msgspec.convert(apply_json_patch(request.load_object(), decision.patch), ResourceClaim).spec
    charge = view.claim_context(request.namespace).charge(spec)
    is_rejected = any(predict_claim_refusals(charge, view.quotas(request.namespace), view.classes))
    return view if is_rejected else charge_claim(view, request.namespace, charge)
