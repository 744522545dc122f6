"""Ledger: pods that were admitted a moment ago, as a view is built with them."""

from __future__ import annotations

import math

import msgspec
import pytest

from webhook.model.ledger import Assumed, Landing, Ledger


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


def called(uid: str, name: str, resource: str = "nvidia.com/gpu", nodes: int = 0b1) -> Assumed:
    """A pod that will be called so."""
    return Assumed(uid, resource, nodes, 1, 10.0, ("team", name))


def test_a_pod_seen_takes_one_entry_of_its_name_and_resource() -> None:
    ledger = Ledger([called("1", "train-*"), called("2", "train-*"), called("3", "train-*", "nvidia.com/gpu.shared")])
    seen = Landing(("team", "train-*"), "nvidia.com/gpu")
    assert [each.uid for each in ledger.without([seen]).entries()] == ["2", "3"]
    assert [each.uid for each in ledger.without([seen, seen, seen]).entries()] == ["3"]
    assert ledger.without([seen]).held("nvidia.com/gpu", 0b1) == 1
    other = Landing(("other", "train-*"), "nvidia.com/gpu")
    assert ledger.without([other]) is ledger
    assert ledger.without([]) is ledger


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ([1.0], ["early", "late"]),
        ([5.0], ["late"]),
        ([10.0], ["late"]),
        ([10.0, 5.0], []),
        ([5.0, 6.0], ["late"]),
        ([math.inf], ["late"]),
    ],
    ids=["before both", "between", "after both", "one each", "two between", "nobody knows"],
)
def test_a_pod_takes_no_entry_of_one_that_was_admitted_after_it_was_made(made: list[float], left: list[str]) -> None:
    entries = [(uid, since) for uid, since in (("early", 2.0), ("late", 8.0))]
    ledger = Ledger([msgspec.structs.replace(called(uid, "web-*"), since=since) for uid, since in entries])
    seen = [Landing(("team", "web-*"), "nvidia.com/gpu", moment) for moment in made]
    assert [each.uid for each in ledger.without(seen).entries()] == left


def test_masks_follow_nodes_that_stand_elsewhere_now() -> None:
    ledger = Ledger([called("1", "a", nodes=0b01), called("2", "b", nodes=0b10)])
    turned = ledger.on(lambda mask: {0b01: 0b100, 0b10: 0}[mask])
    assert [each.nodes for each in turned.entries()] == [0b100, 0]
    assert turned.held("nvidia.com/gpu", 0b100) == 1
    empty = Ledger()
    assert empty.on(lambda mask: mask) is empty
