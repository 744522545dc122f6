"""What quotas will say of the claims that are made for a pod once it is stored.

The pod itself is taken; the claim is refused by and by, and the pod waits for it without a word to who made it.
Source: `pkg/quota/v1/evaluator/core/resource_claims.go`, `pkg/controller/resourceclaim`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.quota.refusing import NO_QUANTITY, QuotaRefusal, check_quota_capacity
from webhook.model.apimachinery import Quantity, add_quantities
from webhook.model.claims import ClaimContext, DeviceClasses, claim_charge, is_filled_by_claims
from webhook.model.objects import ResourceQuota
from webhook.model.paths import FieldPath
from webhook.model.pods import Pod
from webhook.model.ranges import parse_resource_list
from webhook.model.scopes import has_scopes

ClaimCharges = Mapping[str, int]
NO_CLAIM_CHARGES: ClaimCharges = {}


class ClaimRefusal(NamedTuple):
    """A claim of a pod that will not be made.

    Attributes:
        path: Where the pod names its template.
        claim: What the pod calls it.
        quotas: Every quota that refuses it.
    """

    path: FieldPath
    claim: str
    quotas: tuple[QuotaRefusal, ...]


def find_refused_claim(pod: Pod, claiming: ClaimContext, quotas: Sequence[ResourceQuota]) -> ClaimRefusal | None:
    """The first claim of a pod that a quota refuses. Claims are made one by one, and none after one that is not."""
    made: Counter[str] = Counter()
    for place, claim in enumerate(pod.spec.resource_claims):
        template = claim.resource_claim_template_name
        if not template:
            continue
        if template not in claiming.templates:
            return None
        charged = claim_charge(claiming.templates[template], claiming.classes)
        if found := tuple(predict_claim_refusals(charged, quotas, claiming.classes, made)):
            return ClaimRefusal(("spec", "resourceClaims", place, "resourceClaimTemplateName"), claim.name, found)
        made.update(charged)
    return None


def compute_claims_charge(pod: Pod, claiming: ClaimContext) -> ClaimCharges:
    """What the claims are charged that were made for a pod, as far as their templates are known."""
    charged: Counter[str] = Counter()
    for claim in pod.spec.resource_claims:
        if template := claiming.templates.get(claim.resource_claim_template_name):
            charged.update(claim_charge(template, claiming.classes))
    return charged


def predict_claim_refusals(
    charged: ClaimCharges, quotas: Sequence[ResourceQuota], classes: DeviceClasses, made: ClaimCharges = NO_CLAIM_CHARGES
) -> Iterator[QuotaRefusal]:
    """Every quota that refuses a new claim. One with scopes counts no claims.

    Args:
        charged: What the claim is charged.
        classes: The classes of the cluster.
        made: What is charged before it, and not counted yet.
    """
    for quota in quotas:
        hard = parse_resource_list(quota.status.hard or quota.spec.hard)
        if has_scopes(quota) or not any(is_filled_by_claims(key, classes) for key in hard):
            continue
        asked = {key: Quantity(count) for key, count in charged.items() if key in hard}
        own = {key: Quantity(count) for key, count in made.items()}
        used = {key: add_quantities(taken, own.get(key, NO_QUANTITY)) for key, taken in parse_resource_list(quota.status.used).items()}
        if found := check_quota_capacity(quota.metadata.name, asked, used, hard, own):
            yield found
