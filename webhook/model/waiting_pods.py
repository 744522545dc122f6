"""Pods of the cluster that have no node yet: the scheduler may give them free units at any moment.

Units of GPU resources that pods without a node will hold, by kind: the nodes where they may be, CPU and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import msgspec

from webhook.model.fleet import MAX_CPU_MILLI, MAX_MEMORY, Fleet
from webhook.model.node_masks import ThresholdIndex
from webhook.model.pod_resources import MANY_RESOURCES, ResourceAmounts, is_other_resource
from webhook.model.pod_summary import NodeConstraints, PodSummary, allowed_nodes
from webhook.model.quantity import NANO

MAX_WAITING_KINDS = 256
"""Distinct kinds of one resource. Of more, every pod counts like the largest, on any node."""


class WaitingKind(msgspec.Struct, frozen=True, gc=False):
    """Pods without a node that wait for the same units.

    Attributes:
        resource: A GPU resource or device class that each requests, or `CLAIMED_DEVICES`; `count` units of it.
        constraints: Where they may run, taints aside.
        cpu_milli: Millicores for each unit.
        memory: Bytes for each unit.
        others: Nano-units of other resources for each pod, by name.
    """

    resource: str
    count: int
    constraints: NodeConstraints
    cpu_milli: int
    memory: int
    others: ResourceAmounts = ()


def waiting_kinds(pod: PodSummary) -> tuple[WaitingKind, ...]:
    """Return what a pod waits for, by GPU resource or device class; () with a node, or with a gate that keeps it."""
    where = pod.constraints
    if where is None or pod.is_gated:
        return ()
    amounts = dict(pod.requests)
    cpu, memory = amounts.get("cpu", 0) * 1000 // NANO, amounts.get("memory", 0) // NANO
    others = tuple(each for each in pod.requests if is_other_resource(each[0]))
    return tuple(
        WaitingKind(
            resource, count, where, min(MAX_CPU_MILLI, -(-cpu // count)), min(MAX_MEMORY, -(-memory // count)), others
        )
        for resource, count in pod.awaited_units()
        if count > 0
    )


class WaitingPods:
    """Numbers of waiting pods by kind, and their units on the nodes of a fleet. Immutable."""

    __slots__ = ("_counts", "_fleet", "_merged", "_units")

    def __init__(self, counts: Mapping[WaitingKind, int], fleet: Fleet) -> None:
        self._fleet = fleet
        self._counts: Mapping[WaitingKind, int] = {}
        self._units: UnitsByResource = {}
        self._merged: dict[str, KindCounts] = {}
        if counts:
            self._set_counts(counts)

    def with_changes(self, counts: Mapping[WaitingKind, int]) -> WaitingPods:
        """Return the pods with the numbers of some kinds replaced."""
        changed = WaitingPods({}, self._fleet)
        changed._units, changed._counts = self._units, self._counts
        changed._set_counts(counts)
        return changed

    def _set_counts(self, counts: Mapping[WaitingKind, int]) -> None:
        """Replace the numbers of some kinds.

        What is not changed is copied as a whole, and once: hashing a kind with many terms takes microseconds.
        """
        known, units, copied = dict(self._counts), dict(self._units), dict[str, dict[UnitKind, int]]()
        for kind, count in counts.items():
            if change := count - known.pop(kind, 0):
                if kind.resource not in copied:
                    copied[kind.resource] = dict(units.get(kind.resource, NO_KINDS))
                _add_pods(copied[kind.resource], self._unit_kind(kind), change)
            if count:
                known[kind] = count
        units |= copied
        for name in [name for name, kinds in copied.items() if not kinds]:
            del units[name]
        self._counts, self._units = known, units

    def kinds_of(self, resource: str) -> KindCounts:
        """Return the pods that wait for a resource."""
        kinds = self._units.get(resource, {})
        if len(kinds) <= MAX_WAITING_KINDS:
            return kinds
        if resource not in self._merged:
            self._merged[resource] = _merge_kinds(kinds, self._fleet.all_nodes)
        return self._merged[resource]

    def resources(self) -> Collection[str]:
        """Return the resources for which any pod waits."""
        return self._units.keys()

    def _unit_kind(self, kind: WaitingKind) -> UnitKind:
        advertising = self._fleet.nodes_advertising(kind.resource) or self._fleet.all_nodes
        nodes = allowed_nodes(kind.constraints, self._fleet) & advertising
        others = tuple(each for each in kind.others if each[0] in self._fleet.other_resources)
        return UnitKind(nodes, kind.count, kind.cpu_milli, kind.memory, others)


def _merge_kinds(kinds: KindCounts, nodes: int) -> KindCounts:
    units = sum(kind.amount * pods for kind, pods in kinds.items())
    cpu_milli, memory = max(kind.cpu_milli for kind in kinds), max(kind.memory for kind in kinds)
    others = MANY_AMOUNTS if any(kind.others for kind in kinds) else ()
    return {UnitKind(nodes, 1, cpu_milli, memory, others): units}


class UnitKind(NamedTuple):
    """Pods that hold units of one resource in the same way.

    Attributes:
        nodes: Mask of the nodes where they may run.
        amount: Units of each pod, all on one node.
        cpu_milli: Millicores for each unit.
        memory: Bytes of memory for each unit.
        others: Nano-units of other resources for each pod, by name.
    """

    nodes: int
    amount: int
    cpu_milli: int
    memory: int
    others: ResourceAmounts = ()


KindCounts = Mapping[UnitKind, int]
"""Pods by kind."""

UnitsByResource = Mapping[str, KindCounts]
"""Pods by resource and kind."""

NO_KINDS: KindCounts = {}

MANY_AMOUNTS: ResourceAmounts = ((MANY_RESOURCES, NANO),)
"""Stands for the other resources of pods that count together: of each, any amount."""


class UnitSum(NamedTuple):
    """Units of several pods.

    Attributes:
        units: How many.
        cpu_milli: The most millicores that come with one of them.
        memory: The most bytes that come with one of them.
        total_cpu_milli: Millicores of all of them.
        total_memory: Bytes of all of them.
    """

    units: int
    cpu_milli: int
    memory: int
    total_cpu_milli: int
    total_memory: int

    def amounts_with(self, units: int) -> tuple[int, int]:
        """Return the most millicores and bytes that come with a number of units."""
        return min(self.total_cpu_milli, units * self.cpu_milli), min(self.total_memory, units * self.memory)


def sum_units(kinds: Iterable[KindCounts], nodes: int, free: ThresholdIndex) -> UnitSum:
    """Return the units that pods may take on the nodes of a mask.

    A pod that no node has enough free units for takes none: it waits.

    Args:
        free: Free units by node.
    """
    units = cpu_milli = memory = total_cpu_milli = total_memory = 0
    for counts in kinds:
        for kind, pods in counts.items():
            if kind.nodes & nodes and kind.nodes & free.nodes_with_at_least(kind.amount):
                more = pods * kind.amount
                units, cpu_milli, memory = units + more, max(cpu_milli, kind.cpu_milli), max(memory, kind.memory)
                total_cpu_milli += more * kind.cpu_milli
                total_memory += more * kind.memory
    return UnitSum(units, cpu_milli, memory, total_cpu_milli, total_memory)


def has_slot_left(nodes_after: Callable[[int], int], taken: int) -> bool:
    """Return whether nodes have more slots for a pod than others may take, which take one of each node in a round.

    Args:
        nodes_after: Returns the mask of the nodes that fit the pod after a number of rounds; nodes only drop out.
        taken: The slots that others may take.
    """
    first = nodes_after(0)
    if not first or not taken:
        return bool(first)
    # If none has dropped out after the last round that may be needed, each has a slot in every round.
    rounds = taken // first.bit_count()
    if rounds and nodes_after(rounds) == first:
        return True
    slots, times = first.bit_count(), 1
    while slots <= taken and (left := nodes_after(times)):
        slots, times = slots + left.bit_count(), times + 1
    return slots > taken


def add_other_amounts(amounts: dict[str, int], kinds: Iterable[KindCounts], nodes: int, free: ThresholdIndex) -> bool:
    """Add what pods may take of some other resources on the nodes of a mask; False if it may be any amount.

    Args:
        amounts: Nano-units by name; changed in place.
        free: Free units by node, as for `sum_units`.
    """
    for counts in kinds:
        for kind, pods in counts.items():
            if kind.others and kind.nodes & nodes and kind.nodes & free.nodes_with_at_least(kind.amount):
                if kind.others == MANY_AMOUNTS:
                    return False
                for name, amount in kind.others:
                    if name in amounts:
                        amounts[name] += pods * amount
    return True


def with_units_changed(units: UnitsByResource, resource: str, kind: UnitKind, change: int) -> UnitsByResource:
    """Return the units with the number of pods of a kind changed."""
    kinds = dict(units.get(resource, NO_KINDS))
    _add_pods(kinds, kind, change)
    return {**units, resource: kinds}


def _add_pods(kinds: dict[UnitKind, int], kind: UnitKind, change: int) -> None:
    kinds[kind] = kinds.get(kind, 0) + change
    if not kinds[kind]:
        del kinds[kind]
