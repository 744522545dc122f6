"""The stock scheduler's own rules, as baselines: MostAllocated on GPUs, and its default, which spreads."""

from __future__ import annotations

import numpy as np

from webhook.placement.fragmentation.mixes import WorkloadMix
from webhook.placement.needs import PodDemand
from webhook.placement.rooms import FloatArray, IntArray, FreeCapacityArrays, CapacityRows, ClusterCapacity


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
