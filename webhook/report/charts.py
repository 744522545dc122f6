"""Charts of the HTML reports: bars of HTML, so that labels keep their size on any screen.

The page's style sets the colors. Untrusted text is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from webhook.report.text import sanitize

MAX_BAR_GROUPS = 20
"""Groups that are drawn; the table below the chart has all."""


class Bar(NamedTuple):
    """Part of a row of a chart: the CSS class that sets its color, its length, and text."""

    kind: str
    amount: int
    text: str


class BarGroup(NamedTuple):
    """Bars that belong together."""

    name: str
    bars: tuple[Bar, ...]


class WaterfallStep(NamedTuple):
    """One step of a waterfall: its name, where it starts, and its bar."""

    name: str
    start: int
    bar: Bar


def bar_chart(title: str, groups: Sequence[BarGroup]) -> Markup:
    """Draw bars in groups, each bar in a row, on one scale from zero."""
    drawn = groups[:MAX_BAR_GROUPS]
    most = max((bar.amount for group in drawn for bar in group.bars), default=0)
    return _chart(title, (_group(group, most) for group in drawn))


def waterfall_chart(title: str, steps: Sequence[WaterfallStep]) -> Markup:
    """Draw steps below one another, each starting where the previous one ended."""
    most = max((step.start + step.bar.amount for step in steps), default=0)
    return _chart(title, (_row(step.name, [step.bar], step.bar.text, most, step.start) for step in steps))


def stacked_bar_chart(title: str, rows: Sequence[tuple[BarGroup, str]], most: int) -> Markup:
    """Draw one row per group with its bars one after the other and a text, on one scale that ends at `most`."""
    return _chart(title, (_row(group.name, group.bars, text, most) for group, text in rows[:MAX_BAR_GROUPS]))


def _group(group: BarGroup, most: int) -> str:
    rows = (_row("" if i else group.name, [bar], bar.text, most) for i, bar in enumerate(group.bars))
    return f"<section>{''.join(rows)}</section>"


def _row(name: str, bars: Iterable[Bar], text: str, most: int, start: int = 0) -> str:
    drawn = "".join(_bar(bar, most, start) for bar in bars if bar.amount > 0)
    return f"<div><b>{_text(name)}</b><span>{drawn}</span><small>{_text(text)}</small></div>"


def _bar(bar: Bar, most: int, start: int) -> str:
    left, width = (f"{amount / most:.2%}" for amount in (start, bar.amount))
    place = f"margin-left:{left};width:{width}" if start else f"width:{width}"
    return f'<i class="{escape(bar.kind)}" style="{place}" title="{_text(bar.text)}"></i>'


def _chart(title: str, rows: Iterable[str]) -> Markup:
    body = "".join(rows)
    return Markup(f'<figure class="chart" aria-label="{_text(title)}">{body}</figure>')  # noqa: S704 - all is escaped


def _text(text: str) -> Markup:
    return escape(sanitize(text))
