"""Predict which ResourceQuotas reject a pod, its update or resize, or a claim created for it later.

The API server checks quotas last and exactly; this is a prediction, in its words. A claim is created after its pod was
stored: the pod is accepted, the claim rejected, and the pod stays Pending.
Sources: `k8s.io/apiserver/pkg/admission/plugin/resourcequota`, CheckRequest;
`pkg/quota/v1/evaluator/core/resource_claims.go`, `pkg/controller/resourceclaim`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from webhook.engine.quota.charges import (
    NO_CLAIM_CHARGES,
    ClaimCharges,
    compute_pod_charge,
    is_best_effort_amounts,
    missing_required_resources,
)
from webhook.model.apimachinery import (
    ZERO,
    Quantity,
    add_quantities,
    canonical_text,
    compare_quantities,
    negate_quantity,
)
from webhook.model.claims import NO_CLAIM, ClaimContext, ClaimSpec, DeviceClasses, is_filled_by_claims
from webhook.model.field_paths import FieldPath
from webhook.model.limit_ranges import ResourceList, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_amounts import PodAmounts
from webhook.model.pod_resources import effective_amount
from webhook.model.pods import Pod
from webhook.model.quantity import NANO
from webhook.model.quota_matching import has_scopes, quota_matches_pod, resource_of_quota_key

NO_OWN_USAGE: Mapping[str, Quantity] = {}
EnforcedQuota = tuple[ResourceQuota, ResourceList]
"""A quota that matches a pod, with its hard limits."""


class QuotaExcess(NamedTuple):
    """One key of a quota that would be exceeded.

    Attributes:
        own_usage: The part of `used` that the pod itself already has.
    """

    key: str
    requested: Quantity
    used: Quantity
    hard: Quantity
    own_usage: Quantity = ZERO

    @property
    def fits_alone(self) -> bool:
        """Return whether it would fit if nothing else used the quota."""
        return compare_quantities(add_quantities(self.own_usage, self.requested), self.hard) <= 0


class QuotaRefusal(NamedTuple):
    """The rejection of a pod or claim by one quota.

    Attributes:
        message: The API server's message.
        excesses: The keys that would be exceeded; none for any other reason.
    """

    quota: str
    message: str
    excesses: tuple[QuotaExcess, ...] = ()


class ClaimRefusal(NamedTuple):
    """A claim of a pod that will not be created.

    Attributes:
        path: The field of the pod that causes it.
        claim: The claim, in words.
        quotas: Every quota that rejects it.
    """

    path: FieldPath
    claim: str
    quotas: tuple[QuotaRefusal, ...]


def predict_quota_refusals(pod: Pod, amounts: PodAmounts, quotas: Sequence[ResourceQuota]) -> list[QuotaRefusal]:
    """Return every quota that rejects a new pod: formal reasons first, as the API server checks them first.

    `amounts` are the pod's after all defaults.
    """
    matching = _matching_quotas(pod, quotas, best_effort=is_best_effort_amounts(amounts))
    return _formal_refusals(amounts, matching) + _capacity_refusals(pod, amounts, matching)


def predict_update_refusals(
    old: Pod, pod: Pod, before: PodAmounts, amounts: PodAmounts, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Return every quota that rejects an update: only of one that adds or removes a deadline, and so changes quotas.

    Every matching quota checks the form, also one created after the pod. One that counted the pod before charges
    nothing, since amounts change by resize only.
    """
    if (old.spec.active_deadline_seconds is None) == (pod.spec.active_deadline_seconds is None):
        return []
    best_effort = is_best_effort_amounts(before)
    matching = _matching_quotas(pod, quotas, best_effort=best_effort)
    new = [one for one in matching if not quota_matches_pod(one[0], old, best_effort=best_effort)]
    return _formal_refusals(amounts, matching) + _capacity_refusals(pod, amounts, new)


