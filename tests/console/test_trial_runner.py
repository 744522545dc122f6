"""Trials in the background: the form leads to a page that says how far the trial is, while other pages answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NamedTuple

import aiohttp
import pytest

from tests.browser.driver import BrowserProcess
from tests.browser.layout_checks import find_layout_errors_by_width
from tests.console.conftest import Client
from tests.console.test_in_browser import ANNOUNCED, served_console
from tests.console.test_trial import DENY_ALL, NOTEBOOK, ended_page, send_form
from webhook.console.listener import serve_console
from webhook.console.pod_samples import PodSample, PodSamples
from webhook.console.reading import ClusterReading, NewestReading
from webhook.console.trial_runner import KEPT_TRIALS, BackgroundTrial, TrialRunner
from webhook.errors import TrialError
from webhook.report.console.trials import TrialOutcome, TrialPhase

RUNNING = "The trial is running"


class GatedSamples(PodSamples):
    """Pods that can be evaluated when the test lets them."""

    def __init__(self, samples: PodSamples) -> None:
        super().__init__()
        self._gated, self._gate, self.yielded = list(samples), threading.Semaphore(0), 0

    def __len__(self) -> int:
        return len(self._gated)

    def __iter__(self) -> Iterator[PodSample]:
        for each in self._gated:
            assert self._gate.acquire(timeout=600)
            self.yielded += 1
            yield each

    def let(self, pods: int) -> None:
        """Let some more pods be evaluated."""
        self._gate.release(pods)


class GatedConsole(NamedTuple):
    """A console whose trials wait for the test."""

    client: Client
    samples: GatedSamples

    async def wait_for(self, words: str, location: str) -> str:
        """Return the words of the page when it has some."""
        async with asyncio.timeout(60):
            while words not in (page := (await self.client.get(location.partition("#")[0])).words):
                await asyncio.sleep(0.01)
        return page


@pytest.fixture
async def gated(demo: ClusterReading) -> AsyncIterator[GatedConsole]:
    samples = GatedSamples(demo.samples)
    reading = NewestReading(demo._replace(samples=samples))
    async with serve_console(reading, "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        yield GatedConsole(Client(address, session), samples)
    samples.let(1000)


async def test_the_form_leads_to_a_page_that_says_how_far_the_trial_is(gated: GatedConsole) -> None:
    total = len(gated.samples)
    sent = await send_form(gated.client, NOTEBOOK, DENY_ALL)
    location = sent.headers["Location"]
    start = await gated.wait_for(f"0 of {total} workloads", location)
    gated.samples.let(5)
    later = await gated.wait_for(f"5 of {total} workloads", location)
    gated.samples.let(1000)
    result = await ended_page(gated.client, location)

    assert sent.status == 303
    assert location.startswith("/try?trial=")
    assert location.endswith("#result")
    assert start.startswith(RUNNING)
    assert "With the policies of the cluster" in start  # the pasted pod is evaluated first
    assert "make a difference for" in later
    assert result.words.startswith("Result of the trial")
    assert f"One pod of each of {total} workloads was evaluated" in result.words
    assert "<progress" not in result.text
    assert all("name: notebook-ana" in page for page in (start, later, result.words))  # the form keeps its texts


async def test_other_pages_answer_while_a_trial_runs(gated: GatedConsole) -> None:
    location = (await send_form(gated.client, policies=DENY_ALL)).headers["Location"]

    for path in ("/", "/workloads", "/nodes", "/policies", "/try"):
        assert (await gated.client.get(path)).status == 200
    assert (await gated.wait_for("0 of", location)).startswith(RUNNING)


async def test_the_tag_of_a_trial_changes_with_its_progress_and_those_of_other_pages_do_not(
    gated: GatedConsole,
) -> None:
    """An open page asks with the tag that it has; a page of 20,000 workloads is not sent again for a trial."""
    location = (await send_form(gated.client, policies=DENY_ALL)).headers["Location"]
    await gated.wait_for("0 of", location)
    paths = location.partition("#")[0], "/workloads"
    tags = [(await gated.client.get(path)).headers["ETag"] for path in paths]
    unchanged = [await gated.client.get(path, If_None_Match=tag) for path, tag in zip(paths, tags, strict=True)]
    gated.samples.let(3)
    await gated.wait_for("3 of", location)
    changed = [await gated.client.get(path, If_None_Match=tag) for path, tag in zip(paths, tags, strict=True)]

    assert [each.status for each in unchanged] == [304, 304]
    assert [each.status for each in changed] == [200, 304]


async def test_a_new_trial_stops_the_one_that_runs_and_both_pages_say_so(gated: GatedConsole) -> None:
    first = (await send_form(gated.client, policies=DENY_ALL)).headers["Location"]
    gated.samples.let(2)
    warned = await gated.wait_for("2 of", first)
    second = (await send_form(gated.client, policies=DENY_ALL)).headers["Location"]
    stopped = await gated.wait_for("The trial was stopped", first)
    waiting = await gated.client.get(second.partition("#")[0])
    gated.samples.let(1000)
    result = await ended_page(gated.client, second)
    after = await gated.client.get(first.partition("#")[0])

    assert "Another trial would stop this one" in warned
    assert "A newer trial stopped this one: one runs at a time" in stopped
    assert waiting.words.startswith(RUNNING)
    assert result.words.startswith("Result of the trial")
    assert "workloads were evaluated" in after.words
    assert "team-limits" in after.text
    assert gated.samples.yielded == len(gated.samples) + 3  # the pod that the first one waited for, and then ended


async def test_a_trial_that_is_no_longer_kept_says_so(client: Client) -> None:
    locations = [(await send_form(client, NOTEBOOK)).headers["Location"] for _ in range(KEPT_TRIALS + 1)]
    pages = [await ended_page(client, each) for each in locations]

    assert [each.status for each in pages] == [404, *[200] * KEPT_TRIALS]
    assert "This console keeps no trial" in pages[0].words


async def test_an_error_that_is_found_late_is_shown_in_the_form(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.console.server.TRIAL_PATIENCE", 0.0)
    sent = await send_form(client, policies=NOTEBOOK)
    page = await ended_page(client, sent.headers["Location"])

    assert page.words.startswith("Nothing was evaluated")
    assert "is not a policy. Paste it under Pods or workloads" in page.words
    assert "name: notebook-ana" in page.text.split('name="policies"')[1]
    assert 'id="result" tabindex="-1"' in page.text


async def ended(trial: BackgroundTrial) -> TrialPhase:
    await trial.wait(60)
    return trial.report.phase


class CountedSteps:
    """Steps that count how many run at the same time, and wait for an event before each."""

    def __init__(self) -> None:
        self.running = self.most = self.steps = 0
        self.may_step = threading.Event()

    def __call__(self) -> Iterator[TrialOutcome]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(3):
                assert self.may_step.wait(60)
                self.steps += 1
                yield TrialOutcome()
        finally:
            self.running -= 1


async def test_one_trial_runs_at_a_time_however_many_are_sent() -> None:
    steps, runner = CountedSteps(), TrialRunner()
    trials = [runner.start({}, steps) for _ in range(20)]
    steps.may_step.set()

    assert [await ended(each) for each in trials] == [TrialPhase.REPLACED] * 19 + [TrialPhase.ENDED]
    assert steps.most == 1
    assert steps.steps == 3  # those that were replaced before they started are not evaluated


async def test_a_trial_that_has_ended_stays_when_another_one_starts() -> None:
    runner = TrialRunner()
    first = runner.start({}, lambda: iter([TrialOutcome()]))
    await ended(first)
    second = runner.start({}, lambda: iter([TrialOutcome()]))

    assert [await ended(first), await ended(second)] == [TrialPhase.ENDED, TrialPhase.ENDED]


def fail_with(error: Exception) -> Callable[[], Iterator[TrialOutcome]]:
    def steps() -> Iterator[TrialOutcome]:
        yield TrialOutcome()
        raise error

    return steps


@pytest.mark.parametrize(
    ("error", "text"),
    [(TrialError("too much"), "too much"), (ValueError("<b>"), "internal error: ValueError('<b>')")],
)
async def test_an_error_ends_the_trial(error: Exception, text: str) -> None:
    trial = TrialRunner().start({}, fail_with(error))

    assert await ended(trial) is TrialPhase.ENDED
    assert trial.report.error == text


async def test_a_trial_waits_while_a_page_is_rendered() -> None:
    steps, runner = CountedSteps(), TrialRunner()
    with runner.paused():
        steps.may_step.set()
        trial = runner.start({}, steps)
        async with asyncio.timeout(60):
            while not steps.steps:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        during = steps.steps

    assert during == 1
    assert await ended(trial) is TrialPhase.ENDED
    assert steps.steps == 3


async def test_the_end_of_the_console_ends_the_trial(demo: ClusterReading) -> None:
    samples = GatedSamples(demo.samples)
    reading, threads = NewestReading(demo._replace(samples=samples)), set(threading.enumerate())
    async with serve_console(reading, "127.0.0.1", 0) as address, aiohttp.ClientSession() as session:
        await send_form(Client(address, session), policies=DENY_ALL)
    samples.let(1000)
    async with asyncio.timeout(60):
        while any(each.name.startswith("Thread-") for each in set(threading.enumerate()) - threads):
            await asyncio.sleep(0.01)

    assert samples.yielded <= 1


HEADING = "return document.querySelector('h1').textContent === {!r}"


def test_an_open_page_shows_progress_and_result_and_keeps_what_is_written(
    browser: BrowserProcess, demo: ClusterReading
) -> None:
    """Waits for the period of the script, five seconds."""
    samples = GatedSamples(demo.samples)
    with served_console(NewestReading(demo._replace(samples=samples))) as address, browser.open() as page:
        page.go(f"{address}/try?name=team-limits")
        page.evaluate("document.querySelector('form.trial').submit()")
        page.wait("return document.querySelector('progress') !== null && document.readyState === 'complete'")
        assert page.evaluate("return document.activeElement.id") == "result"
        assert find_layout_errors_by_width(page) == {}
        for dark in (False, True):
            page.show(width=390, dark=dark)
            assert page.accessibility_violations() == [], dark
        samples.let(len(samples) // 2 + 1)
        page.wait(f"{ANNOUNCED} === '50 percent of the workloads are evaluated.'")  # fewer may be at first
        assert page.evaluate("return document.activeElement.id") == "result"
        page.evaluate("document.querySelector('#objects').focus()")
        page.type("kind: Pod")
        samples.let(1000)
        page.wait(HEADING.format("Result of the trial"))
        assert page.evaluate("return document.title") == "Result of the trial - Rightslice"
        assert page.evaluate("return [document.activeElement.id, document.activeElement.value]") == [
            *("objects", "kind: Pod")
        ]
        assert page.evaluate(ANNOUNCED) == "Result of the trial."
        assert find_layout_errors_by_width(page) == {}
        assert page.errors == []


def test_without_a_script_a_link_shows_how_far_the_trial_is(browser: BrowserProcess, demo: ClusterReading) -> None:
    """The page is opened at its result: a link to the same place of it would not load it again."""
    samples = GatedSamples(demo.samples)
    with served_console(NewestReading(demo._replace(samples=samples))) as address, browser.open() as page:
        page.go(f"{address}/try?name=team-limits")
        page.evaluate("document.querySelector('form.trial').submit()")
        page.wait("return document.querySelector('progress') !== null && document.readyState === 'complete'")
        samples.let(1000)
        page.follow("#result p a")
        page.wait(HEADING.format("Result of the trial"))
