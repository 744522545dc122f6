"""GPU memory in use over time, as a band: the smallest, the middle and the largest of the pods of a workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup, escape

from webhook.model.quantity import format_nano, parse_nano
from webhook.report.text import pluralize, sanitize

WIDTH, HEIGHT = 720, 200
TOP, BOTTOM = 26, 24
MIN_EDGE = 3
"""The band is at least this much wider than its middle on each side, so that a narrow one is seen behind the line."""

_MIB = parse_nano("1Mi")


class BandPoint(NamedTuple):
    """Peaks of the pods in one period, in MiB."""

    seconds: int
    low: int
    middle: int
    high: int


class UsageBand(NamedTuple):
    """Recorded peaks of a container.

    Attributes:
        pods: Pods with readings.
        capacity_mib: Memory of the GPU or MIG instance; 0 if unknown.
        points: By time; a period without readings is left out.
        step_seconds: Length of a period.
    """

    container: str
    pods: int
    capacity_mib: int
    points: tuple[BandPoint, ...]
    step_seconds: int

    @property
    def summary(self) -> str:
        """The band in a sentence, also for those who cannot see it."""
        first, last = self.points[0], self.points[-1]
        lows, highs = (min(each.low for each in self.points), max(each.high for each in self.points))
        of_card = f" of {_memory(self.capacity_mib)}" if self.capacity_mib else ""
        until = last.seconds + self.step_seconds
        return (
            f"{pluralize(self.pods, 'pod')} from {_day(first.seconds)} to {_day(until)} (UTC): "
            f"peaks from {_memory(lows)} to {_memory(highs)}{of_card}"
        )


def _memory(mib: int) -> str:
    return format_nano(mib * _MIB)


def _day(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def band_chart(band: UsageBand) -> Markup:
    """Draw a band with the line of its middle, and a dashed line at the memory of the GPU."""
    most = max(band.capacity_mib, *(point.high for point in band.points), 1)
    scale = _Scale(band, most)
    shapes = [shape for run in _runs(band) for shape in _run_shapes(run, scale)]
    limit = _limit_line(scale, band.capacity_mib) if band.capacity_mib else ""
    label = escape(sanitize(f"GPU memory of {band.container}: {band.summary}"))
    body = "".join([limit, *shapes, *_axis(band, scale, most)])
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg class="band" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">{body}</svg>'
    )


class _Scale:
    """Where a time and an amount are drawn."""

    def __init__(self, band: UsageBand, most: int) -> None:
        self._start = band.points[0].seconds
        self._length = max(band.points[-1].seconds + band.step_seconds - self._start, 1)
        self._most = most

    def x(self, seconds: int) -> float:
        return (seconds - self._start) / self._length * WIDTH

    def y(self, mib: int) -> float:
        return HEIGHT - BOTTOM - mib / self._most * (HEIGHT - TOP - BOTTOM)

    def top(self, point: BandPoint) -> float:
        return min(self.y(point.high), self.y(point.middle) - MIN_EDGE)

    def bottom(self, point: BandPoint) -> float:
        return max(self.y(point.low), self.y(point.middle) + MIN_EDGE)


def _runs(band: UsageBand) -> Iterator[list[BandPoint]]:
    """Yield the points between gaps."""
    run: list[BandPoint] = []
    for point in band.points:
        if run and point.seconds - run[-1].seconds > band.step_seconds:
            yield run
            run = []
        run.append(point)
    yield run


def _run_shapes(run: Sequence[BandPoint], scale: _Scale) -> Iterator[str]:
    ends = [*run, run[-1]._replace(seconds=run[-1].seconds + 1)]
    top = [f"{scale.x(each.seconds):.1f},{scale.top(each):.1f}" for each in ends]
    under = [f"{scale.x(each.seconds):.1f},{scale.bottom(each):.1f}" for each in reversed(ends)]
    middle = [f"{scale.x(each.seconds):.1f},{scale.y(each.middle):.1f}" for each in ends]
    yield f'<polygon class="range" points="{" ".join([*top, *under])}"/>'
    yield f'<polyline class="middle" points="{" ".join(middle)}"/>'


def _limit_line(scale: _Scale, capacity_mib: int) -> str:
    y = scale.y(capacity_mib)
    return f'<line class="limit" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _axis(band: UsageBand, scale: _Scale, most: int) -> Iterator[str]:
    yield f'<line class="edge" x1="0" x2="{WIDTH}" y1="{scale.y(0):.1f}" y2="{scale.y(0):.1f}"/>'
    yield f'<text x="0" y="{scale.y(most) - 6:.1f}">{escape(_memory(most))}</text>'
    until = band.points[-1].seconds + band.step_seconds
    yield f'<text x="0" y="{HEIGHT - 5}">{_day(band.points[0].seconds)}</text>'
    yield f'<text x="{WIDTH}" y="{HEIGHT - 5}" text-anchor="end">{_day(until)}</text>'
