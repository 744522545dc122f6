"""The board: the score of every node for every need that has been asked for, kept as nodes change.

A pod that comes or goes touches one node. So each shape keeps its row of scores and the point in the log of
changed nodes up to which it is good, and only what changed since is scored again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from webhook.placement.fragmentation.rule import Rule
from webhook.placement.needs import WHOLE, Need
from webhook.placement.rooms import Bools, Floats, Ints, Rooms, options, units

REMEMBERED = 1024
"""Shapes whose rows are kept; beyond that the rows start anew."""

NOWHERE = -np.inf
"""The score of a node that cannot take the pod."""


class Place(NamedTuple):
    """Where a pod goes: position of the node in the site, and positions of the GPUs on it, one for each unit."""

    node: int
    gpus: tuple[int, ...]


class _Row:
    """Scores of one shape: good for all nodes up to a point of the log."""

    __slots__ = ("scores", "seen", "taking")

    def __init__(self, scores: Floats, taking: Bools, seen: int) -> None:
        self.scores, self.taking, self.seen = scores, taking, seen


class Board:
    """Scores by shape and node. It has one writer.

    Attributes:
        rooms: What is free. Change it through `take` and `give`, or call `refresh`.
        turnover: Pods that leave for each that comes, from 0 to 1.
    """

    def __init__(self, rooms: Rooms, rule: Rule, turnover: float = 0.0) -> None:
        self.rooms, self.turnover = rooms, turnover
        self._everyone = np.arange(len(rooms.site.machines))
        self.use(rule)

    def use(self, rule: Rule) -> None:
        """Judge by this rule from now on."""
        self._rule = rule
        self._values = rule.value(self.rooms.rows(self._everyone))
        self._rows: dict[Need, _Row] = {}
        self._log: list[int] = []

    def scores(self, need: Need) -> Floats:
        """The score of every node, shape (nodes,); NOWHERE for one that cannot take the pod."""
        scores = self._row(need.shape).scores + self._rule.beside(self.rooms, need, self.turnover)
        fitting: Floats = np.where(self.rooms.memory >= need.memory_mib, scores, NOWHERE)
        return fitting

    def gpus(self, node: int, need: Need) -> tuple[int, ...]:
        """The GPUs of a node with room for the pod that the rule would give it, one for each unit."""
        if not need.gpus:
            return ()
        free = self.rooms.gpus[node]
        if need.gpu_milli == WHOLE:
            return tuple(np.flatnonzero(free == WHOLE)[: need.gpus].tolist())
        one = np.array([node])
        ways = options(self.rooms.rows(one), need, self._row(need.shape).taking)
        scores = self._rule.score(self._values[ways.nodes], self._rule.value(ways), ways.nodes, need)
        taken = units(free - ways.gpus, need.gpu_milli)
        best = np.flatnonzero(scores == scores.max())
        way = min(best, key=lambda i: int(free[taken[i] > 0].sum())) if self._rule.tight else best[0]
        return tuple(np.repeat(np.arange(len(free)), taken[way]).tolist())

    def take(self, place: Place, need: Need) -> None:
        """A pod begins to hold its place."""
        self.rooms.take(place.node, need, place.gpus)
        self.refresh((place.node,))

    def give(self, place: Place, need: Need) -> None:
        """A pod gives its place back."""
        self.rooms.give(place.node, need, place.gpus)
        self.refresh((place.node,))

    def refresh(self, nodes: Sequence[int]) -> None:
        """The rooms of some nodes were written anew."""
        some = np.array(nodes, np.int64)
        self._values[some] = self._rule.value(self.rooms.rows(some))
        self._log += nodes
        if len(self._log) > 4 * max(WHOLE, len(self._everyone)):
            self._log.clear()
            self._rows.clear()

    def _row(self, shape: Need) -> _Row:
        row = self._rows.get(shape)
        if row is None:
            return self._new_row(shape)
        if row.seen < len(self._log):
            changed = np.array(sorted(set(self._log[row.seen :])))
            row.scores[changed] = self._scored(changed, shape, row.taking)
            row.seen = len(self._log)
        return row

    def _new_row(self, shape: Need) -> _Row:
        if len(self._rows) >= REMEMBERED:
            self._rows.clear()
        taking = self.rooms.site.taking(shape)
        row = self._rows[shape] = _Row(self._scored(self._everyone, shape, taking), taking, len(self._log))
        return row

    def _scored(self, nodes: Ints, shape: Need, taking: Bools) -> Floats:
        ways = options(self.rooms.rows(nodes), shape, taking)
        scores = self._rule.score(self._values[ways.nodes], self._rule.value(ways), ways.nodes, shape)
        return _best(nodes, ways.nodes, scores)


def _best(nodes: Ints, of: Ints, scores: Floats) -> Floats:
    """The best score of each node, of its options; both lists of nodes rise."""
    found = np.full(len(nodes), NOWHERE)
    if len(of):
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        found[np.searchsorted(nodes, of[starts])] = np.maximum.reduceat(scores, starts)
    return found


def alike(scores: Floats) -> Ints:
    """The nodes with the highest score; none where no node can take the pod."""
    highest = scores.max(initial=NOWHERE)
    return np.flatnonzero(scores == highest) if highest > NOWHERE else np.empty(0, np.int64)
