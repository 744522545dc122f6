"""The GPUs that a pod would get on a node, and how they are linked.

The prediction of NVIDIA's device plugin counts, because the kubelet asks the plugin. Links are compared with the best
of the same kind of node, so that a scarce machine with faster links is not chosen for its speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
    can_ever_get_connected_gpus,
    count_connected_pods,
    count_held_gpus,
    gets_connected_gpus,
)
from webhook.placement.nodes.score_table import NodeStates, StateStats
from webhook.placement.nvlink import KEPT_SET_SIZES, GpuSets, LinkQuality, gpu_sets
from webhook.placement.topology import GpuTopology

MAX_CACHED_STATS = 64
"""Requests, container by container, whose statistics are kept."""

MAX_TOPOLOGIES = 256
"""Topologies that are kept; beyond that those that no node has are dropped."""

LinkState = tuple[int, int | None, int, int]
"""Topology number, mask of free GPUs (None if unknown), their number in that case, and mask of unhealthy GPUs."""

NO_LINK_STATS = (0.0,) * 6


class GpuLinks(NamedTuple):
    """The GPUs of a node that a pod would get.

    Attributes:
        gpus: GPUs that the device plugin will allocate; () if unknown.
        optimal: The best set; () if it is unknown which GPUs are free.
        quality: Bandwidth of what it gets, or the least it may get.
        nvlink_connected: True if NVLink connects each pair of every container.
        ratio: Slowest pair as a percentage of the best on this kind of node, for the worst container.
        broken_sets: How many sizes of connected sets (two, four, eight) the node can no longer provide afterwards. Only
            counted if not all pairs are connected equally; otherwise the number of idle GPUs is enough.
        unhealthy: Unhealthy GPUs of what it gets or may get.
    """

    gpus: tuple[int, ...]
    optimal: tuple[int, ...]
    quality: LinkQuality
    nvlink_connected: bool
    ratio: int
    broken_sets: int = 0
    unhealthy: tuple[int, ...] = ()


class LinkStats(NamedTuple):
    """Link statistics of every node, each of shape (nodes,); 0 for a node where the pod gets no GPUs.

    Attributes:
        nvlink_connected: 1 if NVLink connects the GPUs of each container.
        ratio: As in `GpuLinks`.
        broken_sets: As in `GpuLinks`.
        connectable: As `nvlink_connected`, and also 1 if it holds whichever GPUs are free.
        ever_connectable: 1 if it may hold once other GPUs are free.
        unhealthy: Number of unhealthy GPUs that it would get or may get.
    """

    nvlink_connected: FloatArray
    ratio: FloatArray
    broken_sets: FloatArray
    connectable: FloatArray
    ever_connectable: FloatArray
    unhealthy: FloatArray


class LinkTable:
    """Link statistics of all nodes, updated as GPUs are allocated and released. It has one writer."""

    def __init__(self, devices: Sequence[NodeDevices], errors: list[Exception] | None = None) -> None:
        """Index the GPUs of each node. `errors` receives errors; nodes with an error count as nodes without GPUs."""
        self._errors = errors
        self._of = [each.topology for each in devices]
        self._topologies = NodeStates(self._of, MAX_TOPOLOGIES)
        self._begin([(each.free, each.free_count, each.allocatable_unhealthy) for each in devices])

    def set(self, node: int, devices: NodeDevices) -> None:
        """Set the devices of a node."""
        if devices.topology is not self._of[node]:
            self._of[node] = devices.topology
            generation = self._topologies.generation
            self._topologies.set(node, devices.topology)
            if self._topologies.generation != generation:
                self._begin([self._states.keys[number][1:] for number in self._states.numbers.tolist()])
        kind = int(self._topologies.numbers[node])
        self._states.set(node, (kind, devices.free, devices.free_count, devices.allocatable_unhealthy))

    def link_stats(self, requests: ContainerRequests) -> LinkStats:
        """Return the statistics of every node for a pod's container requests."""
        if (stats := self._link_stats.get(requests)) is None:
            compute = partial(self._compute_stats, requests)
            stats = StateStats(self._states, compute, NO_LINK_STATS, self._errors)
            self._link_stats.store(requests, stats)
        return LinkStats(*stats.by_node().T)

    def connected_pod_counts(self, requests: ContainerRequests) -> FloatArray:
        """Return how many such pods get connected GPUs on each node, one after the other, shape (nodes,)."""
        if (stats := self._connected_counts.get(requests)) is None:
            stats = StateStats(self._states, partial(self._count_connected_pods, requests), (0.0,), self._errors)
            self._connected_counts.store(requests, stats)
        return stats.by_node()[:, 0]

    def _count_connected_pods(self, requests: ContainerRequests, state: LinkState) -> tuple[float]:
        kind, free, free_count, _ = state
        return (float(count_connected_pods(self._topologies.keys[kind], free, requests, free_count)),)

    def _begin(self, free: Sequence[tuple[int | None, int, int]]) -> None:
        """Start with the current topology numbers; statistics of earlier numbers are dropped.

        Args:
            free: By node: mask of free GPUs, their number if that is unknown, and mask of unhealthy GPUs.
        """
        kinds = self._topologies.numbers.tolist()
        self._states: NodeStates[LinkState] = NodeStates((kind, *each) for kind, each in zip(kinds, free, strict=True))
        self._link_stats: BoundedCache[ContainerRequests, StateStats[LinkState]] = BoundedCache(MAX_CACHED_STATS)
        self._connected_counts: BoundedCache[ContainerRequests, StateStats[LinkState]] = BoundedCache(MAX_CACHED_STATS)

    def _compute_stats(self, requests: ContainerRequests, state: LinkState) -> tuple[float, ...]:
        kind, free, free_count, unhealthy = state
        topology = self._topologies.keys[kind]
        links = pod_gpu_links(topology, free, requests, unhealthy)
        if links is None:
            return NO_LINK_STATS
        now, ever = (
            gets_connected_gpus(topology, free, requests, free_count),
            can_ever_get_connected_gpus(topology, requests),
        )
        unhealthy_gpus = min(len(links.unhealthy), count_held_gpus(requests))
        return tuple(map(float, (links.nvlink_connected, links.ratio, links.broken_sets, now, ever, unhealthy_gpus)))


