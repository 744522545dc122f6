"""Recorded use to a `UsageView`: for each container how likely it is to need more than each size, and at what price.

What is estimated is what a pod can hold for its life, since admission chooses once: a new pod has no past to be near
to, so windows weigh by how recent they are alone. docs/rightsizing.md has the rule, its figures and its limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from webhook.model.usage import CERTAIN_PPM, RISKS_PPM, Observed, UsageView
from webhook.usage.blocking import blocked
from webhook.usage.distribution import PRIOR, Grid, an_hour, distribution, grid_of, recency, tail_of
from webhook.usage.flatness import is_flat
from webhook.usage.history import History
from webhook.usage.idleness import idle_until
from webhook.usage.pools import HOUR, Pool, Pools, Span, Speaking, thinned
from webhook.usage.pricing import Counted, limits
from webhook.usage.windows import Floats

HALF_LIFE = 48 * HOUR
"""Seconds after which a window counts half: what Autopilot takes for memory."""

TARGETS_PPM = (500, 1000, 2500, 5000, 10_000, 20_000, 40_000)
"""Risks that a price is set for."""

PAST_LIMITS = 400
"""Limits of the past that are chosen anew to count how often they were overrun."""

LARGEST_CARD_MIB = 192 << 10
"""What a GPU has whose memory is not known."""

PODS_AT_ONCE = 128
"""Pods whose windows are cut together."""

ACCURACY = 1e-12
"""Differences of chances that are rounding."""

_LEVELS = 1 - np.array(RISKS_PPM) / CERTAIN_PPM - ACCURACY


WorkloadKey = tuple[str, str, str]
"""Namespace, workload and container."""


class Foreseen(NamedTuple):
    """What was estimated for one container: from which pool, and the chance to stay below each size for an hour."""

    pool: Pool
    grid: Grid
    below: Floats


def estimate(histories: Iterable[History], now: float) -> UsageView:
    """What workloads were seen to use, and how likely they are to need more.

    Args:
        histories: One for each container of each pod, all with bins of one length, none later than `now`.
        now: Unix seconds.
    """
    every = list(histories)
    seen = [history for history in every if not history.is_blind]
    pools, workloads, members = Pools(seen, now), _by_workload(seen), _by_workload(every)
    counted, observed = Counted(), {}
    often = max(1, len(workloads) // PAST_LIMITS)
    for index, (key, foreseen) in enumerate(_each_foreseen(workloads, pools, now)):
        observed[key] = _observed(workloads[key], members[key], foreseen, now)
        if foreseen is not None and index % often == 0:
            _count(foreseen, pools, counted, most=max(1, PAST_LIMITS // len(workloads)))
    return UsageView(
        observed | {key: _observed(some, some, None, now) for key, some in members.items() if key not in observed},
        tuple((target, round(1000 * counted.price(target / CERTAIN_PPM))) for target in TARGETS_PPM),
    )


def _by_workload(histories: Iterable[History]) -> dict[WorkloadKey, list[History]]:
    workloads: dict[WorkloadKey, list[History]] = {}
    for history in histories:
        workloads.setdefault(history.key, []).append(history)
    return workloads


def _each_foreseen(
    workloads: Mapping[WorkloadKey, Sequence[History]], pools: Pools, now: float
) -> Iterator[tuple[WorkloadKey, Foreseen | None]]:
    """Every workload in its order, and what is foreseen of it."""
    for some in _parts(workloads):
        for (key, members), speaking in zip(some, pools.speaking([members for _, members in some]), strict=True):
            yield key, _foresee(members, speaking, pools, now) if speaking else None


def _parts(workloads: Mapping[WorkloadKey, Sequence[History]]) -> Iterator[list[tuple[WorkloadKey, Sequence[History]]]]:
    """Workloads of some pods at once: what is held of their windows does not grow with the fleet."""
    part: list[tuple[WorkloadKey, Sequence[History]]] = []
    pods = 0
    for key, members in workloads.items():
        part.append((key, members))
        pods += len(members)
        if pods >= PODS_AT_ONCE:
            yield part
            part, pods = [], 0
    yield part


def _foresee(members: Sequence[History], speaking: Speaking, pools: Pools, now: float) -> Foreseen:
    card = _card(members)
    grid = grid_of(min(_typical(members), card), card)
    below = _below(speaking.nearest, pools, grid, now)
    if _others_speak(speaking, now):
        below = np.minimum(below, _below_own(speaking.own, below, grid))
        below[grid.sizes < _peak(members)] = 0
    return Foreseen(speaking.nearest, grid, below)


def _others_speak(speaking: Speaking, now: float) -> bool:
    """Do others say more than the workload's own windows: has it too few, or are they so old that the tail has more?"""
    own = speaking.own
    return speaking.nearest is not own or _recency(own.run, now).sum() < PRIOR


