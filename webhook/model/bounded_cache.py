"""Caches of answers about objects in requests, bounded together in bytes.

A cached key may contain any text of a request, so a number of entries bounds no memory. But all that these caches hold
came with the requests since they were last cleared: `CacheBudget` counts the bytes of requests, and clears every cache
when they exceed `MAX_REQUEST_BYTES`. Ordinary pods need the few entries that a cleared cache lacks a moment later.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import _lru_cache_wrapper, lru_cache
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Bytes of requests between two times that all caches are cleared. Decoded, a byte takes up to 20 bytes of memory."""

Key = TypeVar("Key")
Value = TypeVar("Value")

_functions: list[_lru_cache_wrapper[object]] = []
_instances: WeakValueDictionary[int, BoundedCache[object, object]] = WeakValueDictionary()


def request_cache(
    max_entries: int, *, typed: bool = False
) -> Callable[[Callable[..., Value]], _lru_cache_wrapper[Value]]:
    """Cache the results of a function of text or other parts of requests, like `lru_cache`."""

    def decorate(function: Callable[..., Value]) -> _lru_cache_wrapper[Value]:
        cached = lru_cache(maxsize=max_entries, typed=typed)(function)
        _functions.append(cached)
        return cached

    return decorate


class BoundedCache(dict[Key, Value], Generic[Key, Value]):
    """A dict that is cleared when it is full, so that untrusted input cannot fill memory.

    if (value := cache.get(key)) is None:
        value = cache.store(key, compute(key))
    """

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries
        _instances[id(self)] = self  # type: ignore[assignment]  # its types do not matter here

    def store(self, key: Key, value: Value) -> Value:
        """Store a value and return it."""
        if len(self) >= self._max_entries:
            self.clear()
        self[key] = value
        return value


class DependentCache(Generic[Key, Value]):
    """Values that also follow from another object, such as the device classes: once it is replaced, none is known."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._known: tuple[object, BoundedCache[Key, Value]] = (None, BoundedCache(max_entries))

    def values_for(self, other: object) -> BoundedCache[Key, Value]:
        """Return the values that follow from this object."""
        basis, values = self._known
        if basis is not other:
            _, values = self._known = other, BoundedCache[Key, Value](self._max_entries)
        return values


class CacheBudget:
    """Counts the bytes of requests, and clears all caches above when they exceed the maximum."""

    def __init__(self, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0

    def spend(self, size: int) -> None:
        """Count a request of this many bytes that was evaluated."""
        self._bytes += size
        if self._bytes > self._max_bytes:
            self._bytes = 0
            clear_request_caches()


def clear_request_caches() -> None:
    """Clear every cache of parts of requests in this process."""
    for function in _functions:
        function.cache_clear()
    for cache in list(_instances.values()):
        cache.clear()
