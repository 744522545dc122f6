"""The board: the score of every node for every need that has been asked for, kept as nodes change.

A pod that comes or goes touches one node. So each shape keeps its row of scores and the point in the log of
changed nodes up to which it is good, and only what changed since is scored again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from webhook.placement.capacity import (
    GPU_MILLI,
    BoolArray,
    FloatArray,
    FreeCapacityArrays,
    IntArray,
    PodDemand,
    placement_options,
    units_per_gpu,
)
from webhook.placement.fragmentation.strategies import NodeScorer

MAX_STATES = 16_384
"""States that are remembered; beyond that those that no node is in any more are forgotten."""

K = TypeVar("K", bound=Hashable)


class NodeStates(Generic[K]):
    """The state of every node, as a number.

    Attributes:
        of: By node, shape (nodes,).
        keys: What each number stands for.
        since: Changes whenever the numbers begin anew.
    """

    def __init__(self, keys: Iterable[K]) -> None:
        self.generation = 0
        self._begin(keys)

    def set(self, node: int, key: K) -> None:
        """A node is in another state now."""
        self.numbers[node] = self._number(key)
        if len(self.keys) > max(MAX_STATES, 2 * len(self.numbers)):
            self.generation += 1
            self._begin([self.keys[number] for number in self.numbers.tolist()])

    def _begin(self, keys: Iterable[K]) -> None:
        self._numbers: dict[K, int] = {}
        self.keys: list[K] = []
        self.numbers: IntArray = np.array([self._number(key) for key in keys], np.int64)

    def _number(self, key: K) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number


class StateFigures(Generic[K]):
    """Figures of every state, worked out when it is first asked for.

    A state that cannot be judged counts as the worst one, so that one node spoils no answer about the others.
    """

    def __init__(
        self,
        states: NodeStates[K],
        judge: Callable[[K], tuple[float, ...]],
        worst: tuple[float, ...] = (),
        faults: list[Exception] | None = None,
    ) -> None:
        """Begin.

        Args:
            states: The states.
            judge: Works out the figures of one.
            worst: The figures of one with which that fails.
            faults: Gets what went wrong; without it, such a fault ends the call.
        """
        self._states, self._judge = states, judge
        self._worst, self._faults = worst, faults
        self._since = -1
        self._table: FloatArray = np.empty((0, 0))

    def by_node(self) -> FloatArray:
        """The figures of every node, shape (nodes, figures)."""
        states = self._states
        if self._since != states.generation:
            self._since, self._table = states.generation, np.empty((0, 0))
        if len(self._table) < len(states.keys):
            more = np.array([self._figures(key) for key in states.keys[len(self._table) :]], np.float64)
            self._table = np.vstack([self._table, more]) if len(self._table) else more
        return self._table[states.numbers]

    def _figures(self, key: K) -> tuple[float, ...]:
        if self._faults is None:
            return self._judge(key)
        try:
            return self._judge(key)
        except Exception as error:
            self._faults.append(error)
            return self._worst


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

    def __init__(self, scores: FloatArray, accepting: BoolArray, seen: int) -> None:
        self.scores, self.taking, self.seen = scores, accepting, seen


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

    def scores(self, demand: PodDemand) -> FloatArray:
        """The score of every node, shape (nodes,); NOWHERE for one that cannot take the pod."""
        scores = self._score_row(demand.shape).scores + self._scorer.node_adjustments(self.free, demand, self.turnover)
        fitting: FloatArray = np.where(self.free.memory >= demand.memory_mib, scores, INFEASIBLE_SCORE)
        return fitting

    def choose_gpus(self, node: int, demand: PodDemand) -> tuple[int, ...]:
        """The GPUs of a node with room for the pod that the rule would give it, one for each unit."""
        if not demand.gpus:
            return ()
        free = self.free.gpus[node]
        if demand.gpu_milli == GPU_MILLI:
            return tuple(np.flatnonzero(free == GPU_MILLI)[: demand.gpus].tolist())
        one = np.array([node])
        ways = placement_options(self.free.rows(one), demand, self._score_row(demand.shape).taking)
        scores = self._scorer.placement_scores(
            self._values[ways.nodes], self._scorer.node_values(ways), ways.nodes, demand
        )
        taken = units_per_gpu(free - ways.gpus, demand.gpu_milli)
        best = np.flatnonzero(scores == scores.max())
        way = min(best, key=lambda i: int(free[taken[i] > 0].sum())) if self._scorer.prefers_full_gpus else best[0]
        return tuple(np.repeat(np.arange(len(free)), taken[way]).tolist())

    def allocate(self, place: GpuPlacement, demand: PodDemand) -> None:
        """A pod begins to hold its place."""
        self.free.allocate(place.node, demand, place.gpus)
        self.refresh((place.node,))

    def release(self, place: GpuPlacement, demand: PodDemand) -> None:
        """A pod gives its place back."""
        self.free.release(place.node, demand, place.gpus)
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
        accepting = self.free.capacity.nodes_accepting(shape)
        row = self._rows[shape] = _ScoreRow(
            self._score_nodes(self._everyone, shape, accepting), accepting, len(self._log)
        )
        return row

    def _score_nodes(self, nodes: IntArray, shape: PodDemand, accepting: BoolArray) -> FloatArray:
        ways = placement_options(self.free.rows(nodes), shape, accepting)
        scores = self._scorer.placement_scores(
            self._values[ways.nodes], self._scorer.node_values(ways), ways.nodes, shape
        )
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
