"""Assumed pods: admitted a moment ago and not observed yet."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.model.assumed_pods import MAX_ASSUMED_PODS, MAX_KINDS, MAX_NAMESPACES, AssumedPod, AssumedPods, ObservedPod
from webhook.model.filters.pod_ties import PendingPod
from webhook.model.node_masks import ThresholdIndex
from webhook.model.pod_volumes import VolumeUse
from webhook.model.waiting_pods import sum_units

GPU = "nvidia.com/gpu"


def pod(uid: str, until: float, count: int = 1) -> AssumedPod:
    """Return a pod that may take units on the first node."""
    return AssumedPod(uid, GPU, 0b1, count, until)


def units(assumed: AssumedPods, resource: str, nodes: int) -> int:
    """Return the units of pods that may be on some nodes, where any number is free."""
    return sum_units([assumed.units.get(resource, {})], nodes, ThresholdIndex({0: 99, 2: 99})).units


def test_pods_are_in_order_of_expiry() -> None:
    assumed = AssumedPods([pod("late", 30.0), pod("soon", 10.0)])
    assert [each.key for each in assumed.all_pods()] == ["soon", "late"]
    assert [each.key for each in assumed.without_expired(10.0).all_pods()] == ["late"]


def test_duplicate_uid_counts_once() -> None:
    assumed = AssumedPods([pod("a", 10.0, 2), pod("a", 20.0, 2), pod("b", 20.0)])
    assert [each.key for each in assumed.all_pods()] == ["a", "b"]
    assert units(assumed, GPU, 0b1) == 3


def test_pods_without_uid_each_count() -> None:
    assert units(AssumedPods([pod("", 10.0), pod("", 10.0)]), GPU, 0b1) == 2


def assumed_pod(uid: str, name: str, resource: str = GPU, nodes: int = 0b1) -> AssumedPod:
    """Return a pod that will have this name."""
    return AssumedPod(uid, resource, nodes, 1, 10.0, ("team", name))


def test_bound_pod_removes_one_entry_of_its_name_and_resource() -> None:
    assumed = AssumedPods(
        [assumed_pod("1", "train-*"), assumed_pod("2", "train-*"), assumed_pod("3", "train-*", "nvidia.com/gpu.shared")]
    )
    bound = ObservedPod(("team", "train-*"), GPU)
    assert [each.key for each in assumed.without_observed([bound]).all_pods()] == ["2", "3"]
    assert [each.key for each in assumed.without_observed([bound, bound, bound]).all_pods()] == ["3"]
    assert units(assumed.without_observed([bound]), GPU, 0b1) == 1
    other = ObservedPod(("other", "train-*"), GPU)
    assert assumed.without_observed([other]) is assumed
    assert assumed.without_observed([]) is assumed


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
    bound = [ObservedPod(("team", "web-*"), GPU, created_at) for created_at in created]
    assert [each.key for each in assumed.without_observed(bound).all_pods()] == left


def test_masks_follow_moved_nodes() -> None:
    assumed = AssumedPods([assumed_pod("1", "a", nodes=0b01), assumed_pod("2", "b", nodes=0b10)])
    moved = assumed.with_masks(lambda mask: {0b01: 0b100, 0b10: 0}[mask])
    assert [each.nodes for each in moved.all_pods()] == [0b100, 0]
    assert units(moved, GPU, 0b100) == 1
    empty = AssumedPods()
    assert empty.with_masks(lambda mask: mask) is empty


def test_very_different_pods_are_few_kinds_that_count_for_no_less() -> None:
    assumed = AssumedPods()
    for number in range(MAX_KINDS + 500):
        one = AssumedPod(f"u-{number}", GPU, 0b1, 2, 10.0, ("team", "a"), number, number)
        assumed = assumed.with_pod(one)
    assert len(assumed.units[GPU]) < MAX_KINDS + 20
    assert units(assumed, GPU, 0b1) == 2 * (MAX_KINDS + 500)
    assert sum_units([assumed.units[GPU]], 0b1, ThresholdIndex({0: 99})).cpu_milli >= MAX_KINDS + 499
    assert assumed.without_expired(10.0).units == {}


def test_there_are_only_so_many_assumed_pods() -> None:
    assumed = AssumedPods()
    for number in range(MAX_ASSUMED_PODS + 10):
        assert not assumed.is_full or number >= MAX_ASSUMED_PODS
        assumed = assumed.with_pod(pod(f"u-{number}", 10.0))
    assert len(assumed.all_pods()) == MAX_ASSUMED_PODS
    assert not assumed.without_expired(10.0).is_full


def test_units_for_one_evaluation_leave_the_pods_as_they_are() -> None:
    pods = AssumedPods([pod("a", 10.0)])
    counted = pods.with_units_of(msgspec.structs.replace(pod("b", 20.0), times=3))
    assert units(counted, GPU, 0b1) == 4
    assert counted.all_pods() == pods.all_pods() == (pod("a", 10.0),)
    assert units(pods.with_pod(pod("c", 20.0)), GPU, 0b1) == 2


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 3), st.integers(1, 9)))


@given(STEPS, st.integers(0, 9))
def test_units_of_a_namespace_are_those_of_its_pods(steps: list[tuple[str, str, int, int]], now: int) -> None:
    assumed = AssumedPods()
    for number, (namespace, resource, count, times) in enumerate(steps):
        one = AssumedPod(str(number), resource, 1, count, 1.0 + number % 9, (namespace, "p"), times=times)
        claims = (namespace, (VolumeUse(resource),))
        one = msgspec.structs.replace(one, pending=PendingPod(namespace, ()), claims=claims)
        assumed = assumed.with_pod(one)
    left = assumed.without_expired(now)
    for namespace, resource in itertools.product("abc", "xy"):
        of_both = [each for each in left.all_pods() if each.quota_key == (namespace, resource)]
        assert left.count_units(namespace, resource) == sum(each.count * each.times for each in of_both)
    rebuilt = AssumedPods(left.all_pods())
    assert rebuilt.units == {resource: kinds for resource, kinds in left.units.items() if kinds}
    assert (rebuilt.claims, rebuilt.pending_pods) == (left.claims, left.pending_pods)
    assert all(rebuilt.count_units(*key) == left.count_units(*key) for key in itertools.product("abc", "xy"))


def test_units_without_a_namespace_count_for_none() -> None:
    assumed = AssumedPods([AssumedPod("u", GPU, 1, 2, 10.0), AssumedPod("v", GPU, 1, 3, 10.0, ("team", "a"))])
    assert (assumed.count_units("team", GPU), assumed.count_units("other", GPU)) == (3, 0)
    assert assumed.with_pod(AssumedPod("w", GPU, 1, 2, 20.0)).count_units("team", GPU) == 3


def test_units_of_too_many_namespaces_count_for_every_one() -> None:
    assumed = AssumedPods()
    for number in range(MAX_NAMESPACES + 10):
        assumed = assumed.with_pod(AssumedPod(f"u-{number}", GPU, 1, 2, float(number), (f"team-{number}", "a")))
    assert assumed.count_units("team-0", GPU) == 2 + 2 * 10
    assert assumed.count_units("another", GPU) == 2 * 10
    assert assumed.without_expired(MAX_NAMESPACES + 4.0).count_units("another", GPU) == 2 * 5
    assert assumed.without_expired(MAX_NAMESPACES + 10.0).count_units("another", GPU) == 0
