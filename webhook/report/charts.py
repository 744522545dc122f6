"""Charts of the HTML report as inline SVG; the page's style sets the colors, and untrusted text is escaped."""

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
    text: str


def bar_chart(title: str, groups: Sequence[BarGroup]) -> Markup:
    """Draw horizontal bars in groups, on one scale from zero."""
    drawn = groups[:MAX_BAR_GROUPS]
    most = max((amount for group in drawn for _, amount, _ in group.bars), default=0) or 1
    body, y = [], 10
    for group in drawn:
        middle = y + len(group.bars) * BAR / 2 + 4
        body.append(_bar_label(middle, group.name))
        for kind, amount, text in group.bars:
            body.append(_bar_rect(LEFT, y, _bar_length(amount, most), kind, f"{group.name}: {text}"))
            body.append(_bar_value(LEFT + _bar_length(amount, most) + 6, y + BAR - 2, text))
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
        body.append(_bar_rect(x, y, _bar_length(step.amount, most), step.kind, f"{step.name}: {step.text}", 22))
        body.append(_bar_value(x + _bar_length(step.amount, most) + 6, y + 16, step.text))
        y += 30
    return _chart_svg(title, y + 4, body)


def stacked_bar_chart(title: str, rows: Sequence[BarGroup], most: int) -> Markup:
    """Draw one bar per row with its parts one after the other, on one scale that ends at `most`."""
    body, y = [], 10
    for row in rows[:MAX_BAR_GROUPS]:
        body.append(_bar_label(y + 13, row.name))
        x = float(LEFT)
        for kind, amount, text in row.bars:
            length = _bar_length(amount, most or 1)
            body.append(_bar_rect(x, y, length, kind, f"{row.name}: {text}", 16))
            x += length
        y += 16 + GAP
    return _chart_svg(title, y + 4, body)


def _bar_length(amount: int, most: int) -> float:
    return max(0, amount) / most * (WIDTH - LEFT - RIGHT)


def _bar_rect(x: float, y: float, length: float, kind: str, text: str, height: int = BAR) -> str:
    size = f'x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" height="{height - 1}"'
    return f'<rect class="{escape(kind)}" {size}><title>{escape(sanitize(text))}</title></rect>'


def _bar_value(x: float, y: float, text: str) -> str:
    return f'<text class="small" x="{x:.1f}" y="{y:.1f}">{escape(sanitize(text))}</text>'


def _bar_label(y: float, name: str) -> str:
    """Draw a name before the bars; a long one is shortened, and squeezed if it is still too wide."""
    text, half = sanitize(name), MAX_LABEL_LETTERS // 2
    if len(text) > MAX_LABEL_LETTERS:
        text = f"{text[:half]}…{text[1 - half :]}"
    # An estimate in pixels at a font size of 12.
    width = sum(12 if letter in "mw@%" or letter.isupper() or not letter.isascii() else 7 for letter in text)
    squeeze = f' textLength="{LABEL_WIDTH}" lengthAdjust="spacingAndGlyphs"' if width > LABEL_WIDTH else ""
    return f'<text x="{LEFT - 8}" y="{y:.1f}" text-anchor="end"{squeeze}>{escape(text)}</text>'


def _chart_svg(title: str, height: float, body: Iterable[str]) -> Markup:
    head = f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return Markup(f"{head}{''.join(body)}</svg>")  # noqa: S704 - every text in it is escaped
