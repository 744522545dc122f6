"""ThresholdIndex: built once, or changed step by step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from webhook.model.node_masks import ThresholdIndex

AMOUNTS = st.dictionaries(st.integers(0, 6), st.integers(0, 9), min_size=1)


@given(AMOUNTS, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=12))
def test_changed_index_equals_a_new_one(start: dict[int, int], changes: list[tuple[int, int]]) -> None:
    now, moves = dict(start), []
    for node, amount in changes:
        if node in now:
            moves.append((node, now[node], amount))
            now[node] = amount
    before = ThresholdIndex(start)
    original = (list(before.amounts), list(before.masks))
    moved, rebuilt = before.with_changes(moves), ThresholdIndex(now)
    assert (moved.amounts, moved.masks) == (rebuilt.amounts, rebuilt.masks)
    assert (before.amounts, before.masks) == original, "the original index does not change"


@given(AMOUNTS, st.integers(1, 4), st.integers(0, 127))
def test_amounts_fit_as_often_as_into_each_node_by_itself(by_node: dict[int, int], amount: int, nodes: int) -> None:
    fits = sum(units // amount for node, units in by_node.items() if nodes >> node & 1)

    assert ThresholdIndex(by_node).count_times(amount, nodes) == fits


@given(st.dictionaries(st.integers(0, 6), st.integers(-3, 9)))
def test_the_amount_of_a_node_is_what_was_given_unless_negative(by_node: dict[int, int]) -> None:
    index = ThresholdIndex(by_node)

    assert [index.amount_of(node) for node in range(8)] == [max(0, by_node.get(node, 0)) for node in range(8)]
