"""A cache of bounded size: requests of untrusted users must not fill the memory."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A map that is cleared when it is full."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def store(self, key: Key, value: Value) -> Value:
        """Store a value and return it."""
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value
