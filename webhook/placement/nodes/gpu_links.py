"""The GPUs that a pod would get on a node, and how they are linked.

What NVIDIA's device plugin will allocate counts, because the kubelet asks the plugin. Links are compared with the
best that the kind of node can give, so that a scarce machine with faster links is not taken for its speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from webhook.model.bounded_cache import BoundedCache
from webhook.model.node_masks import bit_positions, union_masks
from webhook.placement.capacity import FloatArray
from webhook.placement.devices import NodeDevices
from webhook.placement.nodes.device_plugin import (
    ContainerRequest,
    ContainerRequests,
    allocate_containers,
    best_allocation,
    can_ever_join,
    can_join,
    count_held_gpus,
    count_joined_pods,
)
from webhook.placement.nodes.score_table import NodeStates, StateFigures
from webhook.placement.nvlink import KEPT_SET_SIZES, GpuSets, LinkQuality, gpu_sets
from webhook.placement.topology import GpuTopology

MAX_CACHED_FIGURES = 64
"""What pods ask for, container by container, of which the figures are remembered."""

MAX_TOPOLOGIES = 256
"""Topologies that are remembered; beyond that those that no node has any more are forgotten."""

LinkState = tuple[int, int | None, int, int]
"""Number of the topology, the mask of the free GPUs (None where it is not known), how many are free then, and the mask
of those that are ill."""

NO_LINK_FIGURES = (0.0,) * 6


class GpuLinks(NamedTuple):
    """The GPUs of a node that a pod would get.

    Attributes:
        gpus: What the device plugin will allocate; () where that is not known.
        optimal: The best set; () where it is not known which GPUs are free.
        quality: Of what it gets; where that is not known, the least it may get.
        joined: True where NVLink joins each pair of every container.
        ratio: Its slowest pair against the best on this kind of node, in hundredths; of the container worst off.
        broken: How many sizes of joined sets (two, four, eight) the node can no longer give afterwards. Counted
            where not every pair is joined alike; elsewhere the number of idle GPUs says it all.
        ill: Those that are ill of what it gets, or of what it may get where that is not known.
    """

    gpus: tuple[int, ...]
    optimal: tuple[int, ...]
    quality: LinkQuality
    joined: bool
    ratio: int
    broken_sets: int = 0
    unhealthy: tuple[int, ...] = ()


class LinkFigures(NamedTuple):
    """What counts of the links of every node, each of shape (nodes,); 0 where a pod gets no GPUs there.

    Attributes:
        joined: 1 where NVLink joins all that each container would get.
        ratio: As in `GpuLinks`.
        broken: As in `GpuLinks`.
        joinable: The same, and 1 too where it is so whichever GPUs are free.
        ever: 1 where it may be so once other GPUs are free.
        ill: How many of what it would get, or may get, are ill.
    """

    joined: FloatArray
    ratio: FloatArray
    broken_sets: FloatArray
    joinable: FloatArray
    ever_joinable: FloatArray
    unhealthy: FloatArray


class LinkTable:
    """The links of every node, kept as GPUs are taken and given back. It has one writer."""

    def __init__(self, devices: Sequence[NodeDevices], faults: list[Exception] | None = None) -> None:
        """Begin.

        Args:
            devices: The GPUs of each node.
            faults: Gets what goes wrong while nodes are judged; such nodes count as those without GPUs.
        """
        self._errors = faults
        self._of = [each.topology for each in devices]
        self._begin([(each.free, each.free_count, each.allocatable_unhealthy) for each in devices])

    def set(self, node: int, devices: NodeDevices) -> None:
        """A node has other devices now."""
        if devices.topology is not self._of[node]:
            self._of[node] = devices.topology
            self._kind[node] = self._kind_of(devices.topology)
            if len(self._topologies) > max(MAX_TOPOLOGIES, 2 * len(self._of)):
                self._begin([self._states.keys[number][1:] for number in self._states.numbers.tolist()])
        self._states.set(node, (self._kind[node], devices.free, devices.free_count, devices.allocatable_unhealthy))

    def figures(self, requests: ContainerRequests) -> LinkFigures:
        """What a pod whose containers ask for so many whole GPUs would get on each node."""
        judged = self._figures.get(requests)
        if judged is None:
            judged = StateFigures(
                self._states, lambda state: self._compute_figures(state, requests), NO_LINK_FIGURES, self._errors
            )
            self._figures.store(requests, judged)
        return LinkFigures(*judged.by_node().T)

    def joined_pod_counts(self, requests: ContainerRequests) -> FloatArray:
        """How many such pods get joined GPUs on each node, one after the other, (nodes,)."""
        judged = self._sets.get(requests)
        if judged is None:
            judged = StateFigures(
                self._states, lambda state: (self._joined_sets(state, requests),), (0.0,), self._errors
            )
            self._sets.store(requests, judged)
        return judged.by_node()[:, 0]

    def _joined_sets(self, state: LinkState, requests: ContainerRequests) -> float:
        kind, free, spare, _ = state
        return float(count_joined_pods(self._topologies[kind], free, requests, spare))

    def _begin(self, free: Sequence[tuple[int | None, int, int]]) -> None:
        """Number the topologies that nodes have; what was worked out under other numbers is forgotten.

        Args:
            free: By node, the mask of the free GPUs, how many are free where that is not known, and which are ill.
        """
        self._kinds: dict[GpuTopology, int] = {}
        self._topologies: list[GpuTopology] = []
        self._kind = [self._kind_of(topology) for topology in self._of]
        self._states: NodeStates[LinkState] = NodeStates(
            (kind, *each) for kind, each in zip(self._kind, free, strict=True)
        )
        self._figures: BoundedCache[ContainerRequests, StateFigures[LinkState]] = BoundedCache(MAX_CACHED_FIGURES)
        self._sets: BoundedCache[ContainerRequests, StateFigures[LinkState]] = BoundedCache(MAX_CACHED_FIGURES)

    def _kind_of(self, topology: GpuTopology) -> int:
        kind = self._kinds.setdefault(topology, len(self._topologies))
        if kind == len(self._topologies):
            self._topologies.append(topology)
        return kind

    def _compute_figures(self, state: LinkState, requests: ContainerRequests) -> tuple[float, ...]:
        kind, free, spare, unhealthy = state
        topology = self._topologies[kind]
        links = pod_gpu_links(topology, free, requests, unhealthy)
        if links is None:
            return NO_LINK_FIGURES
        now, ever = can_join(topology, free, requests, spare), can_ever_join(topology, requests)
        sick = min(len(links.unhealthy), count_held_gpus(requests))
        return tuple(map(float, (links.joined, links.ratio, links.broken_sets, now, ever, sick)))


def pod_gpu_links(
    topology: GpuTopology, free: int | None, requests: ContainerRequests, unhealthy: int = 0
) -> GpuLinks | None:
    """The GPUs that a pod would get; None for none, and where the node has too few.

    Args:
        topology: The node's GPUs.
        free: Mask of those that are free; None where it is not known which.
        requests: The containers that ask for some.
        unhealthy: Mask of those that may be given and are ill.
    """
    if not requests or allocate_containers(topology, (1 << topology.gpu_count) - 1, requests) is None:
        return None
    got = None if free is None else allocate_containers(topology, free, requests)
    if free is None or got is None:
        return _worst_case_links(topology, requests)._replace(unhealthy=tuple(bit_positions(unhealthy)))
    sick = unhealthy & union_masks(got) if topology.is_symmetric else unhealthy
    return _allocated_links(topology, free, requests, got)._replace(unhealthy=tuple(bit_positions(sick)))


def _worst_case_links(topology: GpuTopology, requests: ContainerRequests) -> GpuLinks:
    """Where it is not known which GPUs are free."""
    sets = gpu_sets(topology)
    worst = [sets.worst_quality(count) for count, _ in requests]
    joined = all(count == 1 or sets.are_all_joined(count) for count, _ in requests)
    return GpuLinks((), (), _combined_quality(requests, worst), joined, _worst_bandwidth_percent(sets, requests, worst))


def _allocated_links(topology: GpuTopology, free: int, requests: ContainerRequests, got: tuple[int, ...]) -> GpuLinks:
    """Where it is known which ones each container gets."""
    sets, taken = gpu_sets(topology), union_masks(got)
    qualities = [sets.link_quality(each) for each in got]
    known_gpus = tuple(bit_positions(taken)) if topology.is_symmetric else ()
    joined = all(sets.is_joined(each) for each in got)
    best = tuple(bit_positions(union_masks(allocate_containers(topology, free, requests, best_allocation) or ())))
    ratio, broken = _worst_bandwidth_percent(sets, requests, qualities), _count_broken_sets(sets, free, free & ~taken)
    return GpuLinks(known_gpus, best, _combined_quality(requests, qualities), joined, ratio, broken)


def _combined_quality(requests: ContainerRequests, qualities: Sequence[LinkQuality]) -> LinkQuality:
    """Of all containers together; one with a single GPU has no pairs."""
    pairs = [one.slowest for (count, _), one in zip(requests, qualities, strict=True) if count > 1]
    return LinkQuality(min(pairs, default=0), sum(one.total for one in qualities))


def _worst_bandwidth_percent(sets: GpuSets, requests: ContainerRequests, qualities: Sequence[LinkQuality]) -> int:
    return min(
        _bandwidth_percent(one, sets.best_quality(count)) for (count, _), one in zip(requests, qualities, strict=True)
    )


def precompute_gpu_sets(topologies: Sequence[GpuTopology]) -> None:
    """Work out ahead what takes longest when it is first asked for: the sets of each kind of node."""
    for topology in topologies:
        for count in range(1, topology.gpu_count + 1):
            pod_gpu_links(topology, (1 << topology.gpu_count) - 1, (ContainerRequest(count),))


def _count_broken_sets(sets: GpuSets, before: int, after: int) -> int:
    if sets.topology.gpu_count < min(KEPT_SET_SIZES) or sets.are_all_joined(min(KEPT_SET_SIZES)):
        return 0
    return sum(sets.largest_island(before) >= size > sets.largest_island(after) for size in KEPT_SET_SIZES)


def _bandwidth_percent(quality: LinkQuality, best: LinkQuality) -> int:
    return 100 * quality.slowest // best.slowest if best.slowest else 100
