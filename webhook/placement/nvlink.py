"""The best set of GPUs for a pod, exact over every set of free GPUs and every size.

`optimal_set` is the lexicographic best: bandwidth of the slowest pair, sum of all pairs, then the value of the GPUs
that stay free (best sets of two, four and eight among them, in the order in which the mix requests them), fewest NUMA
nodes, most whole NUMA nodes left, lowest index. A collective runs at the speed of its slowest pair, so that comes
first.

Sets of GPUs are bit masks: bit i is GPU i. For up to eight GPUs all answers are computed once per kind of node; for up
to sixteen, each free set when it is first needed, from tables over all its subsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from webhook.placement.capacity import IntArray
from webhook.placement.topology import GpuTopology

KEPT_SET_SIZES = (2, 4, 8)
"""Sizes of sets that are kept for the next pods, the most requested first."""

MAX_PRECOMPUTED_GPUS = 8
"""Up to this many GPUs, all pairs of a free set and a choice are sorted in one step (3 to the 8th)."""

MAX_CACHED_TOPOLOGIES = 256

_SHIFT = 40


class LinkQuality(NamedTuple):
    """Bandwidth of a set in MB/s: its slowest pair (0 for fewer than two GPUs), and all pairs together."""

    slowest: int
    total: int


class GpuSets:
    """Every set of GPUs of one kind of node.

    Attributes:
        kept_sizes: Sizes of sets to keep, the most requested first.
    """

    def __init__(self, topology: GpuTopology, keep: Sequence[int] = KEPT_SET_SIZES) -> None:
        self.topology = topology
        self.kept_sizes = tuple(keep)
        all_sets = np.arange(1 << topology.gpu_count)
        self._size = np.bitwise_count(all_sets).astype(np.int64)
        self._slowest, self._total = _set_qualities(topology)
        self._worth = (self._slowest << _SHIFT) + self._total
        self._kept_values = [
            _best_subset_values(np.where(self._size == size, self._worth, -1)) for size in self.kept_sizes
        ]
        self._connected = _connected_set_flags(topology)
        self._island = _best_subset_values(np.where(self._connected, self._size, 0))
        sizes = range(topology.gpu_count + 1)
        self._guaranteed_islands = [int(self._island[self._size == free].min()) for free in sizes]
        self._answers: dict[tuple[int, int], int] = {}
        if topology.gpu_count <= MAX_PRECOMPUTED_GPUS:
            self._precompute_all()

    def link_quality(self, chosen: int) -> LinkQuality:
        """Return the bandwidth of a set."""
        return LinkQuality(int(self._slowest[chosen]) if self._size[chosen] > 1 else 0, int(self._total[chosen]))

    def optimal_set(self, free: int, count: int) -> int | None:
        """Return the best set of `count` GPUs of a mask of free ones; None if there are too few."""
        if not 1 <= count <= free.bit_count():
            return None
        if (free, count) not in self._answers:
            subsets = np.flatnonzero(self._size == count)
            subsets = subsets[subsets & free == subsets]
            self._answers[free, count] = int(subsets[self._rank_sets(np.full_like(subsets, free), subsets)[0]])
        return self._answers[free, count]

    def largest_island(self, free: int) -> int:
        """Return the size of the largest free set in which NVLink connects every pair; 1 if none are connected."""
        return int(self._island[free])

    def guaranteed_island(self, free: int) -> int:
        """Return the same for a number of free GPUs, whichever they are."""
        return self._guaranteed_islands[free]

    def are_all_connected(self, count: int) -> bool:
        """Return whether NVLink connects every set of this size."""
        return bool((self._connected[self._size == count] == 1).all())

    def worst_quality(self, count: int) -> LinkQuality:
        """Return the least bandwidth that a pod gets, whichever GPUs are free."""
        positions = np.flatnonzero(self._size == count)
        return self.link_quality(int(positions[self._worth[positions].argmin()]))

    def best_quality(self, count: int) -> LinkQuality:
        """Return the highest bandwidth that a pod can get on this kind of node."""
        positions = np.flatnonzero(self._size == count)
        return self.link_quality(int(positions[self._worth[positions].argmax()]))

    def is_nvlink_connected(self, chosen: int) -> bool:
        """Return whether NVLink connects every pair of a set."""
        return bool(self._connected[chosen])

    def _precompute_all(self) -> None:
        all_sets = np.arange(1, 1 << self.topology.gpu_count)
        free, chosen = (side.ravel() for side in np.meshgrid(all_sets, all_sets, indexing="ij"))
        inside = chosen & free == chosen
        free, chosen = free[inside], chosen[inside]
        for position in self._rank_sets(free, chosen)[::-1]:  # the best of each pair of free set and size comes last
            self._answers[int(free[position]), int(self._size[chosen[position]])] = int(chosen[position])

    def _rank_sets(self, free: IntArray, chosen: IntArray) -> IntArray:
        """Return positions of the choices, the best first."""
        rest, gpus = free & ~chosen, self.topology.gpu_count
        numa_nodes = [np.bitwise_count(chosen & mask) > 0 for mask in _numa_masks(self.topology)]
        mirrored = [(chosen >> gpu & 1) << (gpus - 1 - gpu) for gpu in range(gpus)]
        keys = [-self._slowest[chosen], -self._total[chosen]]
        keys += [-kept[rest] for kept in self._kept_values]
        keys += [np.sum(numa_nodes, axis=0, dtype=np.int64), -self._numa_remainders(rest), -np.sum(mirrored, axis=0)]
        order: IntArray = np.lexsort(keys[::-1])
        return order

    def _numa_remainders(self, rest: IntArray) -> IntArray:
        """Return how many GPUs stay free per NUMA node, the largest first, as one comparable number."""
        counts = np.stack([np.bitwise_count(rest & mask).astype(np.int64) for mask in _numa_masks(self.topology)])
        largest = -np.sort(-counts, axis=0)[:MAX_PRECOMPUTED_GPUS]
        number = np.zeros_like(rest)
        for count in largest:
            number = number * 32 + count
        return number


@lru_cache(maxsize=MAX_CACHED_TOPOLOGIES)
def gpu_sets(topology: GpuTopology) -> GpuSets:
    """Return the sets of a kind of node, computed once."""
    return GpuSets(topology)


def gpu_mask(gpus: Sequence[int]) -> int:
    """Return the mask of some GPUs.

    >>> gpu_mask([0, 3])
    9
    """
    return sum(1 << gpu for gpu in gpus)


def _set_qualities(topology: GpuTopology) -> tuple[IntArray, IntArray]:
    """Return the slowest pair and the sum of all pairs of every set, shape (2 to the GPUs,)."""
    count = 1 << topology.gpu_count
    slowest, total = np.full(count, (1 << 20) - 1), np.zeros(count, np.int64)
    for gpu in range(topology.gpu_count):
        below = 1 << gpu
        least, added = np.full(below, (1 << 20) - 1), np.zeros(below, np.int64)
        for other in range(gpu):
            bit, rate = 1 << other, topology.bandwidth(gpu, other)
            least[bit : 2 * bit] = np.minimum(least[:bit], rate)
            added[bit : 2 * bit] = added[:bit] + rate
        slowest[below : 2 * below] = np.minimum(slowest[:below], least)
        total[below : 2 * below] = total[:below] + added
    return slowest, total


def _connected_set_flags(topology: GpuTopology) -> IntArray:
    """Return 1 for every set in which NVLink connects each pair, single GPUs included, shape (2 to the GPUs,)."""
    connected = np.ones(1 << topology.gpu_count, np.int64)
    for gpu in range(topology.gpu_count):
        for other in range(gpu):
            if not topology.count_nvlinks(gpu, other):
                pair = 1 << gpu | 1 << other
                connected[np.arange(len(connected)) & pair == pair] = 0
    return connected


def _best_subset_values(values: IntArray) -> IntArray:
    """Return for every set the highest value of any subset."""
    best = values.copy()
    gpus = len(values).bit_length() - 1
    for gpu in range(gpus):
        by_bit = best.reshape(-1, 2, 1 << gpu)
        np.maximum(by_bit[:, 1], by_bit[:, 0], out=by_bit[:, 1])
    return best


def _numa_masks(topology: GpuTopology) -> list[int]:
    return [
        gpu_mask([i for i, at in enumerate(topology.numa_nodes) if at == node])
        for node in sorted(set(topology.numa_nodes))
    ]
