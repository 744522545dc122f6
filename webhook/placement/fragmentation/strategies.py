"""The scoring strategies by name, their common protocol, and the baselines: FGD and the stock scheduler's own rules."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from itertools import accumulate
from typing import Protocol

import numpy as np

from webhook.placement.capacity import (
    GPU_MILLI,
    CapacityRows,
    ClusterCapacity,
    FloatArray,
    FreeCapacityArrays,
    IntArray,
    PodDemand,
    units_per_gpu,
)
from webhook.placement.fragmentation.tab import TabScorer
from webhook.placement.fragmentation.workload_mix import WorkloadMix


class NodeScorer(Protocol):
    """Scores placements. A scorer is built for one workload mix and one set of nodes.

    Attributes:
        prefers_full_gpus: True if a share goes to the fullest of a node's equally scored GPUs; otherwise to the lowest.
    """

    prefers_full_gpus: bool

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Return the value of free capacity, in the strategy's own unit, shape (n,)."""

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, demand: PodDemand) -> FloatArray:  # noqa: ARG002 - for overriding
        """Return the score of placing a pod; higher is better, equal scores are equally good. Here the value after it.

        Args:
            was: Value of each node before the pod, shape (n,).
            becomes: Value after it, shape (n,).
            nodes: Node positions, shape (n,).
        """
        return becomes

    def node_adjustments(self, free: FreeCapacityArrays, demand: PodDemand, turnover: float) -> FloatArray | float:  # noqa: ARG002 - for overriding
        """Return what is added to all scores because it cannot be cached by shape, shape (nodes,) or one number.

        Args:
            free: Free capacity before the pod.
            demand: The pod's demand, memory included.
            turnover: Pods that leave for each that arrives, from 0 (none leave) to 1.
        """
        return 0.0


class MostAllocatedScorer(NodeScorer):
    """NodeResourcesFit with MostAllocated on GPUs alone: whole hundredths of the node's GPUs in use."""

    prefers_full_gpus = True

    def __init__(self, capacity: ClusterCapacity, mix: WorkloadMix) -> None:  # noqa: ARG002 - protocol
        self._all = np.maximum(capacity.gpus.sum(1), 1)

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Hundredths of the node's GPUs in use."""
        totals = self._all[rows.nodes]
        used: FloatArray = np.floor(100 * (totals - rows.gpus.sum(1)) / totals)
        return used


class DefaultScorer(NodeScorer):
    """The stock scheduler's default: LeastAllocated and BalancedAllocation on CPU and memory, each from 0 to 100."""

    prefers_full_gpus = True

    def __init__(self, capacity: ClusterCapacity, mix: WorkloadMix) -> None:
        """Needs neither the nodes nor the mix."""

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Zero."""
        return np.zeros(len(rows.nodes))

    def node_adjustments(self, free: FreeCapacityArrays, demand: PodDemand, turnover: float) -> FloatArray:  # noqa: ARG002 - protocol
        """The whole score: memory is not part of a shape."""
        cpu = 1 - (free.cpu - demand.cpu_milli) / np.maximum(free.capacity.cpu, 1)
        memory = 1 - (free.memory - demand.memory) / np.maximum(free.capacity.memory, 1)
        least = np.floor((np.floor(100 * (1 - cpu)) + np.floor(100 * (1 - memory))) / 2)
        balanced: FloatArray = np.floor(100 * (1 - np.abs(cpu - memory) / 2))
        return least + balanced


TYPICAL_SHARE = 0.95
"""Part of all pods that the typical demands must cover."""


class FgdScorer(NodeScorer):
    """Fragmentation gradient descent: the best node is the one whose fragmentation grows least.

    A baseline, as published and implemented by its authors (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).
    """

    prefers_full_gpus = False

    def __init__(self, capacity: ClusterCapacity, mix: WorkloadMix) -> None:
        demands = typical_demands(mix)
        with_gpus = {demand: share for demand, share in demands.items() if demand.gpus}
        self._capacity = capacity
        self._share = np.array(list(with_gpus.values()))
        self._without = 1.0 - float(self._share.sum())
        self._cpu = np.array([demand.cpu_milli for demand in with_gpus], np.int64)
        self._count = np.array([demand.gpus for demand in with_gpus], np.int64)
        sizes, place = np.unique([demand.gpu_milli for demand in with_gpus], return_inverse=True)
        self._sizes: IntArray = sizes.astype(np.int64)
        self._size: IntArray = place.astype(np.int64)
        accepts = np.array(
            [[demand.accepts_model(model) for demand in with_gpus] for model in capacity.models], np.bool_
        )
        self._accepts = accepts.reshape(len(capacity.models), len(with_gpus))

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Minus the fragments: free thousandths that a typical pod cannot use; all of them if it does not fit."""
        free = rows.gpus.sum(1)
        fitting_units = units_per_gpu(rows.gpus[:, None, :], self._sizes[:, None])
        usable = np.where(fitting_units > 0, rows.gpus[:, None, :], 0).sum(2)[:, self._size]
        runs = (fitting_units.sum(2)[:, self._size] >= self._count) & (rows.cpu[:, None] >= self._cpu)
        runs &= self._accepts[self._capacity.model_index[rows.nodes]]
        lost: FloatArray = free[:, None] - np.where(runs, usable, 0)
        fragments: FloatArray = lost @ self._share + self._without * free
        return -fragments

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, demand: PodDemand) -> FloatArray:  # noqa: ARG002 - protocol
        """The published score: the decrease of fragmentation through a sigmoid, in whole hundredths."""
        scores: FloatArray = np.floor(100 / (1 + np.exp((was - becomes) / GPU_MILLI)))
        return scores


def typical_demands(mix: WorkloadMix) -> dict[PodDemand, float]:
    """Return the most frequent demands that together are 95 % of all pods, with their share."""
    order = sorted(mix.counts.items(), key=lambda item: -item[1])
    target = TYPICAL_SHARE * sum(mix.counts.values())
    enough = next((i for i, reached in enumerate(accumulate(n for _, n in order), 1) if reached >= target), len(order))
    total = sum(count for _, count in order[:enough])
    return {demand: count / total for demand, count in order[:enough]}


class ScoringStrategy(StrEnum):
    """Strategy that ranks nodes."""

    TAB = "tab"
    FGD = "fgd"
    MOST_ALLOCATED = "most-allocated"
    DEFAULT = "default"


SCORERS: dict[ScoringStrategy, Callable[[ClusterCapacity, WorkloadMix], NodeScorer]] = {
    ScoringStrategy.TAB: TabScorer,
    ScoringStrategy.FGD: FgdScorer,
    ScoringStrategy.MOST_ALLOCATED: MostAllocatedScorer,
    ScoringStrategy.DEFAULT: DefaultScorer,
}
