"""Fairness between client addresses: a flood displaces only its own connections."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class ClientQueues(Generic[Item]):
    """Items by the address of their client, those of one address in the order in which they were last used."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[Item, None]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        return (item for queue in self._queues.values() for item in queue)

    def add(self, address: str, item: Item) -> None:
        """Add an item as the one used last."""
        self._queues.setdefault(address, {})[item] = None
        self._length += 1

    def discard(self, address: str, item: Item) -> bool:
        """Remove an item; return whether it was there."""
        queue = self._queues.get(address, {})
        if item not in queue:
            return False
        del queue[item]
        self._length -= 1
        if not queue:
            del self._queues[address]
        return True

    def largest_queue(self) -> Iterable[Item]:
        """Return the items of the address that has the most, the longest unused first."""
        return max(self._queues.values(), key=len, default={})

    def pop_next(self) -> Item:
        """Remove and return the longest waiting item of the address whose turn it is; every address gets its turn."""
        address = next(iter(self._queues))
        queue = self._queues.pop(address)
        item = next(iter(queue))
        del queue[item]
        self._length -= 1
        if queue:
            self._queues[address] = queue
        return item
