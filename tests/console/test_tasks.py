"""What a new user looks for, from the overview in at most three clicks with the mouse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.driver import BrowserPage, BrowserProcess
from tests.console.test_in_browser import served_console
from webhook.console.reading import ClusterReading, NewestReading

MAX_CLICKS = 3
FIRST_ROW = "return [...document.querySelector('tbody tr').children].map((each) => each.textContent)"
HEADERS = "return [...document.querySelectorAll('thead th')].map((each) => each.textContent)"
ENFORCE = """
const text = document.querySelector("#policies");
text.value = text.value.replace("mode: audit", "mode: enforce");
"""
MAIN = "return document.querySelector('main').innerText"


class Visitor:
    """Someone who opens the console for the first time."""

    def __init__(self, page: BrowserPage) -> None:
        self.page = page
        self.clicks = 0

    def click(self, selector: str) -> None:
        """Click an element that leads to another page."""
        self.clicks += 1
        self.page.follow(selector)

    def first_row(self) -> dict[str, str]:
        """Return the first row of the table by header."""
        return dict(zip(self.page.evaluate(HEADERS), self.page.evaluate(FIRST_ROW), strict=True))

    @property
    def text(self) -> str:
        """What the page shows."""
        return str(self.page.evaluate(MAIN))


@pytest.fixture
def visitor(browser: BrowserProcess, demo: ClusterReading) -> Iterator[Visitor]:
    with served_console(NewestReading(demo)) as address, browser.open() as page:
        page.go(address)
        visitor = Visitor(page)
        yield visitor
        assert visitor.clicks <= MAX_CLICKS
        assert page.errors == []


def test_the_most_wasteful_workload(visitor: Visitor) -> None:
    visitor.click("text/Most wasteful workloads")

    row = visitor.first_row()
    assert (row["Workload"], row["Wasted"], row["Wasted/h"]) == ("Deployment/ranker", "1.43", "7.02")


def test_why_a_pod_kept_its_card(visitor: Visitor) -> None:
    visitor.click("nav ::-p-text(Workloads)")
    visitor.page.evaluate("document.querySelector('#filter-q').focus()")
    visitor.page.type("reindex-29401560-")
    visitor.click("form button")
    visitor.click("tbody a")

    assert "Why it keeps its GPUs" in visitor.text
    assert "no slice or share in this cluster covers the need" in visitor.text


def test_what_a_change_of_a_policy_would_do(visitor: Visitor) -> None:
    visitor.click("nav ::-p-text(Policies)")
    visitor.click("a[href='/try?name=right-sizing-trial']")
    visitor.page.evaluate(ENFORCE)
    visitor.click("form button")

    visitor.page.wait("return document.querySelector('h1').textContent === 'Result of the trial'")
    assert "What the policies would change in the cluster" in visitor.text
    row = visitor.first_row()
    assert (row["Workload"], row["Change"], row["GPUs less per pod"]) == (
        *("Deployment/ranker", "patched differently"),
        "0.71",
    )


def test_which_node_has_an_nvlink_island_of_four_free(visitor: Visitor) -> None:
    visitor.click("nav ::-p-text(Nodes)")
    visitor.click("main ::-p-text(4 GPUs or more)")

    row = visitor.first_row()
    assert (row["Node"], row["Island"]) == ("h100-2", "6")

    visitor.click("tbody a")
    assert "Free NVLink island\n6 GPUs" in visitor.text
