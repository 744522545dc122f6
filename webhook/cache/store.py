"""A store for each kind: one task writes, everybody reads, and nobody sees half a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar

T = TypeVar("T")

ChangeCallback = Callable[[str, T | None, T | None], None]
"""Called with a key, what was there, and what is there now. Not called where both are equal."""


class StoreReader(Generic[T]):
    """What readers have.

    Attributes:
        items: The objects by key, as they are now.
    """

    def __init__(self) -> None:
        self.items: Mapping[str, T] = MappingProxyType({})


class StoreWriter(Generic[T]):
    """What the one task has that writes."""

    def __init__(self, store: StoreReader[T], key: Callable[[T], str], changed: ChangeCallback[T]) -> None:
        """Take a store in charge.

        Args:
            store: Written by nobody else.
            key: The name of an object among its kind.
            changed: Told of each difference.
        """
        self._store, self._key, self._on_change = store, key, changed
        self._items: dict[str, T] = {}
        self._incoming: dict[str, T] | None = None
        self._publish(self._items)

    def begin(self) -> None:
        """A list begins."""
        self._incoming = {}

    def upsert(self, item: T) -> None:
        """An object is there."""
        key = self._key(item)
        if self._incoming is not None:
            self._incoming[key] = item
            return
        before = self._items.get(key)
        self._items[key] = item
        if before != item:
            self._on_change(key, before, item)

    def remove(self, item: T) -> None:
        """An object is gone."""
        key = self._key(item)
        if self._incoming is not None:
            self._incoming.pop(key, None)
            return
        before = self._items.pop(key, None)
        if before is not None:
            self._on_change(key, before, None)

    def swap(self) -> None:
        """The list is whole. Only what it changes is told."""
        before, after = self._items, self._incoming or {}
        self._items, self._incoming = after, None
        self._publish(after)
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old != new:
                self._on_change(key, old, new)

    def _publish(self, items: dict[str, T]) -> None:
        self._store.items = MappingProxyType(items)


class NamespaceIndex(Generic[T]):
    """The same objects by namespace."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, T]] = {}

    def in_namespace(self, namespace: str) -> tuple[T, ...]:
        """The objects of one namespace."""
        return tuple(self._groups.get(namespace, {}).values())

    def all(self) -> dict[str, tuple[T, ...]]:
        """All of them, by namespace."""
        return {namespace: tuple(group.values()) for namespace, group in self._groups.items()}

    def set(self, key: str, namespace: str, item: T | None) -> None:
        """Note one object, or that it is gone."""
        group = self._groups.setdefault(namespace, {})
        if item is not None:
            group[key] = item
            return
        group.pop(key, None)
        if not group:
            del self._groups[namespace]
