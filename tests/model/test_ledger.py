"""Ledger: pods that were admitted a moment ago, as a view is built with them."""

from __future__ import annotations

from webhook.model.ledger import Assumed, Ledger


def pod(uid: str, until: float, count: int = 1) -> Assumed:
    """A pod that may take units on the first node."""
    return Assumed(uid, "nvidia.com/gpu", 0b1, count, until)


def test_pods_stand_in_the_order_in_which_they_are_forgotten() -> None:
    ledger = Ledger([pod("late", 30.0), pod("soon", 10.0)])
    assert [each.uid for each in ledger.entries()] == ["soon", "late"]
    assert [each.uid for each in ledger.after(10.0).entries()] == ["late"]


def test_a_pod_named_twice_holds_its_units_once() -> None:
    ledger = Ledger([pod("a", 10.0, 2), pod("a", 20.0, 2), pod("b", 20.0)])
    assert [each.uid for each in ledger.entries()] == ["a", "b"]
    assert ledger.held("nvidia.com/gpu", 0b1) == 3


def test_pods_without_a_uid_each_hold_theirs() -> None:
    assert Ledger([pod("", 10.0), pod("", 10.0)]).held("nvidia.com/gpu", 0b1) == 2
