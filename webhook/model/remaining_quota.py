"""What a quota leaves, reckoned once: enough to see at a glance that a pod fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.claims import ClaimContext, claim_charge
from webhook.model.limit_ranges import exact_milli, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_summary import PodSummary
from webhook.model.quantity import NANO
from webhook.model.quota_keys import CountedResource, resource_of_quota_key
from webhook.model.quota_scopes import has_scopes, scopes_match

REQUIRED_KEYS = frozenset(
    {"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"},
)
"""Keys that every container of a pod must name where a quota counts them."""


class RemainingQuota(NamedTuple):
    """One quota.

    Attributes:
        plain: False where it is not as plain as this: it has to be looked at closely.
        scoped: True if it counts some pods only.
        left: Thousandths that are left, for everything that pods are charged for.
        named: What every container must name.
    """

    quota: ResourceQuota
    simple: bool
    scoped: bool
    remaining: tuple[tuple[CountedResource, int], ...]
    required: tuple[CountedResource, ...]


def compute_remaining_quota(quota: ResourceQuota) -> RemainingQuota:
    """Reckon what a quota leaves."""
    hard, used = parse_resource_list(quota.status.hard or quota.spec.hard), parse_resource_list(quota.status.used)
    left: list[tuple[CountedResource, int]] = []
    named: list[CountedResource] = []
    plain = True
    for key, amount in hard.items():
        what = resource_of_quota_key(key)
        if what is None:
            continue
        most, taken = exact_milli(amount), exact_milli(used[key]) if key in used else None
        if most is None or taken is None:
            plain = False
            continue
        left.append((what, most - taken))
        if key in REQUIRED_KEYS:
            named.append(what)
    return RemainingQuota(quota, plain, has_scopes(quota), tuple(left), tuple(named))


class QuotaConsumer(NamedTuple):
    """What one pod, or one namespace, takes of something that is counted; of a quota's key in nano-units."""

    amount: int
    name: str


def list_quota_consumers(
    quota: ResourceQuota, what: CountedResource, lines: Mapping[str, PodSummary]
) -> tuple[QuotaConsumer, ...]:
    """What the pods that a quota counts hold, the largest first; pods themselves are not held.

    Args:
        lines: The pods of the namespace that have not ended, by name.
    """
    if not what.resource:
        return ()
    each = (
        QuotaConsumer(line.counted_amount(what), name) for name, line in lines.items() if scopes_match(quota, line.kind)
    )
    return sort_consumers(each)


def list_claim_consumers(
    key: str, claiming: ClaimContext, lines: Mapping[str, PodSummary]
) -> tuple[QuotaConsumer, ...]:
    """What pods hold of a key that claims fill, the largest first: by their templates as they are now, and themselves.

    Args:
        lines: The pods of the namespace that have not ended, by name.
    """
    each = {name: NANO * claim_charge(spec, claiming.classes).get(key, 0) for name, spec in claiming.templates.items()}
    what = resource_of_quota_key(key)
    return sort_consumers(
        QuotaConsumer(
            sum(each.get(name, 0) for name in line.claim_templates) + (line.counted_amount(what) if what else 0), pod
        )
        for pod, line in lines.items()
    )


def sort_consumers(holdings: Iterable[QuotaConsumer]) -> tuple[QuotaConsumer, ...]:
    """Those that hold anything, the largest first."""
    return tuple(sorted((one for one in holdings if one.amount), key=lambda one: (-one.amount, one.name)))
