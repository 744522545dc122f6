"""Compute what is left of a quota, for the fast path, and the pods that use most of it."""

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
"""Keys whose resource every container must name if a quota has them."""


class RemainingQuota(NamedTuple):
    """What is left of one quota.

    Attributes:
        simple: False if an amount cannot be expressed exactly in thousandths.
        scoped: True if it has scopes.
        remaining: Remaining thousandths of every amount that it counts.
        required: The amounts that every container must name.
    """

    quota: ResourceQuota
    simple: bool
    scoped: bool
    remaining: tuple[tuple[CountedResource, int], ...]
    required: tuple[CountedResource, ...]


def compute_remaining_quota(quota: ResourceQuota) -> RemainingQuota:
    """Return what is left of a quota."""
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
    """The amount that one pod or namespace uses; in nano-units for a key of a quota."""

    amount: int
    name: str


def list_quota_consumers(
    quota: ResourceQuota, what: CountedResource, lines: Mapping[str, PodSummary]
) -> tuple[QuotaConsumer, ...]:
    """Return the pods that use an amount counted by a quota, the largest first; none for the number of pods.

    `lines` are the pods of the namespace that have not ended, by name.
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
    """Return the pods that use a key counted for claims, the largest first, by the current content of their templates.

    `lines` are the pods of the namespace that have not ended, by name.
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
    """Return consumers of more than zero, the largest first."""
    return tuple(sorted((one for one in holdings if one.amount), key=lambda one: (-one.amount, one.name)))
