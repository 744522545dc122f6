"""Pods that come one after the other, and may leave: the same choice that is made live."""

from __future__ import annotations

import numpy as np

from webhook.placement.fragmentation.mixes import FLAT_MIX, MixEstimator, WorkloadMix, TurnoverEstimator
from webhook.placement.fragmentation.policies import SCORERS, ScoringStrategy
from webhook.placement.needs import PodDemand
from webhook.placement.nodes.board import ScoreTable, GpuPlacement, best_nodes
from webhook.placement.rooms import FreeCapacityArrays, ClusterCapacity


class Simulator:
    """A cluster under one policy. Randomness comes from the caller; equal inputs play equally.

    Attributes:
        board: What is free, and the scores.
    """

    def __init__(
        self,
        site: ClusterCapacity,
        policy: ScoringStrategy,
        rng: np.random.Generator,
        mix: WorkloadMix | None = None,
        *,
        rooms: FreeCapacityArrays | None = None,
        order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None,
    ) -> None:
        """Begin.

        Args:
            site: The nodes.
            policy: What ranks them.
            rng: Chooses among equals.
            mix: What pods will ask for; None to learn it from the arrivals.
            rooms: What is free; None for an empty cluster.
            order: Rank of each node by which equals are chosen instead of at random, shape (nodes,).
        """
        self.site, self.policy = site, policy
        self._rng, self._order = rng, order
        self._learner = MixEstimator() if mix is None else None
        self._turnover = TurnoverEstimator()
        self.score_table = ScoreTable(rooms or FreeCapacityArrays(site), SCORERS[policy](site, mix or FLAT_MIX))

    def schedule_pod(self, need: PodDemand) -> GpuPlacement | None:
        """Choose a place for a pod and take it; None where there is none."""
        best = best_nodes(self.score_table.scores(need))
        if not len(best):
            return None
        node = int(best[self._rng.integers(len(best)) if self._order is None else self._order[best].argmin()])
        place = GpuPlacement(node, self.score_table.choose_gpus(node, need))
        self.score_table.allocate(place, need)
        return place

    def remove_pod(self, place: GpuPlacement, need: PodDemand) -> None:
        """A pod leaves its place."""
        self.score_table.release(place, need)
        self._turnover.record_departure()
        self.score_table.turnover = self._turnover.ratio

    def record_arrival(self, need: PodDemand) -> None:
        """Count an arrival, placed or not; it is a part of the mix unless that was given."""
        self._turnover.record_arrival()
        self.score_table.turnover = self._turnover.ratio
        if self._learner is not None and self._learner.record_arrival(need):
            self.score_table.set_scorer(SCORERS[self.policy](self.site, self._learner.estimated_mix()))
