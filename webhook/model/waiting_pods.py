"""Pods of the cluster that have no node yet: the scheduler may give them free units at any moment."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from webhook.model.fleet import MAX_CPU_MILLI, MAX_MEMORY, Fleet
from webhook.model.pod_resources import ResourceAmounts, is_other_resource
from webhook.model.pod_summary import NodeConstraints, PodSummary, allowed_nodes
from webhook.model.quantity import NANO
from webhook.model.unit_kinds import MANY_AMOUNTS, KindCounts, UnitKind, UnitsByResource, with_units_changed

MAX_WAITING_KINDS = 256
"""Distinct kinds of one resource. Of more, every pod counts like the largest, on any node."""


class WaitingKind(msgspec.Struct, frozen=True, gc=False):
    """Pods without a node that wait for the same units.

    Attributes:
        resource: A GPU resource or device class that each requests, or `CLAIMED_DEVICES`; `count` units of it.
        constraints: Where they may run, taints aside.
        cpu_milli: Millicores for each unit; likewise `memory`, in bytes.
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
        for kind, count in counts.items():
            self._count(kind, count)
        self._counts = dict(counts)

    def with_changes(self, counts: Mapping[WaitingKind, int]) -> WaitingPods:
        """Return the pods with the numbers of some kinds replaced."""
        changed = WaitingPods({}, self._fleet)
        changed._units = self._units
        for kind, count in counts.items():
            changed._count(kind, count - self._counts.get(kind, 0))
        changed._counts = {kind: count for kind, count in {**self._counts, **counts}.items() if count}
        return changed

    def kinds_of(self, resource: str) -> KindCounts:
        """Return the pods that wait for a resource."""
        kinds = self._units.get(resource, {})
        if len(kinds) <= MAX_WAITING_KINDS:
            return kinds
        if resource not in self._merged:
            self._merged[resource] = _merge_kinds(kinds, self._fleet.all_nodes)
        return self._merged[resource]

    def resources(self) -> tuple[str, ...]:
        """Return the resources that pods wait for."""
        return tuple(self._units)

    def _count(self, kind: WaitingKind, change: int) -> None:
        if change:
            advertising = self._fleet.nodes_advertising(kind.resource) or self._fleet.all_nodes
            nodes = allowed_nodes(kind.constraints, self._fleet) & advertising
            others = tuple(each for each in kind.others if each[0] in self._fleet.other_resources)
            units = UnitKind(nodes, kind.count, kind.cpu_milli, kind.memory, others)
            self._units = with_units_changed(self._units, kind.resource, units, change)


def _merge_kinds(kinds: KindCounts, nodes: int) -> KindCounts:
    units = sum(kind.amount * pods for kind, pods in kinds.items())
    cpu_milli, memory = max(kind.cpu_milli for kind in kinds), max(kind.memory for kind in kinds)
    others = MANY_AMOUNTS if any(kind.others for kind in kinds) else ()
    return {UnitKind(nodes, 1, cpu_milli, memory, others): units}
