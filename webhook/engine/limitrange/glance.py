"""Most pods pass, and most are copies: seen at a glance, in integers.

`passes` is True only where the exact way would find nothing; where it is False, the exact way has to be gone. What a
pod comes to is remembered by what its containers ask for: pods of many workloads ask for the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.engine.containers import Amounts as ContainerAmounts
from webhook.engine.containers import Items, is_short
from webhook.engine.limitrange.apirules import broken_rules
from webhook.engine.limitrange.bounds import refusals
from webhook.engine.limitrange.defaulting import ranged, stored
from webhook.engine.limitrange.holding import LIMITS, REQUESTS, Holder, Holders, read
from webhook.errors import QuantityError
from webhook.model.effective import beside_init
from webhook.model.pods import Pod
from webhook.model.quota_room import QuotaRoom
from webhook.model.ranges import CONTAINER, Amounts, Bound, Ranges, plain_milli
from webhook.model.scopes import in_scope


class Taken(NamedTuple):
    """What one container takes, in thousandths, all defaults in."""

    limits: Mapping[str, int]
    requests: Mapping[str, int]
    sidecar: bool = False

    def side(self, side: str) -> Mapping[str, int]:
        """Limits or requests."""
        return self.limits if side == LIMITS else self.requests


class Glance(NamedTuple):
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
    limited: frozenset[str]
    requested: frozenset[str]
    best_effort: bool

    def everywhere(self, side: str) -> frozenset[str]:
        """What every container names."""
        return self.limited if side == LIMITS else self.requested


def passes(pod: Pod, asked: ContainerAmounts, ranges: Ranges, rooms: Sequence[QuotaRoom] = ()) -> bool:
    """Will the API server surely take a pod that asks for this, as far as LimitRanges and quotas go?

    Args:
        asked: The pod's amounts, or what they are to become.
    """
    if pod.spec.resources is not None or pod.spec.overhead:
        return False
    glance = _remembered(ranges, asked) if is_short(asked) else _glance(ranges, asked)
    return glance is not None and _all_fit(pod, glance, rooms)


def _glance(ranges: Ranges, asked: ContainerAmounts) -> Glance | None:
    """What a pod comes to; None where a container or their total does not pass, or is not plain."""
    main, init = ([_taken(ranges, *container) for container in kind] for kind in asked)
    containers = [taken for taken in main if taken is not None]
    init_containers = [taken for taken in init if taken is not None]
    each = containers + init_containers
    if not each or len(each) < len(main) + len(init):
        return None
    glance = Glance(
        limits=dict(_totals(containers, init_containers, LIMITS)),
        requests=dict(_totals(containers, init_containers, REQUESTS)),
        limited=frozenset.intersection(*[frozenset(taken.limits) for taken in each]),
        requested=frozenset.intersection(*[frozenset(taken.requests) for taken in each]),
        best_effort=_is_best_effort(each),
    )
    return glance if all(_within(glance, bound) for bound in ranges.of_pods) else None


_remembered = lru_cache(maxsize=2048)(_glance)


def _totals(containers: Sequence[Taken], init_containers: Sequence[Taken], side: str) -> Iterator[tuple[str, int]]:
    """What a pod takes of each resource. See `holding.in_containers`."""
    for resource in dict.fromkeys(name for taken in (*containers, *init_containers) for name in taken.side(side)):
        running = sum(taken.side(side).get(resource, 0) for taken in containers)
        init = [(taken.side(side).get(resource, 0), taken.sidecar) for taken in init_containers]
        yield resource, beside_init(running, init)


@lru_cache(maxsize=2048)
def _taken(ranges: Ranges, limits: Items, requests: Items, sidecar: bool) -> Taken | None:  # a part of the key
    """What a container comes to; None where it does not pass, or is not plain."""
    try:
        written = Holder((), "", read(limits), read(requests))
    except QuantityError:
        return None
    holders = ranged(stored(Holders((written,))), ranges)
    of_containers = [each._replace(bounds=_about_containers(each.bounds)) for each in ranges]
    if broken_rules(holders) or refusals(holders, of_containers):
        return None
    (holder,) = holders.containers
    plain = [_plain(holder.limits), _plain(holder.requests)]
    if plain[0] is None or plain[1] is None:
        return None
    return Taken(plain[0], plain[1], sidecar)


def _about_containers(bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    return tuple(bound for bound in bounds if bound.type == CONTAINER)


def _plain(amounts: Amounts) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        milli = plain_milli(amount)
        if milli is None:
            return None
        found[name] = milli
    return found


def _within(glance: Glance, bound: Bound) -> bool:
    """Does a bound on the pod's total surely hold? Ratios are for the exact way."""
    enforced = _milli(bound)
    if enforced is None or bound.kind == "maxLimitRequestRatio":
        return False
    limit, request = glance.limits.get(bound.resource), glance.requests.get(bound.resource)
    if bound.kind == "min":
        return request is not None and request >= enforced and (limit is None or limit >= enforced)
    return limit is not None and limit <= enforced and (request is None or request <= enforced)


@lru_cache(maxsize=1024)
def _milli(bound: Bound) -> int | None:
    return plain_milli(bound.amount)


def _all_fit(pod: Pod, glance: Glance, rooms: Sequence[QuotaRoom]) -> bool:
    for room in rooms:
        if room.scoped and not in_scope(room.quota, pod, best_effort=glance.best_effort):
            continue
        if not room.plain or not _fits(glance, room):
            return False
    return True


def _fits(glance: Glance, room: QuotaRoom) -> bool:
    for (resource, side), left in room.left:
        amounts = glance.limits if side == LIMITS else glance.requests
        asked = amounts.get(resource, 0) if resource else 1000
        if asked and asked > left:
            return False
    return not room.named or all(what.resource in glance.everywhere(what.side) for what in room.named)


def _is_best_effort(each: Sequence[Taken]) -> bool:
    return not any(
        side.get(name) for taken in each for side in (taken.limits, taken.requests) for name in ("cpu", "memory")
    )