def pod_gpu_links(
    topology: GpuTopology, free: int | None, requests: ContainerRequests, unhealthy: int = 0
) -> GpuLinks | None:
    """Return the GPUs that a pod would get; None for none, or if the node has too few.

    The mask of free GPUs is None if unknown; `unhealthy` is a mask of unhealthy GPUs that may be allocated.
    """
    if not requests or allocate_containers(topology, (1 << topology.gpu_count) - 1, requests) is None:
        return None
    allocated = None if free is None else allocate_containers(topology, free, requests)
    if free is None or allocated is None:
        return _worst_case_links(topology, requests)._replace(unhealthy=tuple(bit_positions(unhealthy)))
    unhealthy = unhealthy & union_masks(allocated) if topology.is_symmetric else unhealthy
    return _allocated_links(topology, free, requests, allocated)._replace(unhealthy=tuple(bit_positions(unhealthy)))


def _worst_case_links(topology: GpuTopology, requests: ContainerRequests) -> GpuLinks:
    """For a node where it is unknown which GPUs are free."""
    sets = gpu_sets(topology)
    worst = [sets.worst_quality(count) for count, _ in requests]
    connected = all(count == 1 or sets.are_all_connected(count) for count, _ in requests)
    ratio = _worst_bandwidth_percent(sets, requests, worst)
    return GpuLinks((), (), _combined_quality(requests, worst), connected, ratio)


def _allocated_links(
    topology: GpuTopology, free: int, requests: ContainerRequests, allocated: tuple[int, ...]
) -> GpuLinks:
    sets, allocated_mask = gpu_sets(topology), union_masks(allocated)
    qualities = [sets.link_quality(each) for each in allocated]
    gpus = tuple(bit_positions(allocated_mask)) if topology.is_symmetric else ()
    connected = all(sets.is_nvlink_connected(each) for each in allocated)
    best = tuple(bit_positions(union_masks(allocate_containers(topology, free, requests, best_allocation) or ())))
    ratio, broken_sets = _worst_bandwidth_percent(sets, requests, qualities), 0
    if topology.gpu_count >= min(KEPT_SET_SIZES) and not sets.are_all_connected(min(KEPT_SET_SIZES)):
        before, after = sets.largest_island(free), sets.largest_island(free & ~allocated_mask)
        broken_sets = sum(before >= size > after for size in KEPT_SET_SIZES)
    return GpuLinks(gpus, best, _combined_quality(requests, qualities), connected, ratio, broken_sets)


def _combined_quality(requests: ContainerRequests, qualities: Sequence[LinkQuality]) -> LinkQuality:
    """Return the quality for all containers together; a container with a single GPU has no pairs."""
    pairs = [one.slowest for (count, _), one in zip(requests, qualities, strict=True) if count > 1]
    return LinkQuality(min(pairs, default=0), sum(one.total for one in qualities))


def _worst_bandwidth_percent(sets: GpuSets, requests: ContainerRequests, qualities: Sequence[LinkQuality]) -> int:
    bests = (sets.best_quality(request.gpus).slowest for request in requests)
    pairs = zip(qualities, bests, strict=True)
    return min(100 * quality.slowest // best if best else 100 for quality, best in pairs)


def precompute_gpu_sets(topologies: Sequence[GpuTopology]) -> None:
    """Compute the sets of each kind of node ahead, because that is what takes longest."""
    for topology in topologies:
        for count in range(1, topology.gpu_count + 1):
            pod_gpu_links(topology, (1 << topology.gpu_count) - 1, (ContainerRequest(count),))
