"""The console in a browser: layout and accessibility of every page at every width, and use by keyboard alone."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from urllib.request import urlopen

import msgspec
import pytest

from tests.browser.driver import BrowserPage, BrowserProcess
from tests.browser.layout_checks import WIDTHS, find_broken_texts, find_hidden_names, find_layout_errors_by_width
from tests.conftest import ROOT
from tests.console.test_pages import DEMO_PAGES
from webhook.console.listener import serve_console
from webhook.console.reading import ClusterReading, NewestReading
from webhook.report.layout import ClusterLayout
from webhook.report.workloads import WorkloadReport

PAGES = DEMO_PAGES | {
    "filtered workloads": "/workloads?namespace=notebooks",
    "a workload that does not exist": "/workload?namespace=search&name=Deployment/none",
    "an address that is invalid": "/workloads?sort=none",
}

THREE_GPUS = (ROOT / "examples/pods/04-three-gpus.yaml").read_text(encoding="utf-8")


@contextmanager
def served_console(reading: NewestReading) -> Iterator[str]:
    """Serve a console in another thread, as a browser and its test are one thread; give its address."""

    async def serve() -> None:
        async with serve_console(reading, "127.0.0.1", 0) as address:
            addresses.put(address.rstrip("/"))
            await stop.wait()

    addresses: queue.Queue[str] = queue.Queue()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield addresses.get(timeout=60)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def address(demo: ClusterReading) -> Iterator[str]:
    """The address of a console."""
    with served_console(NewestReading(demo)) as served:
        while "being planned" in urlopen(f"{served}/layout").read().decode():
            time.sleep(0.1)
        yield served


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_a_page_is_legible_and_accessible(browser: BrowserProcess, address: str, path: str) -> None:
    with browser.open() as page:
        status = page.go(address + path)
        assert find_layout_errors_by_width(page) == {}
        for width, dark in ((1280, False), (390, True)):
            page.show(width=width, dark=dark)
            assert page.accessibility_violations() == [], (width, dark)
        assert {request.split()[1].startswith(address) for request in page.requests} == {True}
        assert status != 200 or page.errors == []


@pytest.mark.parametrize("path", ["/workloads", "/nodes"])
def test_names_and_numbers_of_tables_are_on_one_line(browser: BrowserProcess, address: str, path: str) -> None:
    with browser.open() as page:
        page.go(address + path)
        for width in WIDTHS:
            page.show(width=width)
            number, broken = find_broken_texts(page, "tbody th, tbody td:not(.long, .code), tbody code")
            assert number > 80
            assert broken == []


TIGHT_NAMES = """
const width = (each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  return range.getBoundingClientRect().width;
};
const slots = [...document.querySelectorAll(".card b")];
return [slots.length, slots.filter((each) => width(each) > each.clientWidth - 2).map((each) => each.textContent)];
"""


def test_the_name_of_an_instance_is_inside_its_slots(browser: BrowserProcess, address: str) -> None:
    """The border of a free instance is two pixels wide."""
    with browser.open() as page:
        page.go(f"{address}/node?name=a100-mixed-1")
        for width in WIDTHS:
            page.show(width=width)
            number, tight = page.evaluate(TIGHT_NAMES)
            assert number > 16
            assert tight == []


def test_a_cut_text_has_the_shadow_of_a_cut_table(browser: BrowserProcess, address: str) -> None:
    """It shows that there is more to the side."""
    shadow = "return getComputedStyle(document.querySelector('pre')).boxShadow"
    with browser.open() as page:
        page.go(f"{address}/policy?name=right-sizing-trial")
        page.show(width=390)
        page.wait(f"{shadow}.includes('inset')")
        page.show(width=1920)
        page.wait(f"{shadow} === 'none'")


SCROLLED_TABLES = """
const tables = [...document.querySelectorAll(".scroll")];
return tables.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.getAttribute("aria-label"));
"""


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_tables_fit_on_the_screen_of_a_laptop(browser: BrowserProcess, address: str, path: str) -> None:
    with browser.open(width=1280) as page:
        page.go(address + path)
        assert page.evaluate(SCROLLED_TABLES) == []


HIGHEST_ROW = """
return Math.max(...[...document.querySelectorAll("tbody tr")].map((row) => row.getBoundingClientRect().height));
"""


@pytest.mark.parametrize("path", ["/workloads", "/nodes", "/findings", "/policies", "/quotas"])
def test_rows_of_lists_are_compact(browser: BrowserProcess, address: str, path: str) -> None:
    """One line on a phone, where most columns are scrolled off, and two lines elsewhere."""
    with browser.open() as page:
        page.go(address + path)
        for width in WIDTHS:
            page.show(width=width)
            assert page.evaluate(HIGHEST_ROW) <= (28 if width == 390 else 48), width


def test_a_name_of_253_letters_leaves_room_for_the_other_columns(browser: BrowserProcess, demo: ClusterReading) -> None:
    """Names of Kubernetes have no spaces; the rest of the table is as wide as without it."""
    first, *others = demo.state.workloads
    long = msgspec.structs.replace(first, name=f"Deployment/{'w' * 253}")
    state = msgspec.structs.replace(
        demo.state,
        workloads=(long, *others),
        pods={**demo.state.pods, (long.namespace, long.name): ()},
    )
    with (
        served_console(NewestReading(demo._replace(state=state))) as address,
        browser.open(width=1280) as page,
    ):
        page.go(f"{address}/workloads")
        assert page.evaluate(SCROLLED_TABLES) == []
        assert find_layout_errors_by_width(page) == {}


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_the_first_column_stays_on_a_narrow_screen(browser: BrowserProcess, address: str, path: str) -> None:
    with browser.open(width=390) as page:
        page.go(address + path)
        assert find_hidden_names(page) == []


RECORD_FOCUS = """
const seen = (each) => each.checkVisibility({ visibilityProperty: true });
const selector = "a[href], button, input:not([type=hidden]), select, textarea, summary";
const controls = [...document.querySelectorAll(selector)].filter(seen);
window.reached = [];
window.unmarked = [];
document.addEventListener("focusin", ({ target }) => {
  const at = controls.indexOf(target);
  if (at < 0) return;
  window.reached.push(at);
  const { outlineStyle, outlineWidth } = getComputedStyle(target);
  if (outlineStyle === "none" || parseFloat(outlineWidth) < 2) window.unmarked.push(target.outerHTML);
});
return controls.length;
"""


@pytest.mark.parametrize("path", PAGES.values(), ids=PAGES)
def test_the_tab_key_reaches_every_control_in_order_and_shows_where_it_is(
    browser: BrowserProcess, address: str, path: str
) -> None:
    with browser.open(width=390) as page:
        page.go(address + path)
        number = page.evaluate(RECORD_FOCUS)
        scrolled = page.evaluate("return document.querySelectorAll('.scroll').length")
        page.press(*["Tab"] * (number + scrolled))
        reached, unmarked = page.evaluate("return [window.reached, window.unmarked]")
    assert number >= 4
    assert list(islice(reached, number)) == list(range(number))
    assert unmarked == []


def press_tab_until(page: BrowserPage, focused: str) -> None:
    """Press Tab until the focused element matches a selector."""
    for _ in range(100):
        page.press("Tab")
        if page.evaluate(f"return document.activeElement.matches({focused!r})"):
            return
    raise AssertionError(f"the Tab key does not reach {focused}")


SORT_ARROW = "return getComputedStyle(document.querySelector('th[aria-sort] a'), '::after').content"


@pytest.mark.parametrize(("sort", "arrow"), [("requested", "▲"), ("-requested", "▼")])
def test_the_sorted_column_has_an_arrow(browser: BrowserProcess, address: str, sort: str, arrow: str) -> None:
    with browser.open(width=1280) as page:
        page.go(f"{address}/workloads?sort={sort}")
        assert arrow in page.evaluate(SORT_ARROW)
        assert page.evaluate(SCROLLED_TABLES) == []


def test_the_first_control_skips_the_navigation(browser: BrowserProcess, address: str) -> None:
    with browser.open() as page:
        page.go(address)
        page.press("Tab", "Enter")
        assert page.evaluate("return document.activeElement.id") == "content"


def test_a_workload_is_found_and_opened_by_keyboard_alone(browser: BrowserProcess, address: str) -> None:
    with browser.open() as page:
        page.go(address)
        press_tab_until(page, "nav a[href='/workloads']")
        page.press("Enter")
        page.wait("return location.pathname === '/workloads' && document.readyState === 'complete'")
        press_tab_until(page, "#filter-namespace, #filter-name")
        assert page.evaluate("return document.activeElement.labels.length") == 1
        press_tab_until(page, "tbody a")
        page.press("Enter")
        page.wait("return location.pathname === '/workload' && document.readyState === 'complete'")
        assert page.evaluate("return document.querySelector('h1').textContent") != "Workloads"


def test_a_pod_is_tried_by_keyboard_alone(browser: BrowserProcess, address: str) -> None:
    with browser.open() as page:
        page.go(f"{address}/try")
        press_tab_until(page, "#objects")
        page.type(THREE_GPUS)
        press_tab_until(page, "form button:not([type=button])")
        page.press("Enter")
        page.wait("return document.readyState === 'complete' && document.title.startsWith('Result of the trial')")
        assert "GPU-L102" in page.evaluate("return document.querySelector('main').textContent")
        assert page.evaluate("return document.title") == "Result of the trial - Rightslice"
        assert page.evaluate("return document.activeElement.id") == "result"
        assert page.evaluate("return Math.abs(document.activeElement.getBoundingClientRect().top)") < 100
        assert find_layout_errors_by_width(page) == {}
        assert page.accessibility_violations() == []
        assert page.errors == []


def test_before_and_after_are_beside_each_other_where_they_fit(browser: BrowserProcess, address: str) -> None:
    """What is compared is at the same height in two columns, or below each other on a narrow screen."""
    policy = (ROOT / "policies/team-limits.yaml").read_text(encoding="utf-8")
    places = """return [...document.querySelectorAll('.versions > section')].map((version) =>
      [...version.querySelectorAll('h3, h4')].map((each) => each.getBoundingClientRect()).map(({ x, y }) => [x, y]))"""
    with browser.open() as page:
        page.go(f"{address}/try")
        fill = "document.querySelector('#{}').value = {}"
        page.evaluate(fill.format("objects", json.dumps(THREE_GPUS)))
        page.evaluate(fill.format("policies", json.dumps(policy)))
        page.evaluate("document.querySelector('form.trial').submit()")
        page.wait("return document.readyState === 'complete' && document.title.startsWith('Result of the trial')")
        for width in WIDTHS:
            page.show(width=width)
            before, after = page.evaluate(places)
            assert len(before) == len(after) == 4
            if width < 768:
                assert [x for x, _ in before] == [x for x, _ in after]
                assert before[-1][1] < after[0][1]
            else:
                assert [y for _, y in before] == [y for _, y in after]
                assert before[0][0] + width / 3 < after[0][0]
        assert find_layout_errors_by_width(page) == {}
        assert page.accessibility_violations() == []


def test_a_trial_of_nothing_keeps_the_form_and_says_why(browser: BrowserProcess, address: str) -> None:
    with browser.open() as page:
        page.go(f"{address}/try?name=team-limits")
        press_tab_until(page, "#policies")
        page.press("Tab")
        page.evaluate("document.querySelector('#policies').value = ' '")
        page.press("Enter")
        page.wait("return document.title.startsWith('Nothing was evaluated') && document.readyState === 'complete'")
        assert "Paste a pod" in page.evaluate("return document.activeElement.textContent")
        assert page.evaluate("return document.querySelector('#policies').value") == " "
        assert find_layout_errors_by_width(page) == {}
        assert page.accessibility_violations() == []


ANNOUNCED = "return document.querySelector('[role=status]').textContent"
"""What a screen reader is told."""


def test_a_new_reading_appears_and_keeps_the_focus(browser: BrowserProcess, demo: ClusterReading) -> None:
    """Waits for the period of the script, five seconds."""
    reading = NewestReading(demo)
    focused = "return document.activeElement.textContent"
    with served_console(reading) as address, browser.open() as page:
        page.go(f"{address}/workloads")
        press_tab_until(page, "tbody a")
        before = page.evaluate(focused)
        reading.problem, reading.tag = "the API server does not answer", "newer"
        page.wait("return document.querySelector('#reading').textContent.includes('does not answer')")
        assert page.evaluate(focused) == before
        assert "does not answer" in page.evaluate(ANNOUNCED)


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_focus_stays_on_its_link_when_rows_come_and_go(
    browser: BrowserProcess, demo: ClusterReading, is_removed: bool
) -> None:
    """A workload appears above the one in focus; that one stays, or ends, and then no other link has the focus."""
    first, second, *others = demo.state.workloads
    reading = NewestReading(with_workloads(demo, [second, *others]))
    focused = "return document.activeElement.getAttribute('href') ?? document.activeElement.id"
    with served_console(reading) as address, browser.open() as page:
        page.go(f"{address}/workloads")
        press_tab_until(page, "tbody a")
        before = page.evaluate(focused)
        reading.current = with_workloads(demo, [first, *([] if is_removed else [second]), *others])
        reading.tag = "newer"
        page.wait(f"return document.querySelector('tbody th').textContent === {first.name!r}")
        assert second.name in before
        assert page.evaluate(focused) == ("content" if is_removed else before)


def test_a_long_text_that_was_opened_stays_open(browser: BrowserProcess, demo: ClusterReading) -> None:
    """The rows are replaced; the text that was opened by keyboard keeps the focus, and no other is open."""
    first, *others = demo.state.workloads
    opened = "return [...document.querySelectorAll('details[open]')].map((each) => each.textContent)"
    reading = NewestReading(with_workloads(demo, others))
    with served_console(reading) as address, browser.open() as page:
        page.go(f"{address}/workloads")
        press_tab_until(page, "tbody summary")
        page.press("Enter")
        before = page.evaluate(opened)
        reading.current, reading.tag = with_workloads(demo, [first, *others]), "newer"
        page.wait(f"return document.querySelector('tbody th').textContent === {first.name!r}")
        assert len(before) == 1
        assert page.evaluate(opened) == before
        assert page.evaluate("return document.activeElement.textContent") == before[0]


def test_a_new_reading_appears_while_a_filter_is_written(browser: BrowserProcess, demo: ClusterReading) -> None:
    written = "const field = document.activeElement; return [field.id, field.value, field.selectionStart]"
    first, *others = demo.state.workloads
    reading = NewestReading(with_workloads(demo, others))
    with served_console(reading) as address, browser.open() as page:
        page.go(f"{address}/workloads")
        press_tab_until(page, "#filter-namespace")
        page.type("sear")
        page.press("ArrowLeft")
        reading.current, reading.tag = demo, "newer"
        page.wait(f"return document.querySelector('tbody th').textContent === {first.name!r}")
        assert page.evaluate(written) == ["filter-namespace", "sear", 3]
        page.type("x")
        page.press("Enter")
        page.wait("return location.search.includes('namespace=seaxr') && document.readyState === 'complete'")


def with_workloads(demo: ClusterReading, rows: list[WorkloadReport]) -> ClusterReading:
    return demo._replace(state=msgspec.structs.replace(demo.state, workloads=tuple(rows)))


def test_a_page_says_that_the_console_has_ended(browser: BrowserProcess, demo: ClusterReading) -> None:
    with browser.open() as page:
        with served_console(NewestReading(demo)) as address:
            page.go(f"{address}/workloads")
        page.wait("return document.querySelector('#reading').textContent.includes('It may have ended')")
        assert page.evaluate("return document.querySelectorAll('tbody tr').length") > 1
        assert "It may have ended" in page.evaluate(ANNOUNCED)


def test_a_page_says_that_its_node_was_removed(browser: BrowserProcess, demo: ClusterReading) -> None:
    reading = NewestReading(demo)
    with served_console(reading) as address, browser.open() as page:
        page.go(f"{address}/node?name=l4-mps-1")
        reading.current, reading.tag = demo._replace(snapshot=None), "newer"
        page.wait("return document.querySelector('h1').textContent === 'Not found'")


def test_a_plan_appears_when_it_is_ready(browser: BrowserProcess, demo: ClusterReading) -> None:
    """Waits for the period of the script, five seconds."""
    may_end = threading.Event()

    def plan() -> ClusterLayout:
        may_end.wait(timeout=600)
        return demo.plan()

    with served_console(NewestReading(demo._replace(plan=plan))) as address, browser.open() as page:
        page.go(f"{address}/layout")
        assert "being planned" in page.evaluate("return document.querySelector('main').textContent")
        assert find_layout_errors_by_width(page) == {}
        assert page.accessibility_violations() == []
        may_end.set()
        page.wait("return document.querySelector('main').textContent.includes('Nodes that change')")
        assert page.errors == []
