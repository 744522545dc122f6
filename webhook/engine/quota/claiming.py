"""What quotas will say of the claims that are made for a pod once it is stored.

The pod itself is taken; the claim is refused by and by, and the pod waits for it without a word to who made it.
Source: `pkg/quota/v1/evaluator/core/resource_claims.go`, `pkg/controller/resourceclaim`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.quota.refusing import NOTHING, QuotaRefusal, exceeded
from webhook.model.apimachinery import Quantity, add
from webhook.model.claims import Claiming, Classes, charge, is_filled
from webhook.model.objects import ResourceQuota
from webhook.model.paths import Path
from webhook.model.pods import Pod
from webhook.model.ranges import amounts_in
from webhook.model.scopes import is_scoped

Charge = Mapping[str, int]
NONE: Charge = {}


class ClaimRefusal(NamedTuple):
    """A claim of a pod that will not be made.

    Attributes:
        path: Where the pod names its template.
        claim: What the pod calls it.
        quotas: Every quota that refuses it.
    """

    path: Path
    claim: str
    quotas: tuple[QuotaRefusal, ...]


def refused_claim(pod: Pod, claiming: Claiming, quotas: Sequence[ResourceQuota]) -> ClaimRefusal | None:
    """The first claim of a pod that a quota refuses. Claims are made one by one, and none after one that is not."""
    made: Counter[str] = Counter()
    for place, claim in enumerate(pod.spec.resource_claims):
        template = claim.resource_claim_template_name
        if not template:
            continue
        if template not in claiming.templates:
            return None
        charged = charge(claiming.templates[template], claiming.classes)
        if found := tuple(claim_refusals(charged, quotas, claiming.classes, made)):
            return ClaimRefusal(("spec", "resourceClaims", place, "resourceClaimTemplateName"), claim.name, found)
        made.update(charged)
    return None


def claims_charge(pod: Pod, claiming: Claiming) -> Charge:
    """What the claims are charged that were made for a pod, as far as their templates are known."""
    charged: Counter[str] = Counter()
    for claim in pod.spec.resource_claims:
        if template := claiming.templates.get(claim.resource_claim_template_name):
            charged.update(charge(template, claiming.classes))
    return charged


def claim_refusals(
    charged: Charge, quotas: Sequence[ResourceQuota], classes: Classes, made: Charge = NONE
) -> Iterator[QuotaRefusal]:
    """Every quota that refuses a new claim. One with scopes counts no claims.

    Args:
        charged: What the claim is charged.
        classes: The classes of the cluster.
        made: What is charged before it, and not counted yet.
    """
    for quota in quotas:
        hard = amounts_in(quota.status.hard or quota.spec.hard)
        if is_scoped(quota) or not any(is_filled(key, classes) for key in hard):
            continue
        asked = {key: Quantity(count) for key, count in charged.items() if key in hard}
        own = {key: Quantity(count) for key, count in made.items()}
        used = {key: add(taken, own.get(key, NOTHING)) for key, taken in amounts_in(quota.status.used).items()}
        if found := exceeded(quota.metadata.name, asked, used, hard, own):
            yield found
