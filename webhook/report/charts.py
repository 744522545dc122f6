"""Charts of the HTML report as inline SVG; the page's style sets the colours, Markup escapes untrusted text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from webhook.report.text import sanitize

WIDTH, LEFT, RIGHT = 960, 190, 170
BAR, GAP = 12, 8
LABEL_WIDTH = LEFT - 12
MAX_LABEL_LETTERS = 30
"""Longer names are shortened in the middle: names of nodes differ at the end."""

MAX_BAR_GROUPS = 20
"""Groups that are drawn; the table below the chart has all."""


class BarGroup(NamedTuple):
    """Bars that belong together: (CSS class, amount, text) of each."""

    name: str
    bars: tuple[tuple[str, int, str], ...]


class WaterfallStep(NamedTuple):
    """One step of a waterfall: name, CSS class, start, length, and text."""

    name: str
    kind: str
    start: int
    amount: int
    words: str


def bar_chart(title: str, groups: Sequence[BarGroup]) -> Markup:
    """Draw horizontal bars in groups, on one scale from zero."""
    drawn = groups[:MAX_BAR_GROUPS]
    most = max((amount for group in drawn for _, amount, _ in group.bars), default=0) or 1
    body, y = [], 10
    for group in drawn:
        middle = y + len(group.bars) * BAR / 2 + 4
        body.append(_bar_label(middle, group.name))
        for kind, amount, words in group.bars:
            body.append(_bar_rect(LEFT, y, _bar_length(amount, most), kind, f"{group.name}: {words}"))
            body.append(_chart_text(LEFT + _bar_length(amount, most) + 6, y + BAR - 2, words, size="small"))
            y += BAR
        y += GAP
    return _chart_svg(title, y + 4, body)


def waterfall_chart(title: str, steps: Sequence[WaterfallStep]) -> Markup:
    """Draw steps below one another, each starting where the previous one ended."""
    most = max((step.start + step.amount for step in steps), default=0) or 1
    body, y = [], 10
    for step in steps:
        x = LEFT + _bar_length(step.start, most)
        body.append(_bar_label(y + 16, step.name))
        body.append(_bar_rect(x, y, _bar_length(step.amount, most), step.kind, f"{step.name}: {step.words}", 22))
        body.append(_chart_text(x + _bar_length(step.amount, most) + 6, y + 16, step.words, size="small"))
        y += 30
    return _chart_svg(title, y + 4, body)


def stacked_bar_chart(title: str, rows: Sequence[BarGroup], most: int) -> Markup:
    """Draw one bar per row with its parts one after the other, on one scale that ends at `most`."""
    body, y = [], 10
    for row in rows[:MAX_BAR_GROUPS]:
        body.append(_bar_label(y + 13, row.name))
        x = float(LEFT)
        for kind, amount, words in row.bars:
            length = _bar_length(amount, most or 1)
            body.append(_bar_rect(x, y, length, kind, f"{row.name}: {words}", 16))
            x += length
        y += 16 + GAP
    return _chart_svg(title, y + 4, body)


def _bar_length(amount: int, most: int) -> float:
    return max(0, amount) / most * (WIDTH - LEFT - RIGHT)


def _bar_rect(x: float, y: float, length: float, kind: str, words: str, height: int = BAR) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"><title>{}</title></rect>').format(
        kind, x, y, length, height - 1, sanitize(words)
    )


def _chart_text(x: float, y: float, words: str, size: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(size, x, y, sanitize(words))


def _bar_label(y: float, name: str) -> Markup:
    """Draw a name before the bars; a long one is shortened, and squeezed if it is still too wide."""
    text = _shorten_middle(sanitize(name))
    squeezed = (
        Markup(' textLength="{}" lengthAdjust="spacingAndGlyphs"').format(LABEL_WIDTH)
        if _estimate_text_width(text) > LABEL_WIDTH
        else ""
    )
    label = Markup('<text x="{}" y="{:.1f}" text-anchor="end"{}>{}</text>')
    return label.format(LEFT - 8, y, squeezed, text)


def _shorten_middle(text: str) -> str:
    half = MAX_LABEL_LETTERS // 2
    return text if len(text) <= MAX_LABEL_LETTERS else f"{text[:half]}…{text[1 - half :]}"


def _estimate_text_width(text: str) -> int:
    """Estimate the width in pixels at a font size of 12."""
    return sum(12 if letter in "mw@%" or letter.isupper() or not letter.isascii() else 7 for letter in text)


def _chart_svg(title: str, height: float, body: Iterable[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">').format(WIDTH, height, escape(title))
    return head + Markup("").join(body) + Markup("</svg>")
