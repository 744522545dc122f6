"""The rules that can be chosen, by the name that an admin writes."""

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
    """Says how good it is to put a pod somewhere.

    Attributes:
        tight: True if a share goes to the fullest of the GPUs of a node that score alike; else to the lowest.
    """

    prefers_full_gpus: bool

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """What free room comes to, in the rule's own unit, shape (n,)."""

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:
        """How good it is to put a pod on nodes, higher is better; equal scores mean equally good places.

        Args:
            was: The value of each node before the pod, shape (n,).
            becomes: The value after it, shape (n,).
            nodes: The nodes, as positions in the site, shape (n,).
            need: What the pod asks for.
        """

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> FloatArray | float:
        """What is added to the scores of all nodes because it cannot be kept by shape, shape (nodes,) or one number.

        Args:
            rooms: What is free before the pod.
            need: What the pod asks for, its memory too.
            turnover: Pods that leave for each that comes, from 0, where whoever has come stays, to 1.
        """


class MostAllocatedScorer:
    """NodeResourcesFit with MostAllocated on the GPUs alone: whole hundredths of the node's GPUs in use."""

    prefers_full_gpus = True

    def __init__(self, site: ClusterCapacity, mix: WorkloadMix) -> None:  # noqa: ARG002 - built as every rule is
        self._all = np.maximum(site.gpus.sum(1), 1)

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Hundredths of the node's GPUs in use."""
        all_ = self._all[rows.nodes]
        used: FloatArray = np.floor(100 * (all_ - rows.gpus.sum(1)) / all_)
        return used

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:  # noqa: ARG002 - a rule's face
        """The value after the pod."""
        return becomes

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> float:  # noqa: ARG002 - a rule's face
        """Nothing."""
        return 0.0


class DefaultScorer:
    """The scheduler as it comes: LeastAllocated and BalancedAllocation on CPU and memory.

    Each is a whole number from 0 to 100. GPUs take no part in the default.
    """

    prefers_full_gpus = True

    def __init__(self, site: ClusterCapacity, mix: WorkloadMix) -> None:
        """Nothing of either is needed."""

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Nothing."""
        return np.zeros(len(rows.nodes))

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:  # noqa: ARG002 - a rule's face
        """Nothing."""
        return becomes

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> FloatArray:  # noqa: ARG002 - a rule's face
        """Everything: memory is no part of a shape."""
        cpu = 1 - (rooms.cpu - need.cpu_milli) / np.maximum(rooms.capacity.cpu, 1)
        memory = 1 - (rooms.memory - need.memory_mib) / np.maximum(rooms.capacity.memory, 1)
        least = np.floor((np.floor(100 * (1 - cpu)) + np.floor(100 * (1 - memory))) / 2)
        balanced: FloatArray = np.floor(100 * (1 - np.abs(cpu - memory) / 2))
        return least + balanced


TYPICAL_SHARE = 0.95
"""Part of all pods that the most frequent needs must cover; the rest is left out."""


class FgdScorer:
    """The rule for one mix on one site."""

    prefers_full_gpus = False

    def __init__(self, site: ClusterCapacity, mix: WorkloadMix) -> None:
        needs = typical_demands(mix)
        with_gpus = {need: share for need, share in needs.items() if need.gpus}
        self._site = site
        self._share = np.array(list(with_gpus.values()))
        self._without = 1.0 - float(self._share.sum())
        self._cpu = np.array([need.cpu_milli for need in with_gpus], np.int64)
        self._count = np.array([need.gpus for need in with_gpus], np.int64)
        sizes, place = np.unique([need.gpu_milli for need in with_gpus], return_inverse=True)
        self._sizes: IntArray = sizes.astype(np.int64)
        self._size: IntArray = place.astype(np.int64)
        takes = np.array([[need.accepts_model(model) for need in with_gpus] for model in site.models], np.bool_)
        self._takes = takes.reshape(len(site.models), len(with_gpus))

    def node_values(self, rows: CapacityRows) -> FloatArray:
        """Minus the fragments: free thousandths that a typical pod cannot use; all where it does not fit at all."""
        free = rows.gpus.sum(1)
        room = units_per_gpu(rows.gpus[:, None, :], self._sizes[:, None])
        usable = np.where(room > 0, rows.gpus[:, None, :], 0).sum(2)[:, self._size]
        runs = (room.sum(2)[:, self._size] >= self._count) & (rows.cpu[:, None] >= self._cpu)
        runs &= self._takes[self._site.model_index[rows.nodes]]
        lost: FloatArray = free[:, None] - np.where(runs, usable, 0)
        fragments: FloatArray = lost @ self._share + self._without * free
        return -fragments

    def placement_scores(self, was: FloatArray, becomes: FloatArray, nodes: IntArray, need: PodDemand) -> FloatArray:  # noqa: ARG002 - a rule's face
        """The published score: how much less fragmented, through a sigmoid, in whole hundredths."""
        scores: FloatArray = np.floor(100 / (1 + np.exp((was - becomes) / GPU_MILLI)))
        return scores

    def node_adjustments(self, rooms: FreeCapacityArrays, need: PodDemand, turnover: float) -> float:  # noqa: ARG002 - a rule's face
        """Nothing."""
        return 0.0


def typical_demands(mix: WorkloadMix) -> dict[PodDemand, float]:
    """The most frequent needs that together are 95 % of all pods, and their part of them."""
    order = sorted(mix.counts.items(), key=lambda item: -item[1])
    wanted = TYPICAL_SHARE * sum(mix.counts.values())
    enough = next((i for i, reached in enumerate(accumulate(n for _, n in order), 1) if reached >= wanted), len(order))
    whole = sum(count for _, count in order[:enough])
    return {need: count / whole for need, count in order[:enough]}


class ScoringStrategy(StrEnum):
    """By what nodes are ranked."""

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
