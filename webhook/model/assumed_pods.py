"""Pods that were admitted a moment ago and are not observed in the cluster yet.

Each value is immutable to its readers, and creating the next one costs the same at any length: both share one log, of
which each uses its own range.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

COMPACT_AT = 1024
"""Expired entries at the head of the log before it is copied without them."""


class AssumedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod that was admitted a moment ago and is not observed yet: it holds units of one offer, CPU and memory.

    Attributes:
        key: Identifies the pod and the resource, so that one admission counts once; "" always counts.
        resource: Resource name that it will request.
        nodes: Mask of the nodes where it may run.
        count: Units.
        expires_at: Seconds of the caller's clock.
        pod_name: Namespace and name, or a generateName.
        cpu_milli: Millicores for each unit.
        memory: Bytes of memory for each unit.
        admitted_at: Earliest time of its admission, seconds of the same clock: a pod created before is another one.
    """

    key: str
    resource: str
    nodes: int
    count: int
    expires_at: float
    pod_name: tuple[str, str] = ("", "")
    cpu_milli: int = 0
    memory: int = 0
    admitted_at: float = -math.inf


class BoundPod(NamedTuple):
    """A pod that is on a node now.

    Attributes:
        pod_name: Its name at admission; see `AssumedPod`.
        resource: A GPU resource that it holds.
        created_at: Creation time, seconds of the caller's clock, if others may have had the same name.
    """

    pod_name: tuple[str, str]
    resource: str
    created_at: float = math.inf


UnitKind = tuple[int, int, int]
"""Interchangeable units: the nodes where they may be, and millicores and bytes that come with each."""


class AssumedUnits(NamedTuple):
    """Assumed units on some nodes, with the most millicores and bytes of memory that come with one of them."""

    units: int
    cpu_milli: int
    memory: int


class AssumedPods:
    """Assumed pods, in the order of expiry."""

    __slots__ = ("_end", "_log", "_positions", "_start", "_units")

    def __init__(self, pods: Iterable[AssumedPod] = ()) -> None:
        self._log: list[AssumedPod] = []
        self._positions: dict[str, int] = {}
        self._units: Mapping[str, Mapping[UnitKind, int]] = {}
        self._start = self._end = 0
        for pod in sorted(pods, key=lambda pod: pod.expires_at):
            if not self._has(pod.key):
                self._append(pod)

    def all_pods(self) -> tuple[AssumedPod, ...]:
        """Return the assumed pods, the first to expire first."""
        return tuple(self._log[self._start : self._end])

    def assumed_units(self, resource: str, nodes: int) -> int:
        """Return the units of a resource of pods that may be on one of these nodes."""
        return sum(units for kind, units in self._units.get(resource, {}).items() if kind[0] & nodes)

    def assumed_resources(self, resource: str, nodes: int) -> AssumedUnits:
        """Return these units with their CPU and memory."""
        units = cpu_milli = memory = 0
        for (mask, cpu, size), count in self._units.get(resource, {}).items():
            if mask & nodes:
                units, cpu_milli, memory = units + count, max(cpu_milli, cpu), max(memory, size)
        return AssumedUnits(units, cpu_milli, memory)

    def other_assumed_resources(self, resource: str, nodes: int) -> tuple[int, int]:
        """Return millicores and bytes of memory of pods on these nodes that hold other resources."""
        cpu_milli = memory = 0
        for name, kinds in self._units.items():
            if name != resource:
                for (mask, cpu, size), units in kinds.items():
                    if mask & nodes:
                        cpu_milli, memory = cpu_milli + units * cpu, memory + units * size
        return cpu_milli, memory

    def without_expired(self, now: float) -> AssumedPods:
        """Return the pods that have not expired; itself if none has."""
        start, remaining = self._start, self._units
        while start < self._end and self._log[start].expires_at <= now:
            remaining = _with_units_changed(remaining, self._log[start], -self._log[start].count)
            start += 1
        if start == self._start:
            return self
        if start > COMPACT_AT and start * 2 > self._end:
            return AssumedPods(self._log[start : self._end])
        return self._share_log(start, self._end, remaining)

    def with_pod(self, pod: AssumedPod) -> AssumedPods:
        """Return one more pod; itself if its key is known."""
        if self._has(pod.key):
            return self
        shared = len(self._log) == self._end and (
            self._start == self._end or self._log[-1].expires_at <= pod.expires_at
        )
        if not shared:
            return AssumedPods((*self.all_pods(), pod))
        assumed_pods = self._share_log(self._start, self._end, self._units)
        assumed_pods._append(pod)
        return assumed_pods

    def without_bound(self, bound: Collection[BoundPod]) -> AssumedPods:
        """Return the pods without one entry for each pod that is bound now; itself if it has none of them."""
        unmatched: defaultdict[tuple[tuple[str, str], str], list[float]] = defaultdict(list)
        for one in sorted(bound, key=lambda one: one.created_at):
            unmatched[one.pod_name, one.resource].append(one.created_at)
        remaining = []
        for pod in self.all_pods() if bound else ():
            created = unmatched[pod.pod_name, pod.resource]
            match = next((created_at for created_at in created if created_at >= pod.admitted_at), None)
            if match is None:
                remaining.append(pod)
            else:
                created.remove(match)
        return AssumedPods(remaining) if bound and len(remaining) < self._end - self._start else self

    def with_masks(self, masks: Callable[[int], int]) -> AssumedPods:
        """Return the pods with translated node masks, after the order of the nodes changed."""
        known: dict[int, int] = {}
        for pod in self.all_pods():
            if pod.nodes not in known:
                known[pod.nodes] = masks(pod.nodes)
        moved = (msgspec.structs.replace(pod, nodes=known[pod.nodes]) for pod in self.all_pods())
        return AssumedPods(moved) if known else self

    def _has(self, key: str) -> bool:
        position = self._positions.get(key, -1) if key else -1
        return self._start <= position < self._end

    def _share_log(self, start: int, end: int, units: Mapping[str, Mapping[UnitKind, int]]) -> AssumedPods:
        assumed_pods = AssumedPods.__new__(AssumedPods)
        assumed_pods._log, assumed_pods._positions, assumed_pods._units = self._log, self._positions, units
        assumed_pods._start, assumed_pods._end = start, end
        return assumed_pods

    def _append(self, pod: AssumedPod) -> None:
        self._positions[pod.key] = self._end
        self._log.append(pod)
        self._end += 1
        self._units = _with_units_changed(self._units, pod, pod.count)


def _with_units_changed(
    units: Mapping[str, Mapping[UnitKind, int]], pod: AssumedPod, change: int
) -> dict[str, Mapping[UnitKind, int]]:
    kind, kinds = (pod.nodes, pod.cpu_milli, pod.memory), dict(units.get(pod.resource, {}))
    kinds[kind] = kinds.get(kind, 0) + change
    if not kinds[kind]:
        del kinds[kind]
    return {**units, pod.resource: kinds}
