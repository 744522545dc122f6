"""The pictures of the HTML report as inline SVG: colours come from the page's style, numbers from the caller.

No script and no outside reference; text from strangers is escaped by Markup, as everywhere on the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from webhook.report.words import shown

WIDTH, LEFT, RIGHT = 960, 190, 170
BAR, GAP = 12, 8
ROOM = LEFT - 12
MOST_LETTERS = 30
"""What is left of a name: nodes differ at the end of theirs."""

MOST_GROUPS = 20
"""Namespaces that are drawn; the table below the picture has all of them."""


class Group(NamedTuple):
    """Bars that belong together, and what each stands for: (class, amount, words)."""

    name: str
    bars: tuple[tuple[str, int, str], ...]


class Step(NamedTuple):
    """One step of a waterfall: its name, its class, where it begins, how long it is, and that in words."""

    name: str
    kind: str
    start: int
    amount: int
    words: str


def bars(title: str, groups: Sequence[Group]) -> Markup:
    """Horizontal bars, grouped, on one scale from zero."""
    drawn = groups[:MOST_GROUPS]
    most = max((amount for group in drawn for _, amount, _ in group.bars), default=0) or 1
    body, y = [], 10
    for group in drawn:
        middle = y + len(group.bars) * BAR / 2 + 4
        body.append(_label(middle, group.name))
        for kind, amount, words in group.bars:
            body.append(_bar(LEFT, y, _length(amount, most), kind, f"{group.name}: {words}"))
            body.append(_text(LEFT + _length(amount, most) + 6, y + BAR - 2, words, size="small"))
            y += BAR
        y += GAP
    return _svg(title, y + 4, body)


def waterfall(title: str, steps: Sequence[Step]) -> Markup:
    """Steps below one another, each beginning where the one before it ended."""
    most = max((step.start + step.amount for step in steps), default=0) or 1
    body, y = [], 10
    for step in steps:
        x = LEFT + _length(step.start, most)
        body.append(_label(y + 16, step.name))
        body.append(_bar(x, y, _length(step.amount, most), step.kind, f"{step.name}: {step.words}", 22))
        body.append(_text(x + _length(step.amount, most) + 6, y + 16, step.words, size="small"))
        y += 30
    return _svg(title, y + 4, body)


def stacked(title: str, rows: Sequence[Group], most: int) -> Markup:
    """One bar a row, its parts one after the other, on one scale that ends at `most`."""
    body, y = [], 10
    for row in rows[:MOST_GROUPS]:
        body.append(_label(y + 13, row.name))
        x = float(LEFT)
        for kind, amount, words in row.bars:
            length = _length(amount, most or 1)
            body.append(_bar(x, y, length, kind, f"{row.name}: {words}", 16))
            x += length
        y += 16 + GAP
    return _svg(title, y + 4, body)


def _length(amount: int, most: int) -> float:
    return max(0, amount) / most * (WIDTH - LEFT - RIGHT)


def _bar(x: float, y: float, length: float, kind: str, words: str, height: int = BAR) -> Markup:
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}"><title>{}</title></rect>').format(
        kind, x, y, length, height - 1, shown(words)
    )


def _text(x: float, y: float, words: str, size: str = "") -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(size, x, y, shown(words))


def _label(y: float, name: str) -> Markup:
    """A name before the bars: of a long one both ends, squeezed where even they are too wide."""
    text = _short(shown(name))
    squeezed = Markup(' textLength="{}" lengthAdjust="spacingAndGlyphs"').format(ROOM) if _width(text) > ROOM else ""
    label = Markup('<text x="{}" y="{:.1f}" text-anchor="end"{}>{}</text>')
    return label.format(LEFT - 8, y, squeezed, text)


def _short(text: str) -> str:
    half = MOST_LETTERS // 2
    return text if len(text) <= MOST_LETTERS else f"{text[:half]}…{text[1 - half :]}"


def _width(text: str) -> int:
    """About how wide it is at 12 px."""
    return sum(12 if letter in "mw@%" or letter.isupper() or not letter.isascii() else 7 for letter in text)


def _svg(title: str, height: float, body: Iterable[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">').format(WIDTH, height, escape(title))
    return head + Markup("").join(body) + Markup("</svg>")