def predict_resize_refusals(
    pod: Pod, before: PodAmounts, after: PodAmounts, quotas: Sequence[ResourceQuota]
) -> list[QuotaRefusal]:
    """Return every quota that rejects a resize, which is charged for the increase.

    Every matching quota checks the form, also one created after the pod.
    """
    matching = _matching_quotas(pod, quotas, best_effort=is_best_effort_amounts(before))
    overhead = parse_resource_list(pod.spec.overhead)
    refusals = _formal_refusals(after, matching)
    for quota, hard in matching:
        own, new = compute_pod_charge(before, overhead, hard), compute_pod_charge(after, overhead, hard)
        increase = {key: add_quantities(amount, negate_quantity(own.get(key, ZERO))) for key, amount in new.items()}
        charged = {key: more for key, more in increase.items() if more.unscaled > 0}
        if refusal := _capacity_refusal(quota, hard, charged, own):
            refusals.append(refusal)
    return refusals


def find_refused_claim(
    pod: Pod,
    claiming: ClaimContext,
    quotas: Sequence[ResourceQuota],
    of_scheduler: ClaimSpec = NO_CLAIM,
    own: ClaimCharges = NO_CLAIM_CHARGES,
) -> ClaimRefusal | None:
    """Return the first claim made for a pod that a quota rejects; later ones are not created then.

    Args:
        of_scheduler: The claim that the scheduler makes for extended resources, after the others.
        own: The charge of the pod itself, which is created first.
    """
    created = Counter(own)
    for index, claim in enumerate(pod.spec.resource_claims):
        template = claim.resource_claim_template_name
        if not template:
            continue
        if template not in claiming.templates:
            return None
        charged = claiming.charge(claiming.templates[template])
        if refusals := tuple(predict_claim_refusals(charged, quotas, claiming.classes, created)):
            path = ("spec", "resourceClaims", index, "resourceClaimTemplateName")
            return ClaimRefusal(path, f"claim {claim.name}", refusals)
        created.update(charged)
    if not (charged := _charge_of_scheduler(of_scheduler, pod, claiming)):
        return None
    refusals = tuple(predict_claim_refusals(charged, quotas, claiming.classes, created))
    return ClaimRefusal(("spec",), "the claim for its extended resources", refusals) if refusals else None


def charge_by_names(pod: Pod, quotas: Iterable[ResourceQuota]) -> ClaimCharges:
    """Return what a pod itself requests of each resource, in whole units, by key of these quotas: CPU too."""
    return _charge_by_keys(pod, {key for quota in quotas for key in (quota.status.hard or quota.spec.hard)})


