"""Ledger: pods that were admitted a moment ago and are not seen in the cluster yet.

Each ledger is immutable to its readers, and making the next one costs the same however long it is: both
share one log, of which each sees its own stretch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

COMPACT_AT = 1024
"""Forgotten entries at the head of the log before it is copied without them."""


class Assumed(msgspec.Struct, frozen=True, gc=False):
    """A pod that was admitted a moment ago and is not seen yet: it holds units of one offer, and CPU and memory.

    Attributes:
        uid: The request's uid, so that one admission counts once; "" is known to nobody and always counts.
        resource: Resource name it will ask for.
        nodes: Mask of the nodes it may land on.
        count: Units.
        until: When to forget it, seconds of the caller's clock.
        called: What the pod will be called: namespace and name, or the beginning of a name that is to be made.
        cpu_milli: Millicores that it needs for each unit.
        memory: Bytes of memory that it needs for each unit.
        since: When it was admitted, at the earliest, seconds of the same clock: a pod made before is another one.
    """

    uid: str
    resource: str
    nodes: int
    count: int
    until: float
    called: tuple[str, str] = ("", "")
    cpu_milli: int = 0
    memory: int = 0
    since: float = -math.inf


class Landing(NamedTuple):
    """A pod that is on a node now.

    Attributes:
        called: What it was called when it was admitted; see `Assumed`.
        resource: A GPU resource that it holds there.
        made: When it was made, seconds of the caller's clock, where others may have been called the same.
    """

    called: tuple[str, str]
    resource: str
    made: float = math.inf


Kind = tuple[int, int, int]
"""Units that are alike: the nodes that they may land on, and millicores and bytes that come with each."""


class Taken(NamedTuple):
    """Units taken on some nodes, with the most millicores and bytes of memory that come with one of them."""

    units: int
    cpu_milli: int
    memory: int


NOTHING_TAKEN = Taken(0, 0, 0)


class Ledger:
    """Pods assumed, those to be forgotten first at the head."""

    __slots__ = ("_end", "_held", "_known", "_log", "_start")

    def __init__(self, pods: Iterable[Assumed] = ()) -> None:
        self._log: list[Assumed] = []
        self._known: dict[str, int] = {}
        self._held: Mapping[str, Mapping[Kind, int]] = {}
        self._start = self._end = 0
        for pod in sorted(pods, key=lambda pod: pod.until):
            if not self._has(pod.uid):
                self._append(pod)

    def entries(self) -> tuple[Assumed, ...]:
        """The pods assumed, those to be forgotten first in front."""
        return tuple(self._log[self._start : self._end])

    def held(self, resource: str, nodes: int) -> int:
        """Units of a resource that pods hold which may land on one of these nodes."""
        held = self._held.get(resource)
        return sum(units for kind, units in held.items() if kind[0] & nodes) if held else 0

    def taken(self, resource: str, nodes: int) -> Taken:
        """The same, with what else comes with each unit."""
        held = self._held.get(resource)
        near = [(kind, units) for kind, units in held.items() if kind[0] & nodes] if held else []
        if not near:
            return NOTHING_TAKEN
        return Taken(sum([units for _, units in near]), max([k[1] for k, _ in near]), max([k[2] for k, _ in near]))

    def beside(self, resource: str, nodes: int) -> tuple[int, int]:
        """Millicores and bytes of memory that pods take on these nodes which hold other resources."""
        cpu_milli = memory = 0
        for name, held in self._held.items():
            if name != resource:
                for (mask, cpu, size), units in held.items():
                    if mask & nodes:
                        cpu_milli, memory = cpu_milli + units * cpu, memory + units * size
        return cpu_milli, memory

    def after(self, now: float) -> Ledger:
        """The ledger without the pods past their time; itself if there are none."""
        start, held = self._start, self._held
        while start < self._end and self._log[start].until <= now:
            held = _changed(held, self._log[start], -self._log[start].count)
            start += 1
        if start == self._start:
            return self
        if start > COMPACT_AT and start * 2 > self._end:
            return Ledger(self._log[start : self._end])
        return self._next(start, self._end, held)

    def with_pod(self, pod: Assumed) -> Ledger:
        """The ledger with one more pod; itself if its uid is known."""
        if self._has(pod.uid):
            return self
        shared = len(self._log) == self._end and (self._start == self._end or self._log[-1].until <= pod.until)
        if not shared:
            return Ledger((*self.entries(), pod))
        ledger = self._next(self._start, self._end, self._held)
        ledger._append(pod)
        return ledger

    def without(self, seen: Collection[Landing]) -> Ledger:
        """The ledger without one entry for each pod that is seen now; itself if it has none of them."""
        left: defaultdict[tuple[tuple[str, str], str], list[float]] = defaultdict(list)
        for landing in sorted(seen, key=lambda landing: landing.made):
            left[landing.called, landing.resource].append(landing.made)
        kept = []
        for pod in self.entries() if left else ():
            moments = left[pod.called, pod.resource]
            came = next((moment for moment in moments if moment >= pod.since), None)
            if came is None:
                kept.append(pod)
            else:
                moments.remove(came)
        return Ledger(kept) if left and len(kept) < self._end - self._start else self

    def on(self, masks: Callable[[int], int]) -> Ledger:
        """The ledger with every mask of nodes translated: the nodes stand in another order now."""
        known: dict[int, int] = {}
        for pod in self.entries():
            if pod.nodes not in known:
                known[pod.nodes] = masks(pod.nodes)
        moved = (msgspec.structs.replace(pod, nodes=known[pod.nodes]) for pod in self.entries())
        return Ledger(moved) if known else self

    def _has(self, uid: str) -> bool:
        place = self._known.get(uid, -1) if uid else -1
        return self._start <= place < self._end

    def _next(self, start: int, end: int, held: Mapping[str, Mapping[Kind, int]]) -> Ledger:
        ledger = Ledger.__new__(Ledger)
        ledger._log, ledger._known, ledger._held = self._log, self._known, held
        ledger._start, ledger._end = start, end
        return ledger

    def _append(self, pod: Assumed) -> None:
        self._known[pod.uid] = self._end
        self._log.append(pod)
        self._end += 1
        self._held = _changed(self._held, pod, pod.count)


def _changed(held: Mapping[str, Mapping[Kind, int]], pod: Assumed, units: int) -> dict[str, Mapping[Kind, int]]:
    """A copy with more or fewer units held under one resource and kind."""
    kind, kinds = (pod.nodes, pod.cpu_milli, pod.memory), dict(held.get(pod.resource, {}))
    kinds[kind] = kinds.get(kind, 0) + units
    if not kinds[kind]:
        del kinds[kind]
    return {**held, pod.resource: kinds}
