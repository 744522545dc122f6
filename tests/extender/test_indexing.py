"""The node index during changes: learning at the start, and updates meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from tests.builders import Json, make_pod
from tests.extender.harness import apply_watch_events, scheduler_state
from tests.placement.clusters import BRIDGED, gpu_node, gpu_node_report, placement_input, running_gpu_pod
from webhook.cache.inventory import NodeInventory
from webhook.extender.state import ARRIVALS_PER_STEP, SchedulerState
from webhook.model.fleet import fleet_node
from webhook.placement.capacity import PodDemand


def cpu_pod(name: str, cpu: str = "2") -> Json:
    """Return a running pod without GPUs."""
    return make_pod(name).requests("cpu", cpu).spec(nodeName="n").build()


def unindexed_state(*objects: Json) -> SchedulerState:
    """Return a state after the first complete lists, before the first index."""
    inventory = NodeInventory()
    for writer in (inventory.nodes, inventory.pods, inventory.gpunodes):
        writer.begin()
    state = SchedulerState(inventory)
    apply_watch_events(state, *objects)
    for writer in (inventory.nodes, inventory.pods, inventory.gpunodes):
        writer.swap()
    return state


def learned_counts(state: SchedulerState) -> dict[PodDemand, int]:
    return {need: round(count) for need, count in state.learning.estimated_mix().counts.items()}


@asynccontextmanager
async def running_on(state: SchedulerState) -> AsyncIterator[None]:
    task = asyncio.create_task(state.run(monotonic))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_running_pods_count_once_as_in_a_snapshot() -> None:
    objects = [gpu_node("n"), running_gpu_pod("g", "n", count=2), *(cpu_pod(f"c{i}") for i in range(3))]
    state = unindexed_state(*objects)

    async with running_on(state):
        while state.ranking is None:
            await asyncio.sleep(0)
        apply_watch_events(state, later := cpu_pod("later", "3"))
        while PodDemand(3000) not in learned_counts(state):
            await asyncio.sleep(0.001)

    assert learned_counts(state) == placement_input(*objects, later).mix.counts


async def test_failed_index_is_rebuilt_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [gpu_node("n"), running_gpu_pod("g", "n"), cpu_pod("c")]
    state = unindexed_state(*objects)
    with monkeypatch.context() as broken:
        broken.setattr("webhook.extender.state.NodeRanking", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await state.rebuild_index()

    assert state.inventory.index_outdated
    await state.rebuild_index()

    assert learned_counts(state) == placement_input(*objects).mix.counts


async def test_requests_are_answered_while_arrivals_are_counted() -> None:
    state = await asyncio.to_thread(scheduler_state, gpu_node("n"), running_gpu_pod("g", "n"))
    many = 4 * ARRIVALS_PER_STEP
    apply_watch_events(state, *(cpu_pod(f"c{i}") for i in range(many)))
    seen: list[int] = []

    async with running_on(state):
        while not seen or seen[-1] < many:
            await asyncio.sleep(0)
            seen.append(learned_counts(state).get(PodDemand(2000), 0))

    assert any(0 < count < many for count in seen)


async def test_pod_that_arrives_during_the_first_index_counts_once() -> None:
    """The thread reads a copy that the loop made before, not what the loop writes later."""
    objects = [gpu_node("n"), running_gpu_pod("g", "n"), cpu_pod("before")]
    state = unindexed_state(*objects)

    async with run_in_background(state.rebuild_index()):
        apply_watch_events(state, meanwhile := cpu_pod("meanwhile"))
    assert learned_counts(state) == placement_input(*objects).mix.counts

    async with running_on(state):
        while state.inventory.arrivals:
            await asyncio.sleep(0.001)
    assert learned_counts(state) == placement_input(*objects, meanwhile).mix.counts


@asynccontextmanager
async def run_in_background(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run work; its thread starts only after the body of the `async with`."""
    held, one = threading.Event(), ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(one)
    one.submit(held.wait, 20)
    try:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)
        yield
    finally:
        held.set()
    await task


class Leaving(dict[str, object]):
    """Reports that are deleted right after the lookup."""

    def __contains__(self, key: object) -> bool:
        there = super().__contains__(key)
        self.clear()
        return there


def test_report_deleted_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    state = unindexed_state(gpu_node("n"), gpu_node_report("n", 4, BRIDGED))
    (node,) = state.inventory.all_nodes()
    monkeypatch.setattr(state.inventory, "_reports", Leaving(state.inventory._reports))

    _, devices = state.inventory.free_on_node(fleet_node(node))

    assert devices is not None
