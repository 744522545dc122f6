"""Holders: who holds what in the namespaces of a cluster, for quotas of one namespace and for those of several."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from webhook.model.claims import Claiming
from webhook.model.fleet import Fleet
from webhook.model.lines import Line
from webhook.model.objects import ResourceQuota
from webhook.model.pools import Pool, Weight, line_weight, total
from webhook.model.quota_keys import Counted
from webhook.model.quota_room import Holding, claim_holdings, holdings_of, largest
from webhook.model.reservations import NO_RESERVATIONS, Reservation, Reservations

Lines = Mapping[str, Mapping[str, Line]]
"""The pods that have not ended, by namespace and name."""

LabelsOf = Callable[[str], Mapping[str, str]]
"""The labels of a namespace."""

MOST = 3
"""Namespaces, and pods, that are named."""


class PoolHolders(NamedTuple):
    """Who holds the most of a pool.

    Attributes:
        namespaces: The largest.
        among: How many hold anything.
        pods: The largest in these.
        coming: Thousandths of GPUs of pods admitted a moment ago and not seen yet, so in nobody's name.
    """

    namespaces: tuple[Holding, ...]
    among: int
    pods: tuple[Holding, ...]
    coming: int = 0


class Holders:
    """Immutable but for what it remembers of its own answers; whatever changes is a new one that shares the rest."""

    __slots__ = ("_by_pool", "_fleet", "_held", "_lines", "_reserved", "_sharing", "_weights")

    def __init__(self, fleet: Fleet, lines: Lines, reserved: Reservations = NO_RESERVATIONS) -> None:
        self._fleet, self._lines, self._reserved = fleet, lines, reserved
        self._held: dict[tuple[str, str, Counted], tuple[Holding, ...]] = {}
        self._weights: dict[str, Weight] = {}
        self._sharing: dict[tuple[Pool, str], bool] = {}
        self._by_pool: dict[Pool, tuple[int, Mapping[str, int]]] = {}

    # Who holds it.

    def held(self, quota: ResourceQuota, namespace: str, what: Counted) -> tuple[Holding, ...]:
        """Who holds what a quota counts, the largest first."""
        key = (namespace, quota.metadata.name, what)
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = holdings_of(quota, what, self._lines.get(namespace, {}))
        return found

    def claimed(self, namespace: str, key: str, claiming: Claiming) -> tuple[Holding, ...]:
        """Whose claims fill a key of a quota, the largest first."""
        return claim_holdings(key, claiming, self._lines.get(namespace, {}))

    def pooled(self, pool: Pool, labels: LabelsOf, *, but: str = "") -> int:
        """Thousandths of GPUs that pods of a pool hold, wait for, or were admitted for a moment ago.

        Args:
            pool: The pool.
            labels: Says what labels a namespace has.
            but: The uid of a pod whose own reservation does not count.
        """
        seen, _ = self._seen(pool, labels)
        return seen + self._coming(pool, labels, but)

    def _coming(self, pool: Pool, labels: LabelsOf, but: str = "") -> int:
        coming = self._reserved.weights(but).items()
        return sum([pool.milli(weight) for name, weight in coming if self._shares(pool, name, labels)])

    def of_pool(self, pool: Pool, labels: LabelsOf) -> PoolHolders:
        """The largest holders of a pool, as far as they are seen."""
        spaces = largest(Holding(milli, name) for name, milli in self._seen(pool, labels)[1].items())
        pods = largest(
            Holding(pool.milli(line_weight(line, self._fleet)), f"{space.name}/{name}")
            for space in spaces[:MOST]
            for name, line in self._lines[space.name].items()
        )
        return PoolHolders(spaces[:MOST], len(spaces), pods[:MOST], self._coming(pool, labels))

    def _seen(self, pool: Pool, labels: LabelsOf) -> tuple[int, Mapping[str, int]]:
        """What is seen of a pool, together and by namespace; reckoned when it is first asked for."""
        found = self._by_pool.get(pool)
        if found is None:
            weights = ((name, self._weight(name)) for name in self._lines)
            each = {name: pool.milli(weight) for name, weight in weights if weight and self._shares(pool, name, labels)}
            found = self._by_pool[pool] = sum(each.values()), each
        return found

    def _weight(self, namespace: str) -> Weight:
        found = self._weights.get(namespace)
        if found is None:
            lines = self._lines[namespace].values()
            found = self._weights[namespace] = total([line_weight(line, self._fleet) for line in lines])
        return found

    def _shares(self, pool: Pool, namespace: str, labels: LabelsOf) -> bool:
        found = self._sharing.get((pool, namespace))
        if found is None:
            found = self._sharing[pool, namespace] = pool.holds(namespace, labels(namespace))
        return found

    def weigh(self, other: Holders) -> None:
        """Weigh every namespace now, where another one was asked what pools hold."""
        for name in self._lines if other._by_pool else ():
            self._weight(name)

    # What changes.

    def has_reserved(self, uid: str) -> bool:
        """Was this pod admitted a moment ago, and not seen since?"""
        return uid in self._reserved

    def reserving(self, pod: Reservation) -> Holders:
        """One more pod that was admitted; one that is known counts once."""
        return self._reserving(self._reserved.with_pod(pod))

    def arrived(self, uids: Collection[str]) -> Holders:
        """Pods admitted that are seen now are reserved no more."""
        return self._reserving(self._reserved.without(uids))

    def reserved_since(self, moment: float) -> Holders:
        """Without what was reserved up to a moment: who has not come by now does not come."""
        return self._reserving(self._reserved.since(moment))

    def succeeding(self, other: Holders) -> Holders:
        """With what another one has reserved."""
        return self._reserving(other._reserved)

    def with_lines(self, lines: Lines) -> Holders:
        """After pods came or went in some namespaces, of which these are all."""
        there = {name: some for name, some in {**self._lines, **lines}.items() if some}
        after = Holders(self._fleet, there, self._reserved)
        after._weights = {name: weight for name, weight in self._weights.items() if name not in lines}
        after._sharing = self._sharing
        return after

    def without_pod(self, namespace: str, name: str) -> Holders:
        """Without one pod."""
        there = self._lines.get(namespace, {})
        return self.with_lines({namespace: {key: line for key, line in there.items() if key != name}})

    def relabelled(self) -> Holders:
        """After labels of namespaces changed."""
        after = Holders(self._fleet, self._lines, self._reserved)
        after._held, after._weights = self._held, self._weights
        return after

    def recounted(self) -> Holders:
        """After ResourceQuotas changed."""
        after = self._same()
        after._held = {}
        return after

    def _reserving(self, reserved: Reservations) -> Holders:
        if reserved is self._reserved:
            return self
        after = self._same()
        after._reserved = reserved
        return after

    def _same(self) -> Holders:
        after = Holders(self._fleet, self._lines, self._reserved)
        after._held, after._weights = self._held, self._weights
        after._sharing, after._by_pool = self._sharing, self._by_pool
        return after
