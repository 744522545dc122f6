"""Bounded: what is worked out once is kept, and a stranger cannot fill the memory."""

from __future__ import annotations

from webhook.model.bounded_cache import BoundedCache


def test_what_is_kept_is_given_back() -> None:
    assert BoundedCache[str, int](2).store("a", 1) == 1


def test_it_begins_anew_when_it_is_full() -> None:
    memory = BoundedCache[int, int](3)

    for number in range(10):
        memory.store(number, number)
        assert len(memory) <= 3
        assert memory[number] == number
