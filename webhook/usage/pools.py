"""Whose past speaks for a container: its workload's, else that of its image, else the fleet's.

The nearest pool with enough windows is taken; what the workload itself showed is kept beside it. A pool holds what its
pods came to use from any age on over one horizon: how long the workload's pods usually run, since what admission gives
is held for life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from statistics import median
from typing import NamedTuple

import numpy as np

from webhook.usage.history import History
from webhook.usage.windows import STARTS, Floats, Windows, beginnings, together

HOUR = 3600
HORIZONS = (1, 4, 24, 72)
"""Hours that windows may be long. Longer runs are judged by three days at a time."""

ENOUGH = 36
"""Windows of a pool that is believed: three horizons of one pod."""

FILLED = 4
"""Horizons that the longest run fills: with fewer, its windows would all be about the same time."""

LEAST_SECONDS = 6 * HOUR
"""Time that a workload must have been seen for, all pods together."""

MOST_WINDOWS = 15_000
"""Windows that a pool of an image or of the fleet is made of, and that any is looked back on by: evenly chosen."""


class Span(NamedTuple):
    """Windows of one length, by the time they became known, and that length in hours."""

    windows: Windows
    hours: float


class Pool(NamedTuple):
    """What speaks for a container.

    Attributes:
        name: Whose windows these are: "workload", "image" or "fleet".
        run: Windows as long as a usual run.
        hour: Windows of an hour; the same ones where runs are no longer.
    """

    name: str
    run: Span
    hour: Span

    @property
    def size(self) -> int:
        """How many runs' windows there are."""
        return int(self.run.windows.at.size)

    def by(self, change: Callable[[Span], Span]) -> Pool:
        """The same with both spans changed; where they are one, they stay one."""
        run = change(self.run)
        return self._replace(run=run, hour=run if self.hour is self.run else change(self.hour))


class Speaking(NamedTuple):
    """The nearest pool with enough windows, and the workload's own, which is the same one or has too few."""

    nearest: Pool
    own: Pool


def seen_seconds(members: Iterable[History]) -> int:
    """Time that something was seen, all pods together."""
    return sum([member.seen_seconds for member in members])


def horizon(members: Sequence[History]) -> int:
    """Hours: the longest horizon that a usual run fills, and that the longest run fills so often."""
    runs = [member.end - member.start for member in members]
    usual = min(median(runs), max(runs) / FILLED)
    return max((hours for hours in HORIZONS if hours * HOUR <= usual), default=HORIZONS[0])


def pools_of(name: str, several: Sequence[Sequence[History]], hours: int, now: float) -> list[Pool]:
    """For each of several groups of pods, their windows over a horizon, and over an hour."""
    runs = _spans(several, hours, now)
    hourly = runs if hours == 1 else _spans(several, 1, now)
    return [Pool(name, run, hour) for run, hour in zip(runs, hourly, strict=True)]


def _spans(several: Sequence[Sequence[History]], hours: int, now: float) -> list[Span]:
    """Windows of each group; of pods shorter than them, whole lives. All of them are cut together."""
    found = iter(beginnings(list(chain.from_iterable(several)), hours * HOUR, now))
    return [_span(list(islice(found, len(members))), hours) for members in several]


def _span(several: list[Windows], hours: int) -> Span:
    found = together(several)
    if len(several) > 1:
        found = found.some(np.argsort(found.until, kind="stable"))
    length = float((found.until - found.at).sum()) / found.at.size / HOUR if found.at.size else float(hours)
    return Span(found, length)


def thinned(span: Span) -> Span:
    """So many windows, evenly, that looking at them time and again is bounded."""
    every = -(-span.windows.at.size // MOST_WINDOWS)
    return span if every <= 1 else span._replace(windows=span.windows.some(slice(None, None, every)))


def _chosen(members: Sequence[History], hours: int) -> Sequence[History]:
    """So many, evenly, that their windows are bounded."""
    each = max(1, STARTS * sum([member.end - member.start for member in members]) // (hours * HOUR))
    return members[:: -(-each // MOST_WINDOWS)]


def _by_horizon(workloads: Sequence[Sequence[History]]) -> dict[int, list[int]]:
    """Places of workloads that were seen for long enough, by their horizon."""
    found: dict[int, list[int]] = {}
    for place, members in enumerate(workloads):
        if seen_seconds(members) >= LEAST_SECONDS:
            found.setdefault(horizon(members), []).append(place)
    return found


class Pools:
    """The pools of all that was seen. Those that many share are made once, when they are first asked for."""

    def __init__(self, histories: Sequence[History], now: float) -> None:
        self._now = now
        self._all = histories
        self._by_image: dict[str, list[History]] = {}
        self._made: dict[tuple[str, int], Pool] = {}
        self._tails: dict[int, Windows] = {}
        for history in histories:
            if history.image:
                self._by_image.setdefault(history.image, []).append(history)

    def speaking(self, workloads: Sequence[Sequence[History]]) -> list[Speaking | None]:
        """For each workload who speaks for it; None if no pool has enough windows, or it was hardly seen."""
        found: list[Speaking | None] = [None] * len(workloads)
        for hours, places in _by_horizon(workloads).items():
            owned = pools_of("workload", [workloads[place] for place in places], hours, self._now)
            for place, own in zip(places, owned, strict=True):
                nearest = own if own.size >= ENOUGH else self._wider(workloads[place][0].image, hours)
                found[place] = Speaking(nearest, own) if nearest else None
        return found

    def _wider(self, image: str, hours: int) -> Pool | None:
        wider = ([self._shared("image", image, hours)] if image else []) + [self._shared("fleet", "", hours)]
        return next((pool for pool in wider if pool.size >= ENOUGH), None)

    def tail(self, hours: float, now: float) -> Floats:
        """Peaks of the fleet that were known by some moment, over the horizon nearest to some hours, sorted."""
        near = min(HORIZONS, key=lambda each: abs(each - hours))
        fleet = self._tails.get(near)
        if fleet is None:
            found = self._shared("fleet", "", near).run.windows
            fleet = self._tails[near] = found.some(np.argsort(found.after))
        return fleet.after if now >= self._now else fleet.after[fleet.until <= now]

    def _shared(self, name: str, image: str, hours: int) -> Pool:
        found = self._made.get((image, hours))
        if found is None:
            members = _chosen(self._by_image[image] if image else self._all, hours)
            (found,) = pools_of(name, [members], hours, self._now)
            self._made[image, hours] = found
        return found
