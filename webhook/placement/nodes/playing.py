"""Pods that come one after the other, and may leave: the same choice that is made live."""

from __future__ import annotations

import numpy as np

from webhook.placement.fragmentation.mixes import FLAT, Learner, Mix, Turnover
from webhook.placement.fragmentation.policies import RULES, Policy
from webhook.placement.needs import Need
from webhook.placement.nodes.board import Board, Place, alike
from webhook.placement.rooms import Rooms, Site


class Player:
    """A cluster under one policy. Randomness comes from the caller; equal inputs play equally.

    Attributes:
        board: What is free, and the scores.
    """

    def __init__(
        self,
        site: Site,
        policy: Policy,
        rng: np.random.Generator,
        mix: Mix | None = None,
        *,
        rooms: Rooms | None = None,
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
        self._learner = Learner() if mix is None else None
        self._turnover = Turnover()
        self.board = Board(rooms or Rooms(site), RULES[policy](site, mix or FLAT))

    def place(self, need: Need) -> Place | None:
        """Choose a place for a pod and take it; None where there is none."""
        best = alike(self.board.scores(need))
        if not len(best):
            return None
        node = int(best[self._rng.integers(len(best)) if self._order is None else self._order[best].argmin()])
        place = Place(node, self.board.gpus(node, need))
        self.board.take(place, need)
        return place

    def leave(self, place: Place, need: Need) -> None:
        """A pod leaves its place."""
        self.board.give(place, need)
        self._turnover.left()
        self.board.turnover = self._turnover.ratio

    def learn(self, need: Need) -> None:
        """Count an arrival, placed or not; it is a part of the mix unless that was given."""
        self._turnover.came()
        self.board.turnover = self._turnover.ratio
        if self._learner is not None and self._learner.arrived(need):
            self.board.use(RULES[self.policy](self.site, self._learner.mix()))