def _below_own(own: Pool, others: Floats, grid: Grid) -> Floats:
    """The chance by the workload's own windows, with that of the others as their tail."""
    return np.minimum(_by_newest(own.run, others, grid), _by_newest(own.hour, others, grid))


def _by_newest(span: Span, tail: Floats, grid: Grid) -> Floats:
    """The newest window counts in full, however old it is: nothing newer is known of the workload."""
    windows = span.windows
    if not windows.at.size:
        return tail
    return an_hour(distribution(windows.after, _recency(span, windows.at.max()), tail, grid), span.hours)


def _below(pool: Pool, pools: Pools, grid: Grid, now: float) -> Floats:
    """Chance to stay at or below each size for an hour: by the hours that were seen, and by the runs; the smaller."""
    hourly = _by(pool.hour, pools, grid, now)
    return hourly if pool.run is pool.hour else np.minimum(hourly, _by(pool.run, pools, grid, now))


def _by(span: Span, pools: Pools, grid: Grid, now: float) -> Floats:
    tail = tail_of(pools.tail(span.hours, now), grid)
    return an_hour(distribution(span.windows.after, _recency(span, now), tail, grid), span.hours)


def _recency(span: Span, now: float) -> Floats:
    return recency(span.windows, now, max(HALF_LIFE, span.hours * HOUR))


def _count(foreseen: Foreseen, pools: Pools, counted: Counted, most: int) -> None:
    """Choose limits anew at past moments, from what was known then, and count the hours that overran them."""
    pool = foreseen.pool.by(thinned)
    for index in range(pool.size - 1, pool.size // 2, -max(1, pool.size // 2 // most)):
        at, until = pool.run.windows.at[index], pool.run.windows.until[index]
        known = pool.by(partial(_known, at=at))
        peaks = pool.hour.windows.after[(pool.hour.windows.at >= at) & (pool.hour.windows.until <= until)]
        if known.size and peaks.size:
            below = _below(known, pools, foreseen.grid, at)
            most_there_was = np.minimum(peaks, foreseen.grid.sizes[-1])
            counted.add(limits(below, foreseen.grid), most_there_was, pool.run.hours)


def _known(span: Span, at: float) -> Span:
    """What was known by some moment."""
    return span._replace(windows=span.windows.some(slice(0, int(np.searchsorted(span.windows.until, at, "right")))))


def _observed(seen: Sequence[History], members: Sequence[History], foreseen: Foreseen | None, now: float) -> Observed:
    """What is known of a workload: by those whose memory was seen, and the kills and faults of all."""
    idle = idle_until(members) if foreseen else 0
    compute = [known for member in seen if (known := _compute(member)) is not None]
    return Observed(
        memory_mib=_peak(seen),
        compute_milli=max(compute, default=None),
        samples=foreseen.pool.size if foreseen else 0,
        preallocates=any(is_flat(member) for member in seen),
        sizes_mib=_curve(foreseen) if foreseen else (),
        typical_mib=round(_typical(seen)),
        card_mib=_card(seen),
        horizon_hours=max(1, round(foreseen.pool.run.hours)) if foreseen else 1,
        pool=foreseen.pool.name if foreseen else "workload",
        idle_until=idle,
        idle_pods=tuple(member.pod for member in members) if idle else (),
        blocked=blocked(members, now),
    )


def _curve(foreseen: Foreseen) -> tuple[int, ...]:
    """The least size for each of `RISKS_PPM`, MiB."""
    at = foreseen.below.searchsorted(_LEVELS)
    return tuple(np.ceil(foreseen.grid.sizes[at]).astype(int).tolist())


def _peak(members: Sequence[History]) -> int:
    return max(member.peak_mib for member in members)


def _compute(member: History) -> int | None:
    """Where only its largest engine activity is known, that: it was never busier."""
    return member.active_milli if member.compute_milli is None else member.compute_milli


def _card(members: Sequence[History]) -> int:
    """Memory of the GPU that they ran on; where nobody said, or peaks belie it, of the largest: none is ruled out."""
    known, peak = max(member.capacity_mib or 0 for member in members), _peak(members)
    return known if known and known >= peak else max(LARGEST_CARD_MIB, peak)


def _typical(members: Sequence[History]) -> float:
    """Mean memory in use, MiB."""
    means = [member.mean_mib for member in members if member.mean_mib is not None]
    return max(1.0, sum(means) / len(means)) if means else float(max(1, _peak(members)))
