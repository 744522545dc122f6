"""FGD: fragmentation gradient descent. The best place is the one whose fragmentation grows least.

A baseline, as its authors published and programmed it (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).
"""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from webhook.placement.fragmentation.mixes import WorkloadMix
from webhook.placement.needs import GPU_MILLI, PodDemand
from webhook.placement.rooms import FloatArray, IntArray, FreeCapacityArrays, CapacityRows, ClusterCapacity, units_per_gpu

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
