"""Assumed pods: admitted a moment ago and not seen yet."""

from __future__ import annotations

import math

import msgspec
import pytest

from webhook.model.assumed_pods import AssumedPod, AssumedPods, BoundPod


def pod(uid: str, until: float, count: int = 1) -> AssumedPod:
    """A pod that may take units on the first node."""
    return AssumedPod(uid, "nvidia.com/gpu", 0b1, count, until)


def test_pods_are_in_order_of_expiry() -> None:
    ledger = AssumedPods([pod("late", 30.0), pod("soon", 10.0)])
    assert [each.uid for each in ledger.all_pods()] == ["soon", "late"]
    assert [each.uid for each in ledger.without_expired(10.0).all_pods()] == ["late"]


def test_duplicate_uid_counts_once() -> None:
    ledger = AssumedPods([pod("a", 10.0, 2), pod("a", 20.0, 2), pod("b", 20.0)])
    assert [each.uid for each in ledger.all_pods()] == ["a", "b"]
    assert ledger.assumed_units("nvidia.com/gpu", 0b1) == 3


def test_pods_without_uid_each_count() -> None:
    assert AssumedPods([pod("", 10.0), pod("", 10.0)]).assumed_units("nvidia.com/gpu", 0b1) == 2


def assumed_pod(uid: str, name: str, resource: str = "nvidia.com/gpu", nodes: int = 0b1) -> AssumedPod:
    """A pod that will be called so."""
    return AssumedPod(uid, resource, nodes, 1, 10.0, ("team", name))


def test_bound_pod_removes_one_entry_of_its_name_and_resource() -> None:
    ledger = AssumedPods(
        [assumed_pod("1", "train-*"), assumed_pod("2", "train-*"), assumed_pod("3", "train-*", "nvidia.com/gpu.shared")]
    )
    seen = BoundPod(("team", "train-*"), "nvidia.com/gpu")
    assert [each.uid for each in ledger.without_bound([seen]).all_pods()] == ["2", "3"]
    assert [each.uid for each in ledger.without_bound([seen, seen, seen]).all_pods()] == ["3"]
    assert ledger.without_bound([seen]).assumed_units("nvidia.com/gpu", 0b1) == 1
    other = BoundPod(("other", "train-*"), "nvidia.com/gpu")
    assert ledger.without_bound([other]) is ledger
    assert ledger.without_bound([]) is ledger


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
def test_bound_pod_removes_no_entry_admitted_after_its_creation(made: list[float], left: list[str]) -> None:
    entries = [(uid, since) for uid, since in (("early", 2.0), ("late", 8.0))]
    ledger = AssumedPods(
        [msgspec.structs.replace(assumed_pod(uid, "web-*"), admitted_at=since) for uid, since in entries]
    )
    seen = [BoundPod(("team", "web-*"), "nvidia.com/gpu", moment) for moment in made]
    assert [each.uid for each in ledger.without_bound(seen).all_pods()] == left


def test_masks_follow_moved_nodes() -> None:
    ledger = AssumedPods([assumed_pod("1", "a", nodes=0b01), assumed_pod("2", "b", nodes=0b10)])
    turned = ledger.with_masks(lambda mask: {0b01: 0b100, 0b10: 0}[mask])
    assert [each.nodes for each in turned.all_pods()] == [0b100, 0]
    assert turned.assumed_units("nvidia.com/gpu", 0b100) == 1
    empty = AssumedPods()
    assert empty.with_masks(lambda mask: mask) is empty
