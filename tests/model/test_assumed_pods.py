"""Assumed pods: admitted a moment ago and not observed yet."""

from __future__ import annotations

import math

import msgspec
import pytest

from webhook.model.assumed_pods import AssumedPod, AssumedPods, BoundPod


def pod(uid: str, until: float, count: int = 1) -> AssumedPod:
    """Return a pod that may take units on the first node."""
    return AssumedPod(uid, "nvidia.com/gpu", 0b1, count, until)


def test_pods_are_in_order_of_expiry() -> None:
    assumed = AssumedPods([pod("late", 30.0), pod("soon", 10.0)])
    assert [each.key for each in assumed.all_pods()] == ["soon", "late"]
    assert [each.key for each in assumed.without_expired(10.0).all_pods()] == ["late"]


def test_duplicate_uid_counts_once() -> None:
    assumed = AssumedPods([pod("a", 10.0, 2), pod("a", 20.0, 2), pod("b", 20.0)])
    assert [each.key for each in assumed.all_pods()] == ["a", "b"]
    assert assumed.assumed_units("nvidia.com/gpu", 0b1) == 3


def test_pods_without_uid_each_count() -> None:
    assert AssumedPods([pod("", 10.0), pod("", 10.0)]).assumed_units("nvidia.com/gpu", 0b1) == 2


def assumed_pod(uid: str, name: str, resource: str = "nvidia.com/gpu", nodes: int = 0b1) -> AssumedPod:
    """Return a pod that will have this name."""
    return AssumedPod(uid, resource, nodes, 1, 10.0, ("team", name))


def test_bound_pod_removes_one_entry_of_its_name_and_resource() -> None:
    assumed = AssumedPods(
        [assumed_pod("1", "train-*"), assumed_pod("2", "train-*"), assumed_pod("3", "train-*", "nvidia.com/gpu.shared")]
    )
    bound = BoundPod(("team", "train-*"), "nvidia.com/gpu")
    assert [each.key for each in assumed.without_bound([bound]).all_pods()] == ["2", "3"]
    assert [each.key for each in assumed.without_bound([bound, bound, bound]).all_pods()] == ["3"]
    assert assumed.without_bound([bound]).assumed_units("nvidia.com/gpu", 0b1) == 1
    other = BoundPod(("other", "train-*"), "nvidia.com/gpu")
    assert assumed.without_bound([other]) is assumed
    assert assumed.without_bound([]) is assumed


@pytest.mark.parametrize(
    ("created", "left"),
    [
        ([1.0], ["early", "late"]),
        ([5.0], ["late"]),
        ([10.0], ["late"]),
        ([10.0, 5.0], []),
        ([5.0, 6.0], ["late"]),
        ([math.inf], ["late"]),
    ],
    ids=["before both", "between", "after both", "one each", "two between", "unknown"],
)
def test_bound_pod_removes_no_entry_admitted_after_its_creation(created: list[float], left: list[str]) -> None:
    entries = [(uid, since) for uid, since in (("early", 2.0), ("late", 8.0))]
    assumed = AssumedPods(
        [msgspec.structs.replace(assumed_pod(uid, "web-*"), admitted_at=since) for uid, since in entries]
    )
    bound = [BoundPod(("team", "web-*"), "nvidia.com/gpu", created_at) for created_at in created]
    assert [each.key for each in assumed.without_bound(bound).all_pods()] == left


def test_masks_follow_moved_nodes() -> None:
    assumed = AssumedPods([assumed_pod("1", "a", nodes=0b01), assumed_pod("2", "b", nodes=0b10)])
    moved = assumed.with_masks(lambda mask: {0b01: 0b100, 0b10: 0}[mask])
    assert [each.nodes for each in moved.all_pods()] == [0b100, 0]
    assert moved.assumed_units("nvidia.com/gpu", 0b100) == 1
    empty = AssumedPods()
    assert empty.with_masks(lambda mask: mask) is empty
