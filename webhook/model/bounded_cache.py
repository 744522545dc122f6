"""The cache for answers that belong to one object; functions of plain values use functools.lru_cache instead."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A dict that is cleared when it is full, so that untrusted input cannot fill memory.

    if (value := cache.get(key)) is None:
        value = cache.store(key, compute(key))
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def store(self, key: Key, value: Value) -> Value:
        """Store a value and return it."""
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value
