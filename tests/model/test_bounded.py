"""Bounded: what is worked out once is kept, and a stranger cannot fill the memory."""

from __future__ import annotations

from webhook.model.bounded import Bounded


def test_what_is_kept_is_given_back() -> None:
    assert Bounded[str, int](2).keep("a", 1) == 1


def test_it_begins_anew_when_it_is_full() -> None:
    memory = Bounded[int, int](3)

    for number in range(10):
        memory.keep(number, number)
        assert len(memory) <= 3
        assert memory[number] == number
