"""What was worked out lately, kept for the next who asks. Bounded: a stranger must not fill the memory."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A map that begins anew when it is full."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._max_entries = most

    def store(self, key: Key, value: Value) -> Value:
        """Remember a value, and give it back."""
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value
