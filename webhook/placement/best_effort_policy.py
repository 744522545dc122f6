"""The best-effort allocation policy of NVIDIA's device plugin: which GPUs the kubelet will really get from it.

The policy splits all free GPUs into sets of the requested size (one smaller set if they do not divide evenly), chooses
the split with the highest sum of scores, and of that split the full set with the highest score; ties go by index order.
Required GPUs are in one full set of each split. For one GPU it takes the first. An NVLink scores 100, a PCIe path 10 to
60; links that end at an NVSwitch are invisible to it, and if only one of two GPUs reports links to the other it fails.
It is not used for shared GPUs and MIG instances.

The original tries all splits, millions for sixteen GPUs. Here the best split of each set of GPUs is computed once from
those of smaller sets, and all sets of one size in one step.

Source: NVIDIA/go-gpuallocator, besteffort_policy.go. One bug is left out: if the size does not divide the free GPUs,
the original may return a set with a hole (its pull request 80); here only full sets are returned.
"""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from webhook.model.node_masks import bit_positions
from webhook.placement.nvlink import MAX_CACHED_TOPOLOGIES
from webhook.placement.topology import GpuTopology

POINTS_PER_NVLINK = 100
POINTS_PER_PCIE_STEP = 10
"""Score of an NVLink, and of each step up from SYS."""

_FORBIDDEN = -(1 << 30)
"""Score of a split that is not allowed: below any other even with the scores of all pairs added."""


SetArray = NDArray[np.int32]
"""Masks of GPUs, or scores by mask. 32 bits, because that is twice as fast as 64."""

ChoiceArray = NDArray[np.float32]
"""Ones and zeros as floats, because numpy multiplies only floats fast."""


class BestEffortPolicy:
    """The policy on one kind of node."""

    def __init__(self, topology: GpuTopology) -> None:
        self._two_sided = topology.is_symmetric
        self._scores = _set_scores(topology)
        self._splits: dict[int, SplitTable] = {}
        self._answers: dict[tuple[int, int, int], int | None] = {}

    def predict_set(self, free: int, count: int, required: int = 0) -> int | None:
        """Return the set of `count` free GPUs that the plugin allocates; None if it allocates none or fails.

        `required` is a mask of GPUs that the set must contain: the kubelet requires those that a container reuses.
        """
        if required & ~free or not required.bit_count() <= count <= free.bit_count():
            return None
        if count > 1 and not self._two_sided:
            return None
        key = (free, count, required)
        if key not in self._answers:
            self._answers[key] = self._choose_set(free, count, required)
        return self._answers[key]

    def set_score(self, chosen: int) -> int:
        """Return the score of a set."""
        return int(self._scores[chosen])

    def _choose_set(self, free: int, count: int, required: int) -> int | None:
        if count < 1:
            return None
        if count == 1:
            return required or free & -free
        splits = self._splits.setdefault(count, SplitTable(self._scores, count))
        sets = splits.with_required(required, free).best_split(free) if required else splits.best_split(free)
        return max(
            (each for each in sets if each.bit_count() == count and each & required == required), key=self.set_score
        )


class SplitTable:
    """The best split of each set of GPUs into sets of one size, computed on demand."""

    def __init__(self, scores: SetArray, count: int) -> None:
        """Compute nothing yet. `scores` has the score of each set; GPUs left over form a smaller set than `count`."""
        self._scores = scores
        self._count = count
        self._required = 0
        self._points = np.zeros_like(scores)
        self._first = np.zeros_like(scores)  # the set with the lowest GPU; 0 if not computed yet

    def best_split(self, free: int) -> list[int]:
        """Return the sets of the first split with the highest score, in the original's order."""
        self._compute_splits(free)
        sets = []
        while free:
            sets.append(int(self._first[free]))
            free &= ~sets[-1]
        return sets

    def with_required(self, required: int, free: int) -> SplitTable:
        """Return a table in which one full set must contain some of the free GPUs."""
        self._compute_splits(free)
        some = SplitTable(self._scores, self._count)
        held = np.arange(len(self._scores), dtype=np.int32) & required
        some._required = required
        some._points = np.where((held == 0) | (held == required), self._points, _FORBIDDEN)
        some._first = np.where(held == required, 0, self._first)
        return some

    def _compute_splits(self, free: int) -> None:
        """Compute smaller sets first. A set without its lowest GPU is all that can be left of another."""
        if self._first[free]:
            return
        left = np.zeros(1, np.int32)
        for bit in bit_positions(free & free - 1):
            left = np.concatenate([left, left | 1 << bit])
        left = left[(self._first[left] == 0) & (left & self._required == self._required)]
        sizes = np.bitwise_count(left)
        for size in range(1, free.bit_count()):
            if size % self._count in (0, free.bit_count() % self._count):
                self._split_masks(left[sizes == size], size)
        self._split_masks(np.array([free], np.int32), free.bit_count())

    def _split_masks(self, masks: SetArray, size: int) -> None:
        if not len(masks):
            return
        sets = _candidate_first_sets(masks, size, self._count)
        points = self._scores[sets] + self._points[masks[:, None] ^ sets]
        if self._required:
            points[(sets & self._required != 0) & (np.bitwise_count(sets) < self._count)] = _FORBIDDEN
        best = points.argmax(1)[:, None]
        self._points[masks] = np.take_along_axis(points, best, 1)[:, 0]
        self._first[masks] = np.take_along_axis(sets, best, 1)[:, 0]


@lru_cache(maxsize=MAX_CACHED_TOPOLOGIES)
def best_effort_policy(topology: GpuTopology) -> BestEffortPolicy:
    """Return the policy on a kind of node, with cached answers."""
    return BestEffortPolicy(topology)


def _candidate_first_sets(masks: SetArray, size: int, count: int) -> SetArray:
    """Return the sets that contain the lowest GPU of masks with `size` GPUs, full ones and the smaller one; shape
    (masks, sets).
    """
    places, left = [], masks
    for _ in range(size):
        places.append(left & -left)
        left = left & left - 1
    chosen: SetArray = (np.stack(places, 1).astype(np.float32) @ _choice_matrix(size, count)).astype(np.int32)
    return chosen


@cache
def _choice_matrix(size: int, count: int) -> ChoiceArray:
    """Return which of `size` GPUs each choice has, always the lowest, in the original's order: gaps count as the
    highest indexes.

    Shape (GPUs, choices).
    """
    lowest = 1 << size - 1  # the lowest GPU is the highest bit, so that the order is that of falling numbers
    numbers = np.arange(2 * lowest - 1, lowest - 1, -1)
    numbers = numbers[np.isin(np.bitwise_count(numbers), (count, size % count))]
    return (numbers >> np.arange(size)[::-1, None] & 1).astype(np.float32)


def _set_scores(topology: GpuTopology) -> SetArray:
    """Return the score of every set, shape (2 to the GPUs,). For a pair, the links that the lower index reports count.

    An unknown PCIe path scores nothing, as on the original's own test nodes.
    """
    scores = np.zeros(1, np.int32)
    for gpu in range(topology.gpu_count):
        added = np.zeros(1, np.int32)
        for other in range(gpu):
            links, path = topology.nvlinks[other][gpu], topology.pcie_paths[other][gpu]
            points = POINTS_PER_NVLINK * (0 if topology.nvswitch else links) + POINTS_PER_PCIE_STEP * (path or 0)
            added = np.concatenate([added, added + points])
        scores = np.concatenate([scores, scores + added])
    return scores
