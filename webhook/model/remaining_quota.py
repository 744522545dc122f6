"""Compute what is left of a quota, for the fast path, and the pods that use most of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from webhook.model.claims import ClaimContext
from webhook.model.limit_ranges import exact_milli, parse_resource_list
from webhook.model.objects import ResourceQuota
from webhook.model.pod_summary import PodSummary
from webhook.model.quantity import NANO
from webhook.model.quota_matching import CountedResource, has_scopes, resource_of_quota_key, scopes_match

REQUIRED_KEYS = frozenset(
    {"cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"},
)
"""Keys whose resource every container must name if a quota has them."""


class RemainingQuota(NamedTuple):
    """The remainder of one quota.

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


class QuotaConsumer(NamedTuple):
    """The amount that one pod or namespace uses; in nano-units for a key of a quota."""

    amount: int
    name: str


def compute_remaining_quota(quota: ResourceQuota) -> RemainingQuota:
    """Return the remainder of a quota."""
    hard, used = parse_resource_list(quota.status.hard or quota.spec.hard), parse_resource_list(quota.status.used)
    remaining: list[tuple[CountedResource, int]] = []
    required: list[CountedResource] = []
    simple = True
    for key, amount in hard.items():
        counted = resource_of_quota_key(key)
        if counted is None:
            continue
        limit, usage = exact_milli(amount), exact_milli(used[key]) if key in used else None
        if limit is None or usage is None:
            simple = False
            continue
        remaining.append((counted, limit - usage))
        if key in REQUIRED_KEYS:
            required.append(counted)
    return RemainingQuota(quota, simple, has_scopes(quota), tuple(remaining), tuple(required))


def list_quota_consumers(
    quota: ResourceQuota, counted: CountedResource, pods: Mapping[str, PodSummary]
) -> tuple[QuotaConsumer, ...]:
    """Return the pods that use an amount counted by a quota, the largest first; none for the number of pods.

    `pods` are the pods of the namespace that have not ended, by name.
    """
    if not counted.resource:
        return ()
    matching = [(name, pod) for name, pod in pods.items() if scopes_match(quota, pod.kind)]
    return sort_consumers(QuotaConsumer(pod.counted_amount(counted), name) for name, pod in matching)


def list_claim_consumers(key: str, claiming: ClaimContext, pods: Mapping[str, PodSummary]) -> tuple[QuotaConsumer, ...]:
    """Return the pods that use a key counted for claims, the largest first, by the current content of their templates.

    `pods` are the pods of the namespace that have not ended, by name.
    """
    charges = {name: NANO * claiming.charge(spec).get(key, 0) for name, spec in claiming.templates.items()}
    counted = resource_of_quota_key(key)
    consumers: list[QuotaConsumer] = []
    for name, pod in pods.items():
        claimed = sum(charges.get(one.template, 0) for one in pod.claims)
        consumers.append(QuotaConsumer(claimed + (pod.counted_amount(counted) if counted else 0), name))
    return sort_consumers(consumers)


def sort_consumers(consumers: Iterable[QuotaConsumer]) -> tuple[QuotaConsumer, ...]:
    """Return consumers of more than zero, the largest first."""
    return tuple(sorted((one for one in consumers if one.amount), key=lambda one: (-one.amount, one.name)))
