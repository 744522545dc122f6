"""Gauges of GPU capacity and fragmentation, by product."""

from __future__ import annotations

import asyncio

import pytest

from tests.builders import make_pod
from tests.extender.harness import apply_watch_events, scheduler_state
from tests.placement.clusters import gpu_node
from webhook.cache.inventory import NodeInventory
from webhook.extender.capacity_gauges import CAPACITY_SECONDS, NO_GAUGES, CapacityPoll, build_capacity_gauges
from webhook.extender.state import SchedulerState
from webhook.report.capacity import NodeCapacity

CARD = "NVIDIA-A100-SXM4-80GB"


def test_capacity_is_summed_by_product() -> None:
    nodes = [
        NodeCapacity("a", "H100", 8, 6000, 2000, 2, (), 500),
        NodeCapacity("b", "H100", 8, 1000, 0, 0, (), 0, unschedulable_milli=7000, schedulable=False),
        NodeCapacity("c", "", 2, 0, 2000, None, (), 0),
    ]

    gauges = build_capacity_gauges(nodes)

    assert gauges.by_state == {
        ("H100", "allocated"): 7000,
        ("H100", "free"): 2000,
        ("H100", "unschedulable"): 7000,
        ("unknown", "allocated"): 0,
        ("unknown", "free"): 2000,
        ("unknown", "unschedulable"): 0,
    }
    assert gauges.fragmented == {"H100": 500, "unknown": 0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_gauges_are_computed_again_when_they_are_due() -> None:
    state, clock = scheduler_state(gpu_node("n", 4, CARD)), Clock()
    poll = CapacityPoll(state, clock)

    found = []
    asyncio.run(poll.refresh_if_due())
    found.append(poll.latest.by_state["A100-SXM4-80GB", "allocated"])
    apply_watch_events(state, make_pod("p").gpus(3).spec(nodeName="n").build())
    state.refresh(0.0)
    for clock.now in (CAPACITY_SECONDS - 1, CAPACITY_SECONDS):
        asyncio.run(poll.refresh_if_due())
        found.append(poll.latest.by_state["A100-SXM4-80GB", "allocated"])

    assert found == [0, 0, 3000]


class SlowClock:
    """A clock on which some seconds pass with each look at it."""

    def __init__(self, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds

    def __call__(self) -> float:
        self.now += self._seconds
        return self.now


@pytest.mark.parametrize(("seconds", "pause"), [(1.0, CAPACITY_SECONDS), (20.0, 80.0)])
def test_a_long_computation_is_followed_by_a_longer_pause(seconds: float, pause: float) -> None:
    state, clock = scheduler_state(gpu_node("n", 4, CARD)), SlowClock(seconds)
    poll = CapacityPoll(state, clock)

    starts: list[float] = []
    while len(starts) < 2:
        before = poll.latest
        asyncio.run(poll.refresh_if_due())
        if poll.latest is not before:
            starts.append(clock.now)

    assert pause <= starts[1] - starts[0] <= pause + 2 * seconds


def test_without_known_nodes_there_are_none() -> None:
    poll = CapacityPoll(SchedulerState(NodeInventory()), Clock())
    asyncio.run(poll.refresh_if_due())
    assert poll.latest == NO_GAUGES
