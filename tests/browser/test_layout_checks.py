"""The checks of layout: each finds its error, and accepts what only looks like one."""

from __future__ import annotations

import pytest

from tests.browser.driver import BrowserProcess
from tests.browser.layout_checks import find_layout_errors, find_layout_errors_by_width

HEAD = "<!doctype html><html lang=en><title>t</title><body style='margin: 0; font: 16px sans-serif'>"

ERRORS = {
    "a page that is too wide": ("<div style='width: 500px'>wide</div>", "500 px wide in a window of 390 px"),
    "small letters": ("<small style='font-size: 10px'>tiny</small>", 'letters of 10 px: <small> "tiny"'),
    "letters of a picture that is scaled down": (
        "<svg viewBox='0 0 200 50' width=100><text y=30 font-size=14>tiny</text></svg>",
        'letters of 7 px: <text> "tiny"',
    ),
    "two texts in one place": (
        "<b style='position: absolute'>first</b><i style='position: absolute'>second</i>",
        '<b> "first" overlaps <i> "second"',
    ),
    "a text under a button": ("<b style='position: absolute'>first</b><button>press</button>", '<button> "press"'),
    "a text that is cut off": (
        "<div style='width: 60px; overflow: hidden; white-space: nowrap'>a long text of many words</div>",
        'cut off: <div> "a long text of many words"',
    ),
    "a text left of the page": ("<b style='position: absolute; left: -20px'>first</b>", "left of the page"),
}

ACCEPTED = {
    "lines that follow closely": "<p style='line-height: 1.1'><b>first line</b><br><i>second line</i></p>",
    "a link that takes several lines": (
        "<p style='width: 150px'>See <a href=#>the first of the links</a> or <a href=#>the second of the links</a>."
    ),
    "a wide table in a box that scrolls": "<div style='overflow-x: auto'><div style='width: 900px'>wide</div></div>",
    "a hidden text over another": "<b style='position: absolute; visibility: hidden'>first</b><i>second</i>",
    "a label around its input": "<label>Name <input style='width: 5rem'></label>",
    "a link off the page until it has the focus": "<a href=# style='position: absolute; left: -100vw'>Skip</a>",
    "a text for screen readers only": (
        "<span style='position: absolute; width: 1px; height: 1px; overflow: hidden'>skip</span><b>first</b>"
    ),
}


@pytest.mark.parametrize(("html", "error"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_found(browser: BrowserProcess, html: str, error: str) -> None:
    with browser.open(HEAD + html, width=390) as page:
        found = find_layout_errors(page)
    assert found
    assert all(error in each for each in found), found


@pytest.mark.parametrize("html", ACCEPTED.values(), ids=ACCEPTED)
def test_what_is_right_is_accepted(browser: BrowserProcess, html: str) -> None:
    with browser.open(HEAD + html, width=390) as page:
        assert find_layout_errors(page) == []


def test_every_width_is_checked(browser: BrowserProcess) -> None:
    with browser.open(f"{HEAD}<div style='width: 1000px'>wide</div>") as page:
        assert list(find_layout_errors_by_width(page)) == [390, 768]
