"""Most pods pass, and most are copies: seen at a glance, in integers.

`passes` is True only where the exact way would find nothing; where it is False, the exact way has to be gone. What
one container comes to is remembered by what it asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from webhook.engine.limitrange.apirules import broken_rules
from webhook.engine.limitrange.bounds import refusals
from webhook.engine.limitrange.defaulting import ranged, stored
from webhook.engine.limitrange.holding import LIMITS, Changes, Holder, Holders
from webhook.errors import QuantityError
from webhook.model.paths import Path
from webhook.model.pods import Amount, Container, Pod
from webhook.model.quota_room import QuotaRoom
from webhook.model.ranges import CONTAINER, Amounts, Bound, Ranges, held, plain_milli
from webhook.model.scopes import in_scope

Items = tuple[tuple[str, Amount], ...]


class Taken(NamedTuple):
    """What one container takes, in thousandths, all defaults in."""

    limits: Mapping[str, int]
    requests: Mapping[str, int]
    sidecar: bool = False

    def side(self, side: str) -> Mapping[str, int]:
        """Limits or requests."""
        return self.limits if side == LIMITS else self.requests


class Glance(NamedTuple):
    """All of a pod whose containers are plain and pass, each for itself."""

    containers: list[Taken]
    init_containers: list[Taken]

    def total(self, resource: str, side: str) -> int | None:
        """What the pod takes of a resource; None where nothing names it. See `holding.in_containers`."""
        if len(self.containers) == 1 and not self.init_containers:
            alone = self.containers[0]
            return (alone.limits if side == LIMITS else alone.requests).get(resource)
        running, named = 0, False
        for taken in self.containers:
            amount = taken.side(side).get(resource)
            if amount is not None:
                running, named = running + amount, True
        if self.init_containers:
            return self._with_init(running, resource, side, named=named)
        return running if named else None

    def _with_init(self, running: int, resource: str, side: str, *, named: bool) -> int | None:
        sidecars = highest = 0
        for taken in self.init_containers:
            amount = taken.side(side).get(resource)
            named = named or amount is not None
            if taken.sidecar:
                sidecars += amount or 0
                highest = max(highest, sidecars)
            else:
                highest = max(highest, sidecars + (amount or 0))
        return max(running + sidecars, highest) if named else None


def passes(pod: Pod, limits: Changes, requests: Changes, ranges: Ranges, rooms: Sequence[QuotaRoom] = ()) -> bool:
    """Will the API server surely take the pod, some containers changed, as far as LimitRanges and quotas go?"""
    if pod.spec.resources is not None or pod.spec.overhead:
        return False
    glance = _glance(pod, limits, requests, ranges)
    if glance is None:
        return False
    held = not ranges.of_pods or all(_within(glance, bound) for bound in ranges.of_pods)
    return held and all(_fits(pod, glance, room) for room in rooms)


def _glance(pod: Pod, limits: Changes, requests: Changes, ranges: Ranges) -> Glance | None:
    found: list[list[Taken]] = []
    for kind, containers in (("containers", pod.spec.containers), ("initContainers", pod.spec.init_containers)):
        each: list[Taken] = []
        for index, container in enumerate(containers):
            taken = _of(("spec", kind, index), container, limits, requests, ranges)
            if taken is None:
                return None
            each.append(taken)
        found.append(each)
    return Glance(*found)


def _of(path: Path, container: Container, limits: Changes, requests: Changes, ranges: Ranges) -> Taken | None:
    resources = container.resources
    return _taken(
        ranges,
        tuple(limits.get(path, resources.limits).items()),
        tuple(requests.get(path, resources.requests).items()),
        container.restart_policy == "Always",
    )


@lru_cache(maxsize=8192)
def _taken(ranges: Ranges, limits: Items, requests: Items, sidecar: bool) -> Taken | None:  # a part of the key
    """What a container comes to; None where it does not pass, or is not plain."""
    try:
        written = Holder((), "", _read(limits), _read(requests))
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


def _read(items: Items) -> Amounts:
    return {name: held(amount) for name, amount in items}


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
    limit, request = glance.total(bound.resource, LIMITS), glance.total(bound.resource, "requests")
    if bound.kind == "min":
        return request is not None and request >= enforced and (limit is None or limit >= enforced)
    return limit is not None and limit <= enforced and (request is None or request <= enforced)


@lru_cache(maxsize=4096)
def _milli(bound: Bound) -> int | None:
    return plain_milli(bound.amount)


def _fits(pod: Pod, glance: Glance, room: QuotaRoom) -> bool:
    if room.scoped and not in_scope(room.quota, pod, best_effort=_is_best_effort(glance)):
        return True
    if not room.plain:
        return False
    for (resource, side), left in room.left:
        asked = glance.total(resource, side) if resource else 1000
        if asked and asked > left:
            return False
    return not room.named or all(
        what.resource in taken.side(what.side) for what in room.named for taken in _each(glance)
    )


def _each(glance: Glance) -> list[Taken]:
    return glance.containers + glance.init_containers


def _is_best_effort(glance: Glance) -> bool:
    return not any(
        side.get(name)
        for taken in _each(glance)
        for side in (taken.limits, taken.requests)
        for name in ("cpu", "memory")
    )
