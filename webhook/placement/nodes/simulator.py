"""Simulates a trace: pods arrive one after the other on nodes known by capacity, without taints, links or health."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from webhook.placement.capacity import (
    BoolArray,
    ClusterCapacity,
    FreeCapacityArrays,
    IntArray,
    PodDemand,
    units_per_gpu,
)
from webhook.placement.fragmentation.strategies import SCORERS, ScoringStrategy
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, MixEstimator, WorkloadMix
from webhook.placement.nodes.score_table import GpuPlacement, ScoreTable, best_nodes


class UnschedulableReason(StrEnum):
    """The first reason against all nodes, as the sentence people read."""

    NO_MODEL = "no node has a GPU model that the pod accepts"
    TOO_LARGE = "too large for every node, even when empty"
    FULL = "Insufficient nvidia.com/gpu: fewer are free in the whole cluster"
    FRAGMENTED = "Insufficient nvidia.com/gpu: enough are free, but not together on one node or card"
    NO_CPU = "Insufficient cpu on the nodes with free GPUs"
    NO_MEMORY = "Insufficient memory on the nodes with free GPUs and CPU"
    FITS = "fits on a node"


class Simulator:
    """A cluster under one strategy. Randomness comes from the caller, so equal inputs give equal results.

    Attributes:
        score_table: Free capacity and scores.
    """

    def __init__(
        self,
        capacity: ClusterCapacity,
        strategy: ScoringStrategy,
        rng: np.random.Generator,
        mix: WorkloadMix | None = None,
        *,
        order: IntArray | None = None,
    ) -> None:
        """Prepare.

        Args:
            rng: Chooses among equal nodes.
            mix: Workload mix; None to learn it from arrivals.
            order: Rank of each node by which equals are chosen instead of at random, shape (nodes,).
        """
        self.capacity, self.strategy = capacity, strategy
        self._rng, self._order = rng, order
        self._learner = MixEstimator() if mix is None else None
        self.score_table = ScoreTable(FreeCapacityArrays(capacity), SCORERS[strategy](capacity, mix or FLAT_MIX))

    def schedule_pod(self, demand: PodDemand) -> GpuPlacement | None:
        """Place a pod; None if no node fits."""
        best = best_nodes(self.score_table.scores(demand))
        if not len(best):
            return None
        node = int(best[self._rng.integers(len(best)) if self._order is None else self._order[best].argmin()])
        placement = GpuPlacement(node, self.score_table.choose_gpus(node, demand))
        self.score_table.allocate(placement, demand)
        return placement

    def record_arrival(self, demand: PodDemand) -> None:
        """Count an arrival, placed or not; it changes the mix unless that was given."""
        if self._learner is not None and self._learner.record_arrival(demand):
            self.score_table.set_scorer(SCORERS[self.strategy](self.capacity, self._learner.estimated_mix()))


def unschedulable_reason(arrays: FreeCapacityArrays, demand: PodDemand) -> UnschedulableReason:
    """Return why a pod does not fit on any node."""
    capacity, accepting = arrays.capacity, arrays.capacity.nodes_accepting(demand)
    if not accepting.any():
        return UnschedulableReason.NO_MODEL
    fits_empty = (capacity.cpu >= demand.cpu_milli) & (capacity.memory >= demand.memory)
    if not (_has_enough_gpus(capacity.gpus, demand) & fits_empty & accepting).any():
        return UnschedulableReason.TOO_LARGE
    gpus = _has_enough_gpus(arrays.gpus, demand) & accepting
    if not gpus.any():
        is_full = int(arrays.gpus[accepting].sum()) < demand.total_milli
        return UnschedulableReason.FULL if is_full else UnschedulableReason.FRAGMENTED
    cpu = gpus & (arrays.cpu >= demand.cpu_milli)
    if not cpu.any():
        return UnschedulableReason.NO_CPU
    fits = (cpu & (arrays.memory >= demand.memory)).any()
    return UnschedulableReason.FITS if fits else UnschedulableReason.NO_MEMORY


def _has_enough_gpus(gpus: IntArray, demand: PodDemand) -> BoolArray:
    enough: BoolArray = units_per_gpu(gpus, demand.gpu_milli).sum(1) >= demand.gpus
    return enough
