"""What the quota plugin would say of a pod, in its own words.

The plugin runs last and is exact; this predicts it.
Source: `k8s.io/apiserver/pkg/admission/plugin/resourcequota`, CheckRequest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.quota.charges import compute_pod_charge, is_best_effort_amounts, missing_required_resources
from webhook.model.apimachinery import Quantity, add_quantities, canonical_text, compare_quantities, negate_quantity
from webhook.model.claims import ClaimContext, DeviceClasses, claim_charge, is_filled_by_claims
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import PodAmounts
from webhook.model.pods import Pod
from webhook.model.quota_keys import resource_of_quota_key
from webhook.model.quota_scopes import has_scopes, quota_matches_pod

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


NO_QUANTITY = Quantity(0)
NO_OWN_USAGE: Mapping[str, Quantity] = {}
EnforcedQuota = tuple[ResourceQuota, ResourceList]
"""A quota that holds a pod, with its ceilings."""


class QuotaExcess(NamedTuple):
    """One key of a quota that a pod would take too much of.

    Attributes:
        own: What the pod holds already of what is used.
    """

    key: str
    requested: Quantity
    used: Quantity
    hard: Quantity
    own_usage: Quantity = NO_QUANTITY

    @property
    def fits_alone(self) -> bool:
        """Would there be room if nobody else held anything?"""
        return compare_quantities(add_quantities(self.own_usage, self.requested), self.hard) <= 0


class QuotaRefusal(NamedTuple):
    """Why one quota refuses a pod.

    Attributes:
        words: The API server's own words.
        excesses: The keys that would be exceeded; none where the quota objects to something else.
    """

    quota: str
    message: str
    excesses: tuple[QuotaExcess, ...] = ()


def predict_quota_refusals(pod: Pod, holders: PodAmounts, quotas: Sequence[ResourceQuota]) -> list[QuotaRefusal]:
    """Every quota that refuses a new pod, those that object to its form first, as the API server asks them first.

    Args:
        pod: What scopes look at besides amounts.
        holders: Its amounts, all defaults in.
    """
    holding = _matching_quotas(pod, quotas, best_effort=is_best_effort_amounts(holders))
    return _formal_refusals(holders, holding) + _capacity_refusals(
        holders, parse_resource_list(pod.spec.overhead), holding
    )


def predict_update_refusals(
    old: Pod, pod: Pod, before: PodAmounts, holders: PodAmounts, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Every quota that refuses a changed pod: only where it gets or loses a deadline, and so moves between quotas.

    Each that holds it now may object to its form, also one that came after it. A quota that counted it before charges
    nothing, since a pod's amounts do not change; resizes apart.
    """
    if _has_deadline(old) == _has_deadline(pod):
        return []
    best_effort = is_best_effort_amounts(before)
    holding = _matching_quotas(pod, quotas, best_effort=best_effort)
    new = [one for one in holding if not quota_matches_pod(one[0], old, best_effort=best_effort)]
    return _formal_refusals(holders, holding) + _capacity_refusals(holders, parse_resource_list(pod.spec.overhead), new)


