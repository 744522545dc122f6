"""BoundedCache: values are stored, up to a bound."""

from __future__ import annotations

from webhook.model.bounded_cache import BoundedCache


def test_store_returns_the_value() -> None:
    assert BoundedCache[str, int](2).store("a", 1) == 1


def test_it_is_cleared_when_it_is_full() -> None:
    memory = BoundedCache[int, int](3)

    for number in range(10):
        memory.store(number, number)
        assert len(memory) <= 3
        assert memory[number] == number
