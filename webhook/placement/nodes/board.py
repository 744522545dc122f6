"""The board: the score of every node for every need that has been asked for, kept as nodes change.

A pod that comes or goes touches one node. So each shape keeps its row of scores and the point in the log of
changed nodes up to which it is good, and only what changed since is scored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from webhook.placement.fragmentation.rule import NodeScorer
from webhook.placement.needs import GPU_MILLI, PodDemand
from webhook.placement.rooms import BoolArray, FloatArray, IntArray, FreeCapacityArrays, placement_options, units_per_gpu

MAX_SCORE_ROWS = 1024
"""Shapes whose rows are kept; beyond that the rows start anew."""

INFEASIBLE_SCORE = -np.inf
"""The score of a node that cannot take the pod."""


class GpuPlacement(NamedTuple):
    """Where a pod goes: position of the node in the site, and positions of the GPUs on it, one for each unit."""

    node: int
    gpus: tuple[int, ...]


class _ScoreRow:
    """Scores of one shape: good for all nodes up to a point of the log."""

    __slots__ = ("scores", "seen", "taking")

    def __init__(self, scores: FloatArray, taking: BoolArray, seen: int) -> None:
        self.scores, self.taking, self.seen = scores, taking, seen


class ScoreTable:
    """Scores by shape and node. It has one writer.

    Attributes:
        rooms: What is free. Change it through `take` and `give`, or call `refresh`.
        turnover: Pods that leave for each that comes, from 0 to 1.
    """

    def __init__(self, rooms: FreeCapacityArrays, rule: NodeScorer, turnover: float = 0.0) -> None:
        self.free, self.turnover = rooms, turnover
        self._everyone = np.arange(len(rooms.capacity.nodes))
        self.set_scorer(rule)

    def set_scorer(self, rule: NodeScorer) -> None:
        """Judge by this rule from now on."""
        self._scorer = rule
        self._values = rule.node_values(self.free.rows(self._everyone))
        self._rows: dict[PodDemand, _ScoreRow] = {}
        self._log: list[int] = []

    def scores(self, need: PodDemand) -> FloatArray:
        """The score of every node, shape (nodes,); NOWHERE for one that cannot take the pod."""
        scores = self._score_row(need.shape).scores + self._scorer.node_adjustments(self.free, need, self.turnover)
        fitting: FloatArray = np.where(self.free.memory >= need.memory_mib, scores, INFEASIBLE_SCORE)
        return fitting

    def choose_gpus(self, node: int, need: PodDemand) -> tuple[int, ...]:
        """The GPUs of a node with room for the pod that the rule would give it, one for each unit."""
        if not need.gpus:
            return ()
        free = self.free.gpus[node]
        if need.gpu_milli == GPU_MILLI:
            return tuple(np.flatnonzero(free == GPU_MILLI)[: need.gpus].tolist())
        one = np.array([node])
        ways = placement_options(self.free.rows(one), need, self._score_row(need.shape).taking)
        scores = self._scorer.placement_scores(self._values[ways.nodes], self._scorer.node_values(ways), ways.nodes, need)
        taken = units_per_gpu(free - ways.gpus, need.gpu_milli)
        best = np.flatnonzero(scores == scores.max())
        way = min(best, key=lambda i: int(free[taken[i] > 0].sum())) if self._scorer.prefers_full_gpus else best[0]
        return tuple(np.repeat(np.arange(len(free)), taken[way]).tolist())

    def allocate(self, place: GpuPlacement, need: PodDemand) -> None:
        """A pod begins to hold its place."""
        self.free.allocate(place.node, need, place.gpus)
        self.refresh((place.node,))

    def release(self, place: GpuPlacement, need: PodDemand) -> None:
        """A pod gives its place back."""
        self.free.release(place.node, need, place.gpus)
        self.refresh((place.node,))

    def refresh(self, nodes: Sequence[int]) -> None:
        """The rooms of some nodes were written anew."""
        some = np.array(nodes, np.int64)
        self._values[some] = self._scorer.node_values(self.free.rows(some))
        self._log += nodes
        if len(self._log) > 4 * max(GPU_MILLI, len(self._everyone)):
            self._log.clear()
            self._rows.clear()

    def _score_row(self, shape: PodDemand) -> _ScoreRow:
        row = self._rows.get(shape)
        if row is None:
            return self._add_score_row(shape)
        if row.seen < len(self._log):
            changed = np.array(sorted(set(self._log[row.seen :])))
            row.scores[changed] = self._score_nodes(changed, shape, row.taking)
            row.seen = len(self._log)
        return row

    def _add_score_row(self, shape: PodDemand) -> _ScoreRow:
        if len(self._rows) >= MAX_SCORE_ROWS:
            self._rows.clear()
        taking = self.free.capacity.nodes_accepting(shape)
        row = self._rows[shape] = _ScoreRow(self._score_nodes(self._everyone, shape, taking), taking, len(self._log))
        return row

    def _score_nodes(self, nodes: IntArray, shape: PodDemand, taking: BoolArray) -> FloatArray:
        ways = placement_options(self.free.rows(nodes), shape, taking)
        scores = self._scorer.placement_scores(self._values[ways.nodes], self._scorer.node_values(ways), ways.nodes, shape)
        return _best_option_scores(nodes, ways.nodes, scores)


def _best_option_scores(nodes: IntArray, of: IntArray, scores: FloatArray) -> FloatArray:
    """The best score of each node, of its options; both lists of nodes rise."""
    found = np.full(len(nodes), INFEASIBLE_SCORE)
    if len(of):
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        found[np.searchsorted(nodes, of[starts])] = np.maximum.reduceat(scores, starts)
    return found


def best_nodes(scores: FloatArray) -> IntArray:
    """The nodes with the highest score; none where no node can take the pod."""
    highest = scores.max(initial=INFEASIBLE_SCORE)
    return np.flatnonzero(scores == highest) if highest > INFEASIBLE_SCORE else np.empty(0, np.int64)