def predict_resize_refusals(
    pod: Pod, before: PodAmounts, after: PodAmounts, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Every quota that refuses a running pod its new amounts: it is charged for what is more than before.

    Each may object to its form as well, also one that came after the pod.
    """
    holding = _matching_quotas(pod, quotas, best_effort=is_best_effort_amounts(before))
    overhead = parse_resource_list(pod.spec.overhead)
    outgrown = [found for one in holding if (found := _resize_refusal(before, after, overhead, *one))]
    return _formal_refusals(after, holding) + outgrown


def _matching_quotas(pod: Pod, quotas: Sequence[ResourceQuota], *, best_effort: bool) -> list[EnforcedQuota]:
    """The quotas that hold a pod, in their order."""
    return [(quota, enforced_hard(quota)) for quota in quotas if quota_matches_pod(quota, pod, best_effort=best_effort)]


def _formal_refusals(holders: PodAmounts, holding: Sequence[EnforcedQuota]) -> list[QuotaRefusal]:
    return [found for one in holding if (found := _formal_refusal(holders, *one))]


def _capacity_refusals(
    holders: PodAmounts, overhead: ResourceList, holding: Sequence[EnforcedQuota]
) -> list[QuotaRefusal]:
    charged = [(quota, hard, compute_pod_charge(holders, overhead, hard)) for quota, hard in holding]
    return [found for one in charged if (found := _capacity_refusal(*one))]


def _resize_refusal(
    before: PodAmounts, after: PodAmounts, overhead: ResourceList, quota: ResourceQuota, hard: ResourceList
) -> QuotaRefusal | None:
    had, asked = compute_pod_charge(before, overhead, hard), compute_pod_charge(after, overhead, hard)
    more = {key: add_quantities(amount, negate_quantity(had.get(key, NO_QUANTITY))) for key, amount in asked.items()}
    return _capacity_refusal(quota, hard, {key: amount for key, amount in more.items() if amount.unscaled > 0}, had)


def _has_deadline(pod: Pod) -> bool:
    return pod.spec.active_deadline_seconds is not None


def enforced_hard(quota: ResourceQuota) -> ResourceList:
    """The ceilings that are enforced: those counted; of a quota that is not counted yet, those written."""
    hard = parse_resource_list(quota.status.hard or quota.spec.hard)
    return {key: amount for key, amount in hard.items() if resource_of_quota_key(key)}


def _formal_refusal(holders: PodAmounts, quota: ResourceQuota, hard: ResourceList) -> QuotaRefusal | None:
    missing = missing_required_resources(holders, hard)
    if missing:
        each = "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())
        return QuotaRefusal(quota.metadata.name, f"failed quota: {quota.metadata.name}: must specify {each}")
    if not hard.keys() <= quota.status.used.keys():
        words = f"status unknown for quota: {quota.metadata.name}, resources: {','.join(sorted(hard))}"
        return QuotaRefusal(quota.metadata.name, words)
    return None


def _capacity_refusal(
    quota: ResourceQuota, hard: ResourceList, charged: ResourceList, own: Mapping[str, Quantity] = NO_OWN_USAGE
) -> QuotaRefusal | None:
    """The refusal of a quota that has no room for what is charged."""
    return check_quota_capacity(quota.metadata.name, charged, parse_resource_list(quota.status.used), hard, own)


def check_quota_capacity(
    name: str, charged: ResourceList, used: ResourceList, hard: ResourceList, own: Mapping[str, Quantity] = NO_OWN_USAGE
) -> QuotaRefusal | None:
    """The refusal of a quota that has no room for what is charged under its keys; `own` as of `QuotaExcess`."""
    found = [
        QuotaExcess(key, asked, used[key], hard[key], own.get(key, NO_QUANTITY))
        for key, asked in charged.items()
        if key in used and compare_quantities(add_quantities(used[key], asked), hard[key]) > 0
    ]
    if not found:
        return None
    found.sort()
    requested = _format_amount_list((excess.key, excess.requested) for excess in found)
    taken = _format_amount_list((excess.key, excess.used) for excess in found)
    limited = _format_amount_list((excess.key, excess.hard) for excess in found)
    words = f"exceeded quota: {name}, requested: {requested}, used: {taken}, limited: {limited}"
    return QuotaRefusal(name, words, tuple(found))


def _format_amount_list(amounts: Iterable[tuple[str, Quantity]]) -> str:
    return ",".join(f"{key}={canonical_text(amount)}" for key, amount in amounts)


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
    charged: ClaimCharges,
    quotas: Sequence[ResourceQuota],
    classes: DeviceClasses,
    made: ClaimCharges = NO_CLAIM_CHARGES,
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
        used = {
            key: add_quantities(taken, own.get(key, NO_QUANTITY))
            for key, taken in parse_resource_list(quota.status.used).items()
        }
        if found := check_quota_capacity(quota.metadata.name, asked, used, hard, own):
            yield found
