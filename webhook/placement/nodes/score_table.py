"""Scores of all nodes for each pod shape, and statistics of all nodes by state, both updated as nodes change.

A pod that arrives or leaves changes one node. Each shape keeps a row of scores and its position in the log of changed
nodes; only the nodes changed since then are scored again. Nodes in the same state share their statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from webhook.model.bounded_cache import BoundedCache
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
"""States that are remembered, or twice the number of nodes if that is more."""

K = TypeVar("K", bound=Hashable)


class NodeStates(Generic[K]):
    """The state of every node, as a number. Beyond `most` states, those that no node is in are dropped.

    Attributes:
        numbers: By node, shape (nodes,).
        generation: Changes when states are renumbered.
    """

    def __init__(self, keys: Iterable[K], most: int = MAX_STATES) -> None:
        self.generation, self._most = 0, most
        self._begin(keys)

    def set(self, node: int, key: K) -> None:
        """Set the state of a node."""
        self.numbers[node] = self._number(key)
        if len(self.keys) > max(self._most, 2 * len(self.numbers)):
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


class StateStats(Generic[K]):
    """Statistics of every state, computed on first use.

    If computing a state fails, it counts as the worst one, so that one node does not affect the answer about others.
    """

    def __init__(
        self,
        states: NodeStates[K],
        compute: Callable[[K], tuple[float, ...]],
        worst: tuple[float, ...] = (),
        errors: list[Exception] | None = None,
    ) -> None:
        """Compute nothing yet. If `compute` fails, `errors` receives the error and the state gets the worst statistics.

        Without `errors`, an error ends the call.
        """
        self._states, self._compute = states, compute
        self._worst, self._errors = worst, errors
        self._since = -1
        self._table: FloatArray = np.empty((0, 0))

    def by_node(self) -> FloatArray:
        """Return the statistics of every node, shape (nodes, statistics)."""
        states = self._states
        if self._since != states.generation:
            self._since, self._table = states.generation, np.empty((0, 0))
        if not states.keys:
            return np.empty((0, len(self._worst)))
        if len(self._table) < len(states.keys):
            more = np.array([self._compute_or_worst(key) for key in states.keys[len(self._table) :]], np.float64)
            self._table = np.vstack([self._table, more]) if len(self._table) else more
        return self._table[states.numbers]

    def _compute_or_worst(self, key: K) -> tuple[float, ...]:
        if self._errors is None:
            return self._compute(key)
        try:
            return self._compute(key)
        except Exception as error:
            self._errors.append(error)
            return self._worst


MAX_SCORE_ROWS = 1024
"""Shapes whose rows are kept; beyond that all rows are dropped."""

INFEASIBLE_SCORE = -np.inf
"""Score of a node where the pod does not fit."""


class GpuPlacement(NamedTuple):
    """Node position, and positions of the GPUs on it, one for each unit."""

    node: int
    gpus: tuple[int, ...]


class _ScoreRow:
    """Scores of one shape, valid up to a position of the log."""

    __slots__ = ("accepting", "log_position", "scores")

    def __init__(self, scores: FloatArray, accepting: BoolArray, log_position: int) -> None:
        self.scores, self.accepting, self.log_position = scores, accepting, log_position


class ScoreTable:
    """Scores by shape and node. It has one writer.

    Attributes:
        free: Free capacity. Change it through `allocate` and `release`, or call `refresh`.
        turnover: Pods that leave for each that arrives, from 0 to 1.
    """

    def __init__(self, arrays: FreeCapacityArrays, scorer: NodeScorer, turnover: float = 0.0) -> None:
        self.free, self.turnover = arrays, turnover
        self._all_nodes = np.arange(len(arrays.capacity.nodes))
        self.set_scorer(scorer)

    def set_scorer(self, scorer: NodeScorer) -> None:
        """Use another scorer from now on."""
        self._scorer = scorer
        self._values = scorer.node_values(self.free.rows(self._all_nodes))
        self._rows: BoundedCache[PodDemand, _ScoreRow] = BoundedCache(MAX_SCORE_ROWS)
        self._log: list[int] = []

    def scores(self, demand: PodDemand) -> FloatArray:
        """Return the score of every node, shape (nodes,); INFEASIBLE_SCORE if the pod does not fit."""
        scores = self._score_row(demand.shape).scores + self._scorer.node_adjustments(self.free, demand, self.turnover)
        fitting: FloatArray = np.where(self.free.memory >= demand.memory, scores, INFEASIBLE_SCORE)
        return fitting

    def choose_gpus(self, node: int, demand: PodDemand) -> tuple[int, ...]:
        """Return the GPUs of a node that the scorer would choose, one for each unit."""
        if not demand.gpus:
            return ()
        free = self.free.gpus[node]
        if demand.gpu_milli == GPU_MILLI:
            return tuple(np.flatnonzero(free == GPU_MILLI)[: demand.gpus].tolist())
        one = np.array([node])
        options = placement_options(self.free.rows(one), demand, self._score_row(demand.shape).accepting)
        scores = self._scorer.placement_scores(
            self._values[options.nodes], self._scorer.node_values(options), options.nodes, demand
        )
        units_taken = units_per_gpu(free - options.gpus, demand.gpu_milli)
        best = np.flatnonzero(scores == scores.max())
        option = (
            min(best, key=lambda i: int(free[units_taken[i] > 0].sum())) if self._scorer.prefers_full_gpus else best[0]
        )
        return tuple(np.repeat(np.arange(len(free)), units_taken[option]).tolist())

    def allocate(self, placement: GpuPlacement, demand: PodDemand) -> None:
        """Add a pod and score its node again."""
        self.free.allocate(placement.node, demand, placement.gpus)
        self.refresh((placement.node,))

    def release(self, placement: GpuPlacement, demand: PodDemand) -> None:
        """Remove a pod and score its node again."""
        self.free.release(placement.node, demand, placement.gpus)
        self.refresh((placement.node,))

    def refresh(self, nodes: Sequence[int]) -> None:
        """Score some nodes again after their free capacity was changed directly."""
        some = np.array(nodes, np.int64)
        self._values[some] = self._scorer.node_values(self.free.rows(some))
        self._log += nodes
        if len(self._log) > 4 * max(GPU_MILLI, len(self._all_nodes)):
            self._log.clear()
            self._rows.clear()

    def _score_row(self, shape: PodDemand) -> _ScoreRow:
        if (row := self._rows.get(shape)) is None:
            accepting = self.free.capacity.nodes_accepting(shape)
            scores = self._score_nodes(self._all_nodes, shape, accepting)
            return self._rows.store(shape, _ScoreRow(scores, accepting, len(self._log)))
        if row.log_position < len(self._log):
            changed = np.array(sorted(set(self._log[row.log_position :])))
            row.scores[changed] = self._score_nodes(changed, shape, row.accepting)
            row.log_position = len(self._log)
        return row

    def _score_nodes(self, nodes: IntArray, shape: PodDemand, accepting: BoolArray) -> FloatArray:
        options = placement_options(self.free.rows(nodes), shape, accepting)
        scores = self._scorer.placement_scores(
            self._values[options.nodes], self._scorer.node_values(options), options.nodes, shape
        )
        return _best_option_scores(nodes, options.nodes, scores)


def _best_option_scores(nodes: IntArray, option_nodes: IntArray, scores: FloatArray) -> FloatArray:
    """Return the best score of each node among its options; both lists of nodes are ascending."""
    found = np.full(len(nodes), INFEASIBLE_SCORE)
    if len(option_nodes):
        starts = np.flatnonzero(np.diff(option_nodes, prepend=-1))
        found[np.searchsorted(nodes, option_nodes[starts])] = np.maximum.reduceat(scores, starts)
    return found


def best_nodes(scores: FloatArray) -> IntArray:
    """Return the nodes with the highest score; none if no node fits."""
    highest = scores.max(initial=INFEASIBLE_SCORE)
    return np.flatnonzero(scores == highest) if highest > INFEASIBLE_SCORE else np.empty(0, np.int64)
