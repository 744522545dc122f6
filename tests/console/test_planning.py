"""The page Layout: planned in a thread on the first request, one plan at a time, and kept until a newer reading."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest

from tests.console.conftest import NOW, Client, demo_flags, page_words
from webhook.cli.commands.layout import install_solver
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.listener import serve_console
from webhook.console.planning import LayoutPlanner
from webhook.console.reading import ClusterReading, NewestReading
from webhook.errors import RightsliceError
from webhook.report.layout import ClusterLayout
from webhook.report.layout_html import layout_page

BEING_PLANNED = "Layout The layouts are being planned"


@asynccontextmanager
async def console(reading: NewestReading) -> AsyncIterator[Client]:
    async with serve_console(reading, "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        yield Client(address, session)


async def planned_words(client: Client) -> str:
    """Return what the page says when the plan has ended."""
    while (words := (await client.get("/layout")).words).startswith(BEING_PLANNED):
        await asyncio.sleep(0.01)
    return words


class BlockedPlan:
    """Plans when it is told to, and counts its calls."""

    def __init__(self, layout: ClusterLayout) -> None:
        self.layout, self.calls, self.may_end = layout, 0, threading.Event()

    def __call__(self) -> ClusterLayout:
        self.calls += 1
        assert self.may_end.wait(timeout=60)
        return self.layout


async def test_other_pages_answer_while_the_layouts_are_planned_once(demo: ClusterReading) -> None:
    plan = BlockedPlan(demo.plan())
    async with console(NewestReading(demo._replace(plan=plan))) as client:
        first = await client.get("/layout")
        again = await client.get("/layout", If_None_Match=first.headers["ETag"])
        other = await client.get("/workloads")
        reloaded = await client.get("/layout")
        plan.may_end.set()
        words = await planned_words(client)

    assert [first.status, again.status, other.status] == [200, 304, 200]
    assert first.words.startswith(BEING_PLANNED)
    assert reloaded.words == first.words
    assert "Cards used 31 of 56" in words
    assert plan.calls == 1


async def test_nothing_is_planned_before_the_page_is_asked_for(demo: ClusterReading) -> None:
    plan = BlockedPlan(demo.plan())
    async with console(NewestReading(demo._replace(plan=plan))) as client:
        await client.get("/")
        await client.get("/nodes")

    assert plan.calls == 0


async def test_the_tag_of_the_page_changes_with_the_plan(demo: ClusterReading) -> None:
    """An open page asks with the tag that it has."""
    async with console(NewestReading(demo)) as client:
        tag = (await client.get("/layout")).headers["ETag"]
        while (answer := await client.get("/layout", If_None_Match=tag)).status == 304:
            await asyncio.sleep(0.01)

    assert "Cards used 31 of 56" in answer.words


async def test_the_plan_has_the_values_of_the_report(client: Client, demo: ClusterReading) -> None:
    """Every word of the report's plan is on the page, in the same order."""
    report = page_words(layout_page(demo.plan(), NOW, ""))

    assert report in (await client.get("/layout")).words


async def test_without_the_solver_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = ConsoleReader(demo_flags(usage=None)).read()
    monkeypatch.setitem(sys.modules, "highspy", None)
    async with console(NewestReading(reading)) as client:
        words = await planned_words(client)

    assert words == (
        "Layout The layouts are not planned: needs HiGHS, which is not installed. "
        f"Write {install_solver()}, then start rightslice ui again"
    )


def fail_with(error: Exception) -> Callable[[], ClusterLayout]:
    def plan() -> ClusterLayout:
        raise error

    return plan


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RightsliceError("the cluster does not answer"), "not planned: the cluster does not answer"),
        (ValueError("<b>"), "internal error: ValueError('<b>')"),
    ],
)
async def test_a_plan_that_fails_is_explained(demo: ClusterReading, error: Exception, text: str) -> None:
    async with console(NewestReading(demo._replace(plan=fail_with(error)))) as client:
        assert text in await planned_words(client)


async def wait_for_plan(planner: LayoutPlanner) -> None:
    while planner.is_planning:
        await asyncio.sleep(0.001)


async def test_a_newer_reading_is_planned_after_a_pause_and_the_older_plan_is_shown_until_then(
    demo: ClusterReading,
) -> None:
    """Planning takes at most a fifth of the time, however often the cluster is read."""
    now = 100.0
    layout = demo.plan()

    def take_ten_seconds() -> ClusterLayout:
        nonlocal now
        now += 10
        return layout

    first, second = (demo._replace(plan=partial(take_ten_seconds)) for _ in range(2))
    planner = LayoutPlanner(lambda: now)
    versions = []
    for reading, moment in ((first, 100.0), (first, 200.0), (second, 201.0), (first, 220.0), (first, 251.0)):
        now = moment
        planner.request(reading)
        await wait_for_plan(planner)
        versions.append(planner.version)
        assert planner.outcome is not None
        assert planner.outcome.layout is layout

    assert versions == [1, 1, 2, 2, 3]


async def test_the_overview_leads_to_the_page(client: Client) -> None:
    text = (await client.get("/")).text

    assert re.findall(r'<a href="([^"]*)">The planned layouts<', text) == ["/layout"]
