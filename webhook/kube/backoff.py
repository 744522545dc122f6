"""How long to wait before the next try, so that many clients of a server in trouble do not come back together."""

from __future__ import annotations

from typing import Protocol

INITIAL_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 10.0


class RandomSource(Protocol):
    """What is used of `random.Random`."""

    def uniform(self, a: float, b: float) -> float:
        """A number between two."""


class ExponentialBackoff:
    """Doubles with each failure in a row, and takes any time between half of that and the whole."""

    def __init__(
        self, random: RandomSource, first: float = INITIAL_BACKOFF_SECONDS, most: float = MAX_BACKOFF_SECONDS
    ) -> None:
        self._random = random
        self._first, self._most = first, most
        self._ceiling = first

    def reset(self) -> None:
        """Begin anew."""
        self._ceiling = self._first

    def next_delay(self, asked: float = 0.0) -> float:
        """Seconds to wait.

        Args:
            asked: The least, as the server asked for (Retry-After).
        """
        ceiling, self._ceiling = self._ceiling, min(self._most, self._ceiling * 2)
        return asked + self._random.uniform(ceiling / 2, ceiling)
