"""Pictures of the dashboards for docs/, from data that a real Prometheus scraped from real processes.

    python -m tests.cluster.dashboard_pictures    # two minutes of load; writes docs/pictures/dashboard-*.svg

The pictures follow the reader's choice of a light or dark screen.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from tests.cluster.monitored_site import MonitoredSite, run_monitored_site
from tests.cluster.plane import Plane
from tests.cluster.test_dashboards import DOCUMENTS, substitute, variable_values
from tests.conftest import ROOT
from tests.controlplane.build import control_plane, prometheus_program, wanted_version
from tests.usage.prometheus import Prometheus, PrometheusServer

LOAD_SECONDS = 120
STEP_SECONDS = 3
RATE_INTERVAL = "15s"

CELL, ROW = 50, 24
"""Pixels of a column and of a row of a dashboard."""

GAP, TITLE, LEGEND = 4, 22, 16
COLORS = ("#3274d9", "#e0752d", "#37872d", "#8f3bb8", "#c4162a", "#1f9d9d", "#b38600", "#7c7c7c")
LEVELS = {"green": "#37872d", "orange": "#d9730d", "red": "#c4162a"}
STYLE = """<style>
text { font: 11px sans-serif; fill: #24292e } .panel { fill: #fff; stroke: #c8ccd1 } .back { fill: #f4f5f5 }
.title { font-weight: 600 } .row { font-size: 13px; font-weight: 600 } .axis { fill: #6b7280 } .grid { stroke: #e3e5e8 }
@media (prefers-color-scheme: dark) {
  text { fill: #d8d9da } .panel { fill: #181b1f; stroke: #34383e } .back { fill: #111217 } .axis { fill: #9aa1a9 }
  .grid { stroke: #2a2e34 }
}
</style>"""


class Box(NamedTuple):
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float


class Line(NamedTuple):
    """One series: its name and its points (time, value)."""

    name: str
    points: tuple[tuple[float, float], ...]


def draw_dashboard(prometheus: Prometheus, document: dict[str, Any], start: float, end: float) -> str:
    """Return the picture of a dashboard from the data between two times."""
    span = {"$__rate_interval": RATE_INTERVAL, "$__range": f"{int(end - start)}s"}
    values = span | variable_values(prometheus, document)
    boxes = {panel["id"]: _box(panel["gridPos"]) for panel in document["panels"]}
    height = max(box.y + box.height for box in boxes.values()) + GAP
    size = f'width="{24 * CELL}" height="{height:.0f}"'
    body = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {24 * CELL} {height:.0f}" {size}>', STYLE]
    body.append(f'<rect class="back" {size}/>')
    for panel in document["panels"]:
        box = boxes[panel["id"]]
        if panel["type"] == "row":
            body.append(_text(box.x + 4, box.y + 16, panel["title"], "row"))
            continue
        lines = [line for target in panel["targets"] for line in _read(prometheus, target, values, start, end)]
        body += _draw_panel(panel, box, lines, start, end)
    return "\n".join([*body, "</svg>"]) + "\n"


def _box(place: dict[str, int]) -> Box:
    return Box(place["x"] * CELL + GAP / 2, place["y"] * ROW + GAP / 2, place["w"] * CELL - GAP, place["h"] * ROW - GAP)


def _read(
    prometheus: Prometheus, target: dict[str, Any], values: dict[str, str], start: float, end: float
) -> Iterator[Line]:
    expression = substitute(target["expr"], values)
    if target.get("instant"):
        for series in prometheus.instant_query(expression, at=end):
            yield Line(_name(target, series["metric"]), ((end, float(series["value"][1])),))
        return
    found = prometheus.api("query_range", query=expression, start=start, end=end, step=STEP_SECONDS)
    for series in found["result"]:
        points = ((moment, float(value)) for moment, value in series["values"])
        yield Line(_name(target, series["metric"]), tuple(point for point in points if isfinite(point[1])))


def _name(target: dict[str, Any], labels: dict[str, str]) -> str:
    name: str = target.get("legendFormat", "")
    for label, value in labels.items():
        name = name.replace("{{" + label + "}}", value)
    return name if "{{" not in name else ""


def _draw_panel(panel: dict[str, Any], box: Box, lines: Sequence[Line], start: float, end: float) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    yield f'<rect class="panel" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="3"/>'
    yield _text(box.x + 8, box.y + 16, panel["title"], "title")
    inner = Box(box.x + 8, box.y + TITLE, box.width - 16, box.height - TITLE - 6)
    if panel["type"] == "stat":
        yield from _draw_number(inner, lines, defaults)
    elif panel["type"] == "bargauge":
        yield from _draw_bars(inner, lines, defaults)
    else:
        stacked = "stacking" in defaults.get("custom", {})
        opacity = defaults["custom"].get("fillOpacity", 0) / 100
        yield from _draw_lines(inner, _stack(lines) if stacked else lines, defaults["unit"], start, end, opacity)


def _draw_number(box: Box, lines: Sequence[Line], defaults: dict[str, Any]) -> Iterator[str]:
    value = lines[0].points[-1][1]
    color = LEVELS[[step["color"] for step in defaults["thresholds"]["steps"] if (step["value"] or 0) <= value][-1]]
    text = escape(in_unit(value, defaults["unit"]))
    middle = f'x="{box.x + box.width / 2:.1f}" y="{box.y + box.height * 0.66:.1f}" text-anchor="middle"'
    yield f'<text {middle} style="font-size:30px;font-weight:600;fill:{color}">{text}</text>'


def _draw_bars(box: Box, lines: Sequence[Line], defaults: dict[str, Any]) -> Iterator[str]:
    shown = sorted(lines, key=lambda line: -line.points[-1][1])[: int(box.height // 18)]
    most = max((line.points[-1][1] for line in shown), default=0) or 1
    for index, line in enumerate(shown):
        y, value = box.y + 18 * index, line.points[-1][1]
        width = max(1, (box.width - 300) * value / most)
        yield _text(box.x, y + 12, line.name)
        yield f'<rect x="{box.x + 220}" y="{y + 2}" width="{width:.1f}" height="12" fill="{COLORS[0]}"/>'
        yield _text(box.x + 226 + width, y + 12, in_unit(value, defaults["unit"]))


def _stack(lines: Sequence[Line]) -> list[Line]:
    """Return lines that each lie above the ones before."""
    totals: dict[float, float] = {}
    stacked = []
    for line in lines:
        for moment, value in line.points:
            totals[moment] = totals.get(moment, 0) + value
        stacked.append(Line(line.name, tuple((moment, totals[moment]) for moment, _ in line.points)))
    return stacked


def _draw_lines(box: Box, lines: Sequence[Line], unit: str, start: float, end: float, fill: float) -> Iterator[str]:
    """Draw lines and their names; with an opacity above 0, the band between each line and the one before is filled."""
    high = max((value for line in lines for _, value in line.points), default=0) or 1
    names = list(_place_names(lines, box.width - 64))
    left, bottom = box.x + 60, box.y + box.height - LEGEND * (1 + max((row for _, _, row in names), default=0))
    width, height = box.width - 64, bottom - box.y - 6

    def at(moment: float, value: float) -> str:
        return f"{left + (moment - start) / (end - start) * width:.1f},{bottom - value / high * height:.1f}"

    for part in (0, 0.5, 1):
        y = bottom - part * height
        yield f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}"/>'
        yield _text(left - 6, y + 4, in_unit(part * high, unit), "axis", "end")
    below = [(start, 0.0), (end, 0.0)]
    for line, color in zip(lines, cycle(COLORS), strict=False):
        points = " ".join(at(*point) for point in line.points)
        if fill and line.points:
            band = " ".join(at(*point) for point in reversed(below))
            yield f'<polygon points="{points} {band}" fill="{color}" fill-opacity="{fill}"/>'
            below = list(line.points)
        yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
    for (name, x, row), color in zip(names, cycle(COLORS), strict=False):
        if not name:
            continue
        y = bottom + 6 + LEGEND * row
        yield f'<rect x="{left + x:.0f}" y="{y:.1f}" width="8" height="8" fill="{color}"/>'
        yield _text(left + x + 12, y + 8, name)


def _place_names(lines: Sequence[Line], width: float) -> Iterator[tuple[str, float, int]]:
    """Yield each name with its place: how far right, and in which row of the legend."""
    x, row = 0.0, 0
    for line in lines:
        size = 26 + 6 * len(line.name)
        if x and x + size > width:
            x, row = 0.0, row + 1
        yield line.name, x, row
        x += size


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


SCALES = {
    "s": ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"), (0.000001, "µs")),
    "bytes": ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")),
}
"""Units from the largest to the smallest."""


def in_unit(value: float, unit: str) -> str:
    """Return a value as Grafana shows it, roughly.

    >>> in_unit(0.125, "percentunit"), in_unit(0.0021, "s"), in_unit(3.0, "short"), in_unit(48_600, "short")
    ('12.5%', '2.1 ms', '3', '48,600')
    """
    if unit == "percentunit":
        return f"{100 * value:.3g}%"
    for size, name in SCALES.get(unit, ()):
        if value >= size:
            return f"{value / size:.3g} {name}"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} /s" if unit in ("reqps", "ops") and value else text


def send_load(site: MonitoredSite) -> tuple[float, float]:
    """Send load, and return its start and end."""
    site.send_load()
    start = time.time()
    site.fail_open()
    site.wait_for("rightslice_usage_containers > 0 and rightslice_leader == 1")
    while time.time() < start + LOAD_SECONDS:
        site.send_load()
    return start, time.time()


def main() -> None:
    """Write the pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Plane(control_plane(wanted_version()), _subfolder(folder, "plane")) as plane,
        PrometheusServer(prometheus_program(), _subfolder(folder, "usage")) as usage,
        run_monitored_site(plane, _subfolder(folder, "site"), usage) as site,
    ):
        start, end = send_load(site)
        for name, document in DOCUMENTS.items():
            picture = draw_dashboard(site.prometheus, document, start, end)
            (ROOT / "docs" / "pictures" / f"dashboard-{name}.svg").write_text(picture, encoding="utf-8")


def _subfolder(folder: str, name: str) -> Path:
    path = Path(folder) / name
    path.mkdir()
    return path


if __name__ == "__main__":
    main()
