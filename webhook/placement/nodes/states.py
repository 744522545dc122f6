"""Nodes that are in the same state are judged once, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np

from webhook.placement.rooms import FloatArray, IntArray

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
