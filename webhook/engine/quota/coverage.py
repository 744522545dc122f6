"""Check that a smaller GPU stays covered by the quotas that count the original request, and fits them."""

from __future__ import annotations

from collections.abc import Sequence

from webhook.errors import QuantityError
from webhook.model.claims import CLAIM_COUNT_KEY, ClaimSpec, claim_charge, claim_of_class
from webhook.model.cluster_view import ClusterView
from webhook.model.dra.extended_resources import ClassByResource
from webhook.model.gpu_resources import WHOLE_GPU
from webhook.model.objects import ResourceQuota
from webhook.model.pods import Pod
from webhook.model.quantity import parse_units
from webhook.model.quota_matching import has_scopes, quota_matches_pod


def find_full_quota(quotas: Sequence[ResourceQuota], pod: Pod, target: str) -> str:
    """Return the name of the first quota with less than one unit of `target` left; "" if there is none.

    A quota whose amounts cannot be read is skipped.
    """
    key = f"requests.{target}"
    for quota in quotas:
        hard = (quota.status.hard or quota.spec.hard).get(key)
        if hard is None or not quota_matches_pod(quota, pod):
            continue
        try:
            remaining = parse_units(hard) - parse_units(quota.status.used.get(key, 0))
        except QuantityError:
            continue
        if remaining < 1:
            return quota.metadata.name or "without a name"
    return ""


def escapes_quota(
    quotas: Sequence[ResourceQuota], pod: Pod, requested: str, target: str, *, accounted: str = ""
) -> bool:
    """Return whether a quota that counts `requested` would not count `target`.

    Args:
        requested: The requested resource.
        target: The resource that replaces it.
        accounted: The accounting resource, if the pod carries it: a quota on it counts both.
    """
    for quota in quotas:
        if not quota_matches_pod(quota, pod):
            continue
        hard = quota.status.hard or quota.spec.hard
        requested_key, target_key = f"requests.{requested}", f"requests.{target}"
        if requested_key in hard and target_key not in hard and not (accounted and f"requests.{accounted}" in hard):
            return True
    return False


def escapes_quota_by_class(quotas: Sequence[ResourceQuota], pod: Pod, target: str, view: ClusterView) -> bool:
    """Return whether a quota that counts a whole GPU of a pod would not count a device of a class.

    The scheduler makes a claim for the device, which quotas without scopes count too.

    Args:
        target: The extended resource that the class serves.
    """
    served = view.devices.class_by_resource
    before, after = _quota_keys(WHOLE_GPU, served, view), _quota_keys(target, served, view)
    for quota in quotas:
        hard = (quota.status.hard or quota.spec.hard).keys()
        if has_scopes(quota):
            counted = quota_matches_pod(quota, pod) and f"requests.{WHOLE_GPU}" in hard
            if counted and f"requests.{target}" not in hard:
                return True
        elif not hard.isdisjoint(before) and hard.isdisjoint(after):
            return True
    return False


def _quota_keys(resource: str, served: ClassByResource, view: ClusterView) -> set[str]:
    """Return the keys by which quotas count an extended resource: those of pods, and of the claim that serves it."""
    claim = claim_of_class(served[resource]) if resource in served else ClaimSpec()
    return {f"requests.{resource}", *claim_charge(claim, view.classes)} - {CLAIM_COUNT_KEY}


def find_full_quota_by_class(quotas: Sequence[ResourceQuota], pod: Pod, target: str, view: ClusterView) -> str:
    """Return the first quota that may refuse a pod with a device of a class, or the claim that is made for it.

    Claims are made later than pods, so that those of pods that wait must fit too.
    """
    served = view.devices.class_by_resource
    names = list(view.class_offers().by_resource)
    charge = claim_charge(claim_of_class(served[target]), view.classes)
    for quota in quotas:
        left = {} if has_scopes(quota) else {key: _units_left(quota, key) for key in charge}
        waiting = all(
            units is None or all(view.has_fewer_pending(name, units // len(names)) for name in names)
            for units in left.values()
        )
        if not waiting:
            return quota.metadata.name or "without a name"
    return find_full_quota(quotas, pod, target)


def _units_left(quota: ResourceQuota, key: str) -> int | None:
    """Return what a quota leaves of a key; None if it does not count it. An amount that cannot be read leaves none."""
    hard = (quota.status.hard or quota.spec.hard).get(key)
    if hard is None:
        return None
    try:
        return parse_units(hard) - parse_units(quota.status.used.get(key, 0))
    except QuantityError:
        return 0
