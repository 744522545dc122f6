"""Pods that come one after the other, and may leave: the same choice that is made live."""

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
from webhook.placement.fragmentation.workload_mix import FLAT_MIX, MixEstimator, TurnoverEstimator, WorkloadMix
from webhook.placement.nodes.score_table import GpuPlacement, ScoreTable, best_nodes


class UnschedulableReason(StrEnum):
    """The first of these that holds. The value is the sentence people read."""

    NO_MODEL = "no node has a GPU model that it takes"
    TOO_LARGE = "no node would take it even when empty"
    FULL = "Insufficient nvidia.com/gpu: fewer are free in the whole cluster"
    FRAGMENTED = "Insufficient nvidia.com/gpu: enough are free, but not together on one node or card"
    NO_CPU = "Insufficient cpu on the nodes with free GPUs"
    NO_MEMORY = "Insufficient memory on the nodes with free GPUs and CPU"
    FITS = "a node takes it"


class Simulator:
    """A cluster under one policy. Randomness comes from the caller; equal inputs play equally.

    Attributes:
        board: What is free, and the scores.
    """

    def __init__(
        self,
        capacity: ClusterCapacity,
        policy: ScoringStrategy,
        rng: np.random.Generator,
        mix: WorkloadMix | None = None,
        *,
        rooms: FreeCapacityArrays | None = None,
        order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None,
    ) -> None:
        """Begin.

        Args:
            capacity: The nodes.
            policy: What ranks them.
            rng: Chooses among equals.
            mix: What pods will ask for; None to learn it from the arrivals.
            rooms: What is free; None for an empty cluster.
            order: Rank of each node by which equals are chosen instead of at random, shape (nodes,).
        """
        self.site, self.policy = capacity, policy
        self._rng, self._order = rng, order
        self._learner = MixEstimator() if mix is None else None
        self._turnover = TurnoverEstimator()
        self.score_table = ScoreTable(rooms or FreeCapacityArrays(capacity), SCORERS[policy](capacity, mix or FLAT_MIX))

    def schedule_pod(self, demand: PodDemand) -> GpuPlacement | None:
        """Choose a place for a pod and take it; None where there is none."""
        best = best_nodes(self.score_table.scores(demand))
        if not len(best):
            return None
        node = int(best[self._rng.integers(len(best)) if self._order is None else self._order[best].argmin()])
        place = GpuPlacement(node, self.score_table.choose_gpus(node, demand))
        self.score_table.allocate(place, demand)
        return place

    def remove_pod(self, place: GpuPlacement, demand: PodDemand) -> None:
        """A pod leaves its place."""
        self.score_table.release(place, demand)
        self._turnover.record_departure()
        self.score_table.turnover = self._turnover.ratio

    def record_arrival(self, demand: PodDemand) -> None:
        """Count an arrival, placed or not; it is a part of the mix unless that was given."""
        self._turnover.record_arrival()
        self.score_table.turnover = self._turnover.ratio
        if self._learner is not None and self._learner.record_arrival(demand):
            self.score_table.set_scorer(SCORERS[self.policy](self.site, self._learner.estimated_mix()))


def unschedulable_reason(rooms: FreeCapacityArrays, demand: PodDemand) -> UnschedulableReason:
    """Why a pod finds no place among these rooms."""
    capacity, accepting = rooms.capacity, rooms.capacity.nodes_accepting(demand)
    if not accepting.any():
        return UnschedulableReason.NO_MODEL
    if not (_fits_empty_nodes(capacity.cpu, capacity.memory, capacity.gpus, demand) & accepting).any():
        return UnschedulableReason.TOO_LARGE
    gpus = _has_enough_gpus(rooms.gpus, demand) & accepting
    if not gpus.any():
        return (
            UnschedulableReason.FULL
            if int(rooms.gpus[accepting].sum()) < demand.total_milli
            else UnschedulableReason.FRAGMENTED
        )
    cpu = gpus & (rooms.cpu >= demand.cpu_milli)
    if not cpu.any():
        return UnschedulableReason.NO_CPU
    return (
        UnschedulableReason.FITS if (cpu & (rooms.memory >= demand.memory_mib)).any() else UnschedulableReason.NO_MEMORY
    )


def _fits_empty_nodes(cpu: IntArray, memory: IntArray, gpus: IntArray, demand: PodDemand) -> BoolArray:
    fits: BoolArray = _has_enough_gpus(gpus, demand) & (cpu >= demand.cpu_milli) & (memory >= demand.memory_mib)
    return fits


def _has_enough_gpus(gpus: IntArray, demand: PodDemand) -> BoolArray:
    enough: BoolArray = units_per_gpu(gpus, demand.gpu_milli).sum(1) >= demand.gpus
    return enough