def _charge_by_keys(pod: Pod, keys: Iterable[str]) -> ClaimCharges:
    return {key: effective_amount(pod, key.removeprefix("requests.")) // NANO for key in keys}


def _charge_of_scheduler(spec: ClaimSpec, pod: Pod, claiming: ClaimContext) -> ClaimCharges:
    """Return the charge of the claim that the scheduler makes: without what its pod has under the same keys."""
    if not (spec.devices.requests and claiming.counts_names):
        return NO_CLAIM_CHARGES
    charged = claiming.charge(spec)
    own = _charge_by_keys(pod, charged)
    return {key: count - own[key] for key, count in charged.items() if count > own[key]}


def compute_claims_charge(pod: Pod, claiming: ClaimContext, of_scheduler: ClaimSpec = NO_CLAIM) -> ClaimCharges:
    """Return the charge of the claims made for a pod, as far as their templates are known. See `find_refused_claim`."""
    charged = Counter(_charge_of_scheduler(of_scheduler, pod, claiming))
    for claim in pod.spec.resource_claims:
        if template := claiming.templates.get(claim.resource_claim_template_name):
            charged.update(claiming.charge(template))
    return charged


def predict_claim_refusals(
    charged: ClaimCharges,
    quotas: Sequence[ResourceQuota],
    classes: DeviceClasses,
    created: ClaimCharges = NO_CLAIM_CHARGES,
) -> Iterator[QuotaRefusal]:
    """Yield every quota that rejects a new claim; quotas with scopes count no claims.

    Args:
        charged: The charge of the claim.
        created: The charge of claims created before it, not counted in the quotas yet.
    """
    for quota in quotas_of_claims(quotas, classes):
        keys = quota.status.hard or quota.spec.hard
        if charged.keys().isdisjoint(keys):
            continue
        hard = parse_resource_list(keys)
        requested = {key: Quantity(count) for key, count in charged.items() if key in hard}
        own = {key: Quantity(count) for key, count in created.items()}
        used = {
            key: add_quantities(amount, own.get(key, ZERO))
            for key, amount in parse_resource_list(quota.status.used).items()
        }
        if refusal := check_quota_capacity(quota.metadata.name, requested, used, hard, own):
            yield refusal


def quotas_of_claims(quotas: Iterable[ResourceQuota], classes: DeviceClasses) -> list[ResourceQuota]:
    """Return the quotas that count claims: those without scopes that have a key which claims fill."""
    return [
        quota
        for quota in quotas
        if any(is_filled_by_claims(key, classes) for key in (quota.status.hard or quota.spec.hard))
        and not has_scopes(quota)
    ]


def check_quota_capacity(
    name: str, charged: ResourceList, used: ResourceList, hard: ResourceList, own: Mapping[str, Quantity] = NO_OWN_USAGE
) -> QuotaRefusal | None:
    """Return the rejection of a charge that exceeds a quota; `own` is what the pod already has of `used`."""
    excesses = sorted(
        QuotaExcess(key, requested, used[key], hard[key], own.get(key, ZERO))
        for key, requested in charged.items()
        if key in used and compare_quantities(add_quantities(used[key], requested), hard[key]) > 0
    )
    if not excesses:
        return None
    requested = _format_amount_list((excess.key, excess.requested) for excess in excesses)
    taken = _format_amount_list((excess.key, excess.used) for excess in excesses)
    limited = _format_amount_list((excess.key, excess.hard) for excess in excesses)
    message = f"exceeded quota: {name}, requested: {requested}, used: {taken}, limited: {limited}"
    return QuotaRefusal(name, message, tuple(excesses))


def _matching_quotas(pod: Pod, quotas: Sequence[ResourceQuota], *, best_effort: bool) -> list[EnforcedQuota]:
    """Return the quotas that match a pod, with the limits in their status, or in their spec if not counted yet."""
    matching: list[EnforcedQuota] = []
    for quota in quotas:
        if quota_matches_pod(quota, pod, best_effort=best_effort):
            hard = parse_resource_list(quota.status.hard or quota.spec.hard)
            matching.append((quota, {key: amount for key, amount in hard.items() if resource_of_quota_key(key)}))
    return matching


def _formal_refusals(amounts: PodAmounts, matching: Sequence[EnforcedQuota]) -> list[QuotaRefusal]:
    refusals: list[QuotaRefusal] = []
    for quota, hard in matching:
        name, missing = quota.metadata.name, missing_required_resources(amounts, hard)
        if missing:
            each = "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())
            refusals.append(QuotaRefusal(name, f"failed quota: {name}: must specify {each}"))
        elif not hard.keys() <= quota.status.used.keys():
            message = f"status unknown for quota: {name}, resources: {','.join(sorted(hard))}"
            refusals.append(QuotaRefusal(name, message))
    return refusals


def _capacity_refusals(pod: Pod, amounts: PodAmounts, matching: Sequence[EnforcedQuota]) -> list[QuotaRefusal]:
    overhead = parse_resource_list(pod.spec.overhead)
    charged = [(quota, hard, compute_pod_charge(amounts, overhead, hard)) for quota, hard in matching]
    return [refusal for one in charged if (refusal := _capacity_refusal(*one))]


def _capacity_refusal(
    quota: ResourceQuota, hard: ResourceList, charged: ResourceList, own: Mapping[str, Quantity] = NO_OWN_USAGE
) -> QuotaRefusal | None:
    return check_quota_capacity(quota.metadata.name, charged, parse_resource_list(quota.status.used), hard, own)


def _format_amount_list(amounts: Iterable[tuple[str, Quantity]]) -> str:
    return ",".join(f"{key}={canonical_text(amount)}" for key, amount in amounts)
