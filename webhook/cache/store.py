"""Store for one kind of object: one task writes, others read, and a list becomes visible only when complete."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Generic, TypeVar

T = TypeVar("T")

ChangeCallback = Callable[[str, T | None, T | None], None]
"""Called with a key and the object before and after, if they differ."""


class ObjectStore(Generic[T]):
    """The store of one reflector, which alone writes to it.

    Attributes:
        items: The current objects by key, for readers.
    """

    def __init__(self, key: Callable[[T], str], on_change: ChangeCallback[T]) -> None:
        """Start empty; `key` returns the unique name of an object."""
        self._key, self._on_change = key, on_change
        self._incoming: dict[str, T] | None = None
        self._set_items({})

    def begin(self) -> None:
        """Start a list."""
        self._incoming = {}

    def upsert(self, item: T) -> None:
        """Store an object."""
        key = self._key(item)
        if self._incoming is not None:
            self._incoming[key] = item
            return
        before = self._items.get(key)
        self._items[key] = item
        if before != item:
            self._on_change(key, before, item)

    def remove(self, item: T) -> None:
        """Remove an object."""
        key = self._key(item)
        if self._incoming is not None:
            self._incoming.pop(key, None)
            return
        before = self._items.pop(key, None)
        if before is not None:
            self._on_change(key, before, None)

    def swap(self) -> None:
        """Replace everything by the list, and report the differences."""
        before, after = self._items, self._incoming or {}
        self._incoming = None
        self._set_items(after)
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new:
                self._on_change(key, old, new)

    def _set_items(self, items: dict[str, T]) -> None:
        self._items, self.items = items, MappingProxyType(items)


class NamespaceIndex(Generic[T]):
    """Objects by namespace."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, T]] = {}

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """Return the objects of one namespace."""
        return tuple(self._groups.get(namespace, {}).values())

    def all(self) -> dict[str, tuple[T, ...]]:
        """Return all objects by namespace."""
        return {namespace: tuple(group.values()) for namespace, group in self._groups.items()}

    def set(self, key: str, namespace: str, item: T | None) -> None:
        """Store one object, or remove it."""
        group = self._groups.setdefault(namespace, {})
        if item is not None:
            group[key] = item
            return
        group.pop(key, None)
        if not group:
            del self._groups[namespace]
