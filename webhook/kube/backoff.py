"""Exponential backoff with jitter, so that many clients of a failing server do not retry at the same moment."""

from __future__ import annotations

from typing import Protocol

INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0


class RandomSource(Protocol):
    """The method of `random.Random` that is used."""

    def uniform(self, a: float, b: float) -> float:
        """Return a number between two bounds."""


class ExponentialBackoff:
    """Doubles the delay with each successive failure; the delay is random between half of it and all of it."""

    def __init__(
        self, random: RandomSource, initial: float = INITIAL_BACKOFF_SECONDS, maximum: float = MAX_BACKOFF_SECONDS
    ) -> None:
        self._random = random
        self._initial, self._maximum = initial, maximum
        self._ceiling = initial

    def reset(self) -> None:
        """Start again with the initial delay, after a success."""
        self._ceiling = self._initial

    def next_delay(self, retry_after: float = 0.0) -> float:
        """Return the seconds to wait after a failure; `retry_after` is the minimum that the server asked for."""
        ceiling, self._ceiling = self._ceiling, min(self._maximum, self._ceiling * 2)
        return retry_after + self._random.uniform(ceiling / 2, ceiling)
