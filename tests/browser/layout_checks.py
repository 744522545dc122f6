"""Find errors of layout that a person would see: texts that overlap, are cut off or too small, and pages too wide."""

from __future__ import annotations

import json
from pathlib import Path

from tests.browser.driver import BrowserPage

WIDTHS = (390, 768, 1280, 1920)
"""Windows of a phone, a tablet, a laptop and a large screen, in CSS pixels."""

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")

LINES = """
const lines = (each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
};
const found = [...document.querySelectorAll(SELECTOR)];
return [found.length, found.filter((each) => lines(each) > 1).map((each) => each.textContent)];
"""

HIDDEN_NAMES = """
const names = [];
for (const table of document.querySelectorAll(".scroll")) {
  table.scrollLeft = table.scrollWidth;
  const last = table.querySelector("tbody tr > :last-child").getBoundingClientRect();
  if (last.right > innerWidth + 1) names.push("the last column: " + last.right);
  for (const name of table.querySelectorAll("tbody th, thead th.sticky")) {
    const range = document.createRange();
    range.selectNodeContents(name);
    const { left, right, top, bottom } = range.getBoundingClientRect();
    name.scrollIntoView({ block: "center", inline: "nearest" });
    const box = range.getBoundingClientRect();
    const seen = document.elementFromPoint(box.left + 2, (box.top + box.bottom) / 2);
    const isSeen = seen && (name.contains(seen) || seen.contains(name));
    const isNarrow = right - left < innerWidth * 0.6;
    if (left < 0 || right > innerWidth || !isNarrow || !isSeen) names.push(`${name.textContent}: ${left} to ${right}`);
  }
}
return names;
"""


def find_layout_errors(page: BrowserPage) -> list[str]:
    """Return a sentence for each error of the page as it is shown now."""
    errors: list[str] = page.evaluate(SCRIPT)
    return errors


def find_layout_errors_by_width(page: BrowserPage) -> dict[int, list[str]]:
    """Return the errors at each width that has some."""
    errors = {}
    for width in WIDTHS:
        page.show(width=width)
        errors[width] = find_layout_errors(page)
    return {width: found for width, found in errors.items() if found}


def find_broken_texts(page: BrowserPage, selector: str) -> tuple[int, list[str]]:
    """Return the number of elements that match a selector, and the texts of those that take several lines."""
    number, broken = page.evaluate(LINES.replace("SELECTOR", json.dumps(selector)))
    return number, broken


def find_hidden_names(page: BrowserPage) -> list[str]:
    """Return what is out of view when each table is scrolled to its end: names of rows, and last columns."""
    hidden: list[str] = page.evaluate(HIDDEN_NAMES)
    return hidden
