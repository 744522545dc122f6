"""Charts of the HTML reports: bars of HTML, so that labels keep their size on any screen.

The page's style sets the colors. Untrusted text is escaped.

SVG files: the NVLink connections of a node, and line charts of a simulation. No scripts or references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import cos, pi, sin
from typing import NamedTuple
from xml.sax.saxutils import escape as xml

from markupsafe import Markup, escape

from webhook.placement.topology import GpuTopology
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


WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 50
COLORS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e5aa8")
FONT = 'font-family="sans-serif" font-size="12"'

Point = tuple[float, float]


def line_chart(title: str, lines: Mapping[str, Sequence[Point]], *, across: str, up: str) -> str:
    """Draw lines over percent, both axes from 0.

    Args:
        lines: Points (x, y) in percent, by name.
        across: Label of the x axis.
        up: Label of the y axis.
    """
    most = max((x for points in lines.values() for x, _ in points), default=100.0)
    high = max(100.0, max((y for points in lines.values() for _, y in points), default=100.0))

    def at(point: Point) -> str:
        x = LEFT + point[0] / most * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - point[1] / high * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    body = [
        _svg_text(WIDTH / 2, 22, title, "middle"),
        _svg_text(WIDTH / 2, HEIGHT - 12, across, "middle"),
        _svg_text(8, TOP - 8, up),
    ]
    for tick in range(0, int(high) + 1, 20):
        x, y = at((0, tick)).split(",")
        body.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#ddd"/>')
        body.append(_svg_text(LEFT - 8, float(y) + 4, str(tick), "end"))
    ticks = [(tick, float(at((tick, 0)).split(",")[0])) for tick in range(0, int(most) + 1, 20)]
    body += [_svg_text(x, HEIGHT - BOTTOM + 18, str(tick), "middle") for tick, x in ticks]
    for i, (name, points) in enumerate(lines.items()):
        color = COLORS[i % len(COLORS)]
        body.append(f'<polyline points="{" ".join(map(at, points))}" fill="none" stroke="{color}" stroke-width="2"/>')
        body.append(_svg_text(LEFT + 12, TOP + 16 + 16 * i, name, color=color))
    return _svg_document(WIDTH, HEIGHT, body)


def node_links_svg(name: str, topology: GpuTopology, states: Sequence[str]) -> str:
    """Draw GPUs on a circle with a line for each pair that NVLink connects, the thicker the more links.

    Args:
        states: State of each GPU that is drawn; "free" is drawn open.
    """
    size, radius = 560.0, 170.0
    middle, number = size / 2, len(states)
    turn = [2 * pi * i / max(1, number) - pi / 2 for i in range(number)]
    at = [(middle + radius * cos(angle), middle + radius * sin(angle)) for angle in turn]
    body = [_svg_text(middle, 24, name, "middle")]
    links = {(i, j): topology.count_nvlinks(i, j) for i in range(number) for j in range(i)}
    most = max(links.values(), default=0)
    for (i, j), count in links.items():
        if not count:
            continue
        width = 1 + 4 * count / most
        (x, y), (u, v) = at[i], at[j]
        body.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}" stroke="#9ab" stroke-width="{width:.1f}"/>'
        )
    for i, (x, y) in enumerate(at):
        fill = "#fff" if states[i] == "free" else "#dde6f0"
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="20" fill="{fill}" stroke="#1b6ca8" stroke-width="2"/>')
        body.append(_svg_text(x, y + 4, str(i), "middle"))
        out = (middle + (x - middle) * 1.25, middle + (y - middle) * 1.25)
        body.append(_svg_text(*out, states[i], "middle"))
    return _svg_document(size, size, body)


def _svg_text(x: float, y: float, text: str, anchor: str = "start", color: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" {FONT}>{xml(sanitize(text))}</text>'


def _svg_document(width: float, height: float, body: Iterable[str]) -> str:
    size = f'width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" {size}>'
    back = f'<rect {size} fill="#fff"/>'
    return "\n".join([head, back, *body, "</svg>"]) + "\n"
