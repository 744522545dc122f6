"""The index of the nodes while the cluster goes on: what is learnt as it begins, and what is written meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from tests.extender.standing import stand, write
from tests.make import Json, make_pod
from tests.placement.kube import BRIDGED, gpu_node, placing, report, running
from webhook.cache.inventory import NodeInventory
from webhook.extender.state import SchedulerState
from webhook.extender.workload_learner import ARRIVALS_PER_STEP
from webhook.model.fleet import fleet_node
from webhook.placement.capacity import PodDemand


def plain(name: str, cpu: str = "2") -> Json:
    """A pod without GPUs."""
    return make_pod(name).asks("cpu", cpu).spec(nodeName="n").build()


def beginning(*objects: Json) -> SchedulerState:
    """One whose first lists are whole, and that has no index yet."""
    inventory = NodeInventory()
    for writer in (inventory.nodes, inventory.pods, inventory.gpunodes):
        writer.begin()
    standing = SchedulerState(inventory)
    write(standing, *objects)
    for writer in (inventory.nodes, inventory.pods, inventory.gpunodes):
        writer.swap()
    return standing


def learnt(standing: SchedulerState) -> dict[PodDemand, int]:
    return {need: round(count) for need, count in standing.learning.estimated_mix().counts.items()}


@asynccontextmanager
async def running_on(standing: SchedulerState) -> AsyncIterator[None]:
    task = asyncio.create_task(standing.run(monotonic))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_pods_that_are_there_when_it_begins_count_once_as_in_a_snapshot() -> None:
    objects = [gpu_node("n"), running("g", "n", count=2), *(plain(f"c{i}") for i in range(3))]
    standing = beginning(*objects)

    async with running_on(standing):
        while standing.ranking is None:
            await asyncio.sleep(0)
        write(standing, later := plain("later", "3"))
        while PodDemand(3000) not in learnt(standing):
            await asyncio.sleep(0.001)

    assert learnt(standing) == placing(*objects, later).mix.counts


async def test_an_index_that_could_not_be_made_is_made_again_and_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [gpu_node("n"), running("g", "n"), plain("c")]
    standing = beginning(*objects)
    with monkeypatch.context() as broken:
        broken.setattr("webhook.extender.state.NodeRanking", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await standing.rebuild_index()

    assert standing.inventory.index_outdated
    await standing.rebuild_index()

    assert learnt(standing) == placing(*objects).mix.counts


async def test_requests_have_their_turn_while_arrivals_are_counted() -> None:
    standing = await asyncio.to_thread(stand, gpu_node("n"), running("g", "n"))
    many = 4 * ARRIVALS_PER_STEP
    write(standing, *(plain(f"c{i}") for i in range(many)))
    seen: list[int] = []

    async with running_on(standing):
        while not seen or seen[-1] < many:
            await asyncio.sleep(0)
            seen.append(learnt(standing).get(PodDemand(2000), 0))

    assert any(0 < count < many for count in seen)


async def test_who_comes_while_the_first_index_is_made_counts_once() -> None:
    """The thread reads what the loop took before, and nothing that the loop goes on writing."""
    objects = [gpu_node("n"), running("g", "n"), plain("before")]
    standing = beginning(*objects)

    async with beside(standing.rebuild_index()):
        write(standing, meanwhile := plain("meanwhile"))
    assert learnt(standing) == placing(*objects).mix.counts

    async with running_on(standing):
        while standing.inventory.arrivals:
            await asyncio.sleep(0.001)
    assert learnt(standing) == placing(*objects, meanwhile).mix.counts


@asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """What is done within comes before anything that the work does in a thread."""
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
    """A node whose report goes as soon as somebody saw that it was there."""

    def __contains__(self, key: object) -> bool:
        there = super().__contains__(key)
        self.clear()
        return there


def test_a_report_that_goes_while_it_is_read_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = beginning(gpu_node("n"), report("n", 4, BRIDGED))
    (node,) = standing.inventory.all_nodes()
    monkeypatch.setattr(standing.inventory, "_reports", Leaving(standing.inventory._reports))

    _, devices = standing.inventory.free_on_node(fleet_node(node))

    assert devices is not None
