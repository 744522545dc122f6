"""Most pods pass, and most are copies: seen at a glance, in integers.

`is_surely_admitted` is True only where the exact way would find nothing; where it is False, the exact way has to be
gone. What a
pod comes to is remembered by what its containers ask for: pods of many workloads ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.engine.limitrange.validation import find_invalid_amounts, predict_limit_range_refusals
from webhook.errors import QuantityError
from webhook.model.defaulting import apply_limit_range_defaults, apply_request_defaults
from webhook.model.limit_ranges import CONTAINER, NamespaceLimitRanges, RangeBound, ResourceList, exact_milli
from webhook.model.pod_amounts import (
    LIMITS,
    REQUESTS,
    AmountItems,
    ContainerAmounts,
    LimitsAndRequests,
    PodAmounts,
    is_cacheable,
    parse_amount_items,
)
from webhook.model.pod_resources import peak_with_init
from webhook.model.pods import Pod
from webhook.model.quota_scopes import quota_matches_pod
from webhook.model.remaining_quota import RemainingQuota


class ContainerMilli(NamedTuple):
    """What one container takes, in thousandths, all defaults in."""

    limits: Mapping[str, int]
    requests: Mapping[str, int]
    sidecar: bool = False

    def amounts(self, side: str) -> Mapping[str, int]:
        """Limits or requests."""
        return self.limits if side == LIMITS else self.requests


class PodMilli(NamedTuple):
    """All of a pod whose containers are plain and pass, each for itself and all together.

    Attributes:
        limits: What the pod may take of each resource that a container names, in thousandths.
        requests: What it asks for, likewise.
        limited: What every container names in its limits.
        requested: What every container names in its requests.
        best_effort: True if no container asks for CPU or memory.
    """

    limits: Mapping[str, int]
    requests: Mapping[str, int]
    limited_everywhere: frozenset[str]
    requested_everywhere: frozenset[str]
    best_effort: bool

    def named_everywhere(self, side: str) -> frozenset[str]:
        """What every container names."""
        return self.limited_everywhere if side == LIMITS else self.requested_everywhere


def is_surely_admitted(
    pod: Pod, asked: ContainerAmounts, ranges: NamespaceLimitRanges, rooms: Sequence[RemainingQuota] = ()
) -> bool:
    """Will the API server surely take a pod that asks for this, as far as LimitRanges and quotas go?

    Args:
        asked: The pod's amounts, or what they are to become.
    """
    if pod.spec.resources is not None or pod.spec.overhead:
        return False
    glance = _summarize_pod_cached(ranges, asked) if is_cacheable(asked) else _summarize_pod(ranges, asked)
    return glance is not None and _fits_all_quotas(pod, glance, rooms)


def _summarize_pod(ranges: NamespaceLimitRanges, asked: ContainerAmounts) -> PodMilli | None:
    """What a pod comes to; None where a container or their total does not pass, or is not plain."""
    main, init = ([_summarize_container(ranges, *container) for container in kind] for kind in asked)
    containers = [taken for taken in main if taken is not None]
    init_containers = [taken for taken in init if taken is not None]
    each = containers + init_containers
    if not each or len(each) < len(main) + len(init):
        return None
    glance = PodMilli(
        limits=dict(_sum_milli(containers, init_containers, LIMITS)),
        requests=dict(_sum_milli(containers, init_containers, REQUESTS)),
        limited_everywhere=frozenset.intersection(*[frozenset(taken.limits) for taken in each]),
        requested_everywhere=frozenset.intersection(*[frozenset(taken.requests) for taken in each]),
        best_effort=_requests_no_compute(each),
    )
    return glance if all(_is_within_bound(glance, bound) for bound in ranges.pod_bounds) else None


_summarize_pod_cached = lru_cache(maxsize=2048)(_summarize_pod)


def _sum_milli(
    containers: Sequence[ContainerMilli], init_containers: Sequence[ContainerMilli], side: str
) -> Iterator[tuple[str, int]]:
    """What a pod takes of each resource. See `holding.in_containers`."""
    for resource in dict.fromkeys(name for taken in (*containers, *init_containers) for name in taken.amounts(side)):
        running = sum(taken.amounts(side).get(resource, 0) for taken in containers)
        init = [(taken.amounts(side).get(resource, 0), taken.sidecar) for taken in init_containers]
        yield resource, peak_with_init(running, init)


@lru_cache(maxsize=2048)
def _summarize_container(
    ranges: NamespaceLimitRanges, limits: AmountItems, requests: AmountItems, sidecar: bool
) -> ContainerMilli | None:  # a part of the key
    """What a container comes to; None where it does not pass, or is not plain."""
    try:
        written = LimitsAndRequests((), "", parse_amount_items(limits), parse_amount_items(requests))
    except QuantityError:
        return None
    holders = apply_limit_range_defaults(apply_request_defaults(PodAmounts((written,))), ranges)
    of_containers = [each._replace(bounds=_container_bounds(each.bounds)) for each in ranges]
    if find_invalid_amounts(holders) or predict_limit_range_refusals(holders, of_containers):
        return None
    (holder,) = holders.containers
    plain = [_to_exact_milli(holder.limits), _to_exact_milli(holder.requests)]
    if plain[0] is None or plain[1] is None:
        return None
    return ContainerMilli(plain[0], plain[1], sidecar)


def _container_bounds(bounds: tuple[RangeBound, ...]) -> tuple[RangeBound, ...]:
    return tuple(bound for bound in bounds if bound.type == CONTAINER)


def _to_exact_milli(amounts: ResourceList) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        milli = exact_milli(amount)
        if milli is None:
            return None
        found[name] = milli
    return found


def _is_within_bound(glance: PodMilli, bound: RangeBound) -> bool:
    """Does a bound on the pod's total surely hold? Ratios are for the exact way."""
    enforced = _bound_milli(bound)
    if enforced is None or bound.kind == "maxLimitRequestRatio":
        return False
    limit, request = glance.limits.get(bound.resource), glance.requests.get(bound.resource)
    if bound.kind == "min":
        return request is not None and request >= enforced and (limit is None or limit >= enforced)
    return limit is not None and limit <= enforced and (request is None or request <= enforced)


@lru_cache(maxsize=1024)
def _bound_milli(bound: RangeBound) -> int | None:
    return exact_milli(bound.amount)


def _fits_all_quotas(pod: Pod, glance: PodMilli, rooms: Sequence[RemainingQuota]) -> bool:
    for room in rooms:
        if room.scoped and not quota_matches_pod(room.quota, pod, best_effort=glance.best_effort):
            continue
        if not room.simple or not _fits_quota(glance, room):
            return False
    return True


def _fits_quota(glance: PodMilli, room: RemainingQuota) -> bool:
    for (resource, side), left in room.remaining:
        amounts = glance.limits if side == LIMITS else glance.requests
        asked = amounts.get(resource, 0) if resource else 1000
        if asked and asked > left:
            return False
    return not room.required or all(what.resource in glance.named_everywhere(what.side) for what in room.required)


def _requests_no_compute(each: Sequence[ContainerMilli]) -> bool:
    return not any(
        side.get(name) for taken in each for side in (taken.limits, taken.requests) for name in ("cpu", "memory")
    )
