"""Recorded use to a `UsageView`: for each container how likely it is to need more than each size, and at what price.

What is estimated is what a pod can hold for its life, since admission chooses once: a new pod has no past to be near
to, so windows weigh by how recent they are alone. docs/rightsizing.md has the rule, its figures and its limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np

from webhook.model.usage import CERTAIN_PPM, IDLE_BELOW, RISKS_PPM, ObservedUsage, UsageView
from webhook.usage.distribution import (
    PRIOR_WINDOWS,
    OverrunCounter,
    SizeGrid,
    build_size_grid,
    cheapest_limits,
    fleet_tail,
    hourly_probability,
    peak_distribution,
    recency_weights,
)
from webhook.usage.evidence_pools import HOUR, EvidencePool, PoolChoice, PoolIndex, WindowSpan, thin_span
from webhook.usage.history import GAP, UsageHistory
from webhook.usage.usage_windows import Floats

BLOCK_SECONDS = 7 * 86_400
"""A week from the last time: long enough to see a weekly cycle once."""

APPLICATION_XIDS = frozenset({11, 13, 25, 31, 32, 43, 45, 109})
"""Faults that an application makes or suffers itself: bad pushes, exceptions, page faults, what was stopped for them.
The others speak about the device."""


class FailureEvent(NamedTuple):
    """When it was, in Unix seconds, and what."""

    at: int
    cause: str


FULL_SHARE = 0.85
"""Share of the card from which on use may be a setting."""

FLAT_SHARE = 0.97
"""Share of the peak that the median reaches where use does not move."""

MIN_FLAT_BINS = 8
"""Bins below which nothing is said of a shape."""


HALF_LIFE_SECONDS = 48 * HOUR
"""Seconds after which a window counts half: what Autopilot takes for memory."""

TARGETS_PPM = (500, 1000, 2500, 5000, 10_000, 20_000, 40_000)
"""Risks that a price is set for."""

BACKTEST_LIMITS = 400
"""Limits of the past that are chosen anew to count how often they were overrun."""

LARGEST_CARD_MIB = 192 << 10
"""What a GPU has whose memory is not known."""

PODS_PER_BATCH = 128
"""Pods whose windows are cut together."""

ROUNDING_ERROR = 1e-12
"""Differences of chances that are rounding."""

_LEVELS = 1 - np.array(RISKS_PPM) / CERTAIN_PPM - ROUNDING_ERROR


WorkloadKey = tuple[str, str, str]
"""Namespace, workload and container."""


class PeakForecast(NamedTuple):
    """What was estimated for one container: from which pool, and the chance to stay below each size for an hour."""

    pool: EvidencePool
    grid: SizeGrid
    below: Floats


def estimate_usage(histories: Iterable[UsageHistory], now: float) -> UsageView:
    """What workloads were seen to use, and how likely they are to need more.

    Args:
        histories: One for each container of each pod, all with bins of one length, none later than `now`.
        now: Unix seconds.
    """
    every = list(histories)
    seen = [history for history in every if not history.lacks_readings]
    pools, workloads, members = PoolIndex(seen, now), _group_by_workload(seen), _group_by_workload(every)
    counted, observed = OverrunCounter(), {}
    often = max(1, len(workloads) // BACKTEST_LIMITS)
    for index, (key, foreseen) in enumerate(_forecast_workloads(workloads, pools, now)):
        observed[key] = _observed_usage(workloads[key], members[key], foreseen, now)
        if foreseen is not None and index % often == 0:
            _count_overruns(foreseen, pools, counted, most=max(1, BACKTEST_LIMITS // len(workloads)))
    return UsageView(
        observed
        | {key: _observed_usage(some, some, None, now) for key, some in members.items() if key not in observed},
        tuple((target, round(1000 * counted.least_price(target / CERTAIN_PPM))) for target in TARGETS_PPM),
    )


def _group_by_workload(histories: Iterable[UsageHistory]) -> dict[WorkloadKey, list[UsageHistory]]:
    workloads: dict[WorkloadKey, list[UsageHistory]] = {}
    for history in histories:
        workloads.setdefault(history.workload_key, []).append(history)
    return workloads


def _forecast_workloads(
    workloads: Mapping[WorkloadKey, Sequence[UsageHistory]], pools: PoolIndex, now: float
) -> Iterator[tuple[WorkloadKey, PeakForecast | None]]:
    """Every workload in its order, and what is foreseen of it."""
    for some in _workload_batches(workloads):
        for (key, members), speaking in zip(some, pools.choose_pools([members for _, members in some]), strict=True):
            yield key, _forecast_workload(members, speaking, pools, now) if speaking else None


def _workload_batches(
    workloads: Mapping[WorkloadKey, Sequence[UsageHistory]],
) -> Iterator[list[tuple[WorkloadKey, Sequence[UsageHistory]]]]:
    """Workloads of some pods at once: what is held of their windows does not grow with the fleet."""
    part: list[tuple[WorkloadKey, Sequence[UsageHistory]]] = []
    pods = 0
    for key, members in workloads.items():
        part.append((key, members))
        pods += len(members)
        if pods >= PODS_PER_BATCH:
            yield part
            part, pods = [], 0
    yield part


def _forecast_workload(
    members: Sequence[UsageHistory], speaking: PoolChoice, pools: PoolIndex, now: float
) -> PeakForecast:
    card = _card_memory(members)
    grid = build_size_grid(min(_typical_memory(members), card), card)
    below = _chance_below(speaking.nearest, pools, grid, now)
    if _needs_wider_pool(speaking, now):
        below = np.minimum(below, _chance_by_own_windows(speaking.own, below, grid))
        below[grid.sizes < _largest_peak(members)] = 0
    return PeakForecast(speaking.nearest, grid, below)


def _needs_wider_pool(speaking: PoolChoice, now: float) -> bool:
    """Do others say more than the workload's own windows: has it too few, or are they so old that the tail has more?"""
    own = speaking.own
    return speaking.nearest is not own or _span_weights(own.run, now).sum() < PRIOR_WINDOWS


def _chance_by_own_windows(own: EvidencePool, others: Floats, grid: SizeGrid) -> Floats:
    """The chance by the workload's own windows, with that of the others as their tail."""
    return np.minimum(_chance_by_newest_window(own.run, others, grid), _chance_by_newest_window(own.hour, others, grid))


def _chance_by_newest_window(span: WindowSpan, tail: Floats, grid: SizeGrid) -> Floats:
    """The newest window counts in full, however old it is: nothing newer is known of the workload."""
    windows = span.windows
    if not windows.at.size:
        return tail
    return hourly_probability(
        peak_distribution(windows.after, _span_weights(span, windows.at.max()), tail, grid), span.hours
    )


def _chance_below(pool: EvidencePool, pools: PoolIndex, grid: SizeGrid, now: float) -> Floats:
    """Chance to stay at or below each size for an hour: by the hours that were seen, and by the runs; the smaller."""
    hourly = _chance_by_span(pool.hour, pools, grid, now)
    return hourly if pool.run is pool.hour else np.minimum(hourly, _chance_by_span(pool.run, pools, grid, now))


def _chance_by_span(span: WindowSpan, pools: PoolIndex, grid: SizeGrid, now: float) -> Floats:
    tail = fleet_tail(pools.fleet_peaks(span.hours, now), grid)
    return hourly_probability(peak_distribution(span.windows.after, _span_weights(span, now), tail, grid), span.hours)


def _span_weights(span: WindowSpan, now: float) -> Floats:
    return recency_weights(span.windows, now, max(HALF_LIFE_SECONDS, span.hours * HOUR))


def _count_overruns(foreseen: PeakForecast, pools: PoolIndex, counted: OverrunCounter, most: int) -> None:
    """Choose limits anew at past moments, from what was known then, and count the hours that overran them."""
    pool = foreseen.pool.map_spans(thin_span)
    for index in range(pool.size - 1, pool.size // 2, -max(1, pool.size // 2 // most)):
        at, until = pool.run.windows.at[index], pool.run.windows.until[index]
        known = pool.map_spans(partial(_known_before, at=at))
        peaks = pool.hour.windows.after[(pool.hour.windows.at >= at) & (pool.hour.windows.until <= until)]
        if known.size and peaks.size:
            below = _chance_below(known, pools, foreseen.grid, at)
            most_there_was = np.minimum(peaks, foreseen.grid.sizes[-1])
            counted.add(cheapest_limits(below, foreseen.grid), most_there_was, pool.run.hours)


def _known_before(span: WindowSpan, at: float) -> WindowSpan:
    """What was known by some moment."""
    return span._replace(windows=span.windows.select(slice(0, int(np.searchsorted(span.windows.until, at, "right")))))


def _observed_usage(
    seen: Sequence[UsageHistory], members: Sequence[UsageHistory], foreseen: PeakForecast | None, now: float
) -> ObservedUsage:
    """What is known of a workload: by those whose memory was seen, and the kills and faults of all."""
    idle = workload_idle_until(members) if foreseen else 0
    compute = [known for member in seen if (known := _compute_share(member)) is not None]
    return ObservedUsage(
        memory_mib=_largest_peak(seen),
        compute_milli=max(compute, default=None),
        samples=foreseen.pool.size if foreseen else 0,
        preallocates=any(has_flat_usage(member) for member in seen),
        sizes_mib=_size_curve(foreseen) if foreseen else (),
        typical_mib=round(_typical_memory(seen)),
        card_mib=_card_memory(seen),
        horizon_hours=max(1, round(foreseen.pool.run.hours)) if foreseen else 1,
        pool=foreseen.pool.name if foreseen else "workload",
        idle_until=idle,
        idle_pods=tuple(member.pod for member in members) if idle else (),
        blocked_reason=shrink_block_reason(members, now),
    )


def _size_curve(foreseen: PeakForecast) -> tuple[int, ...]:
    """The least size for each of `RISKS_PPM`, MiB."""
    at = foreseen.below.searchsorted(_LEVELS)
    return tuple(np.ceil(foreseen.grid.sizes[at]).astype(int).tolist())


def _largest_peak(members: Sequence[UsageHistory]) -> int:
    return max(member.peak_mib for member in members)


def _compute_share(member: UsageHistory) -> int | None:
    """Where only its largest engine activity is known, that: it was never busier."""
    return member.active_milli if member.compute_milli is None else member.compute_milli


def _card_memory(members: Sequence[UsageHistory]) -> int:
    """Memory of the GPU that they ran on; where nobody said, or peaks belie it, of the largest: none is ruled out."""
    known, peak = max(member.capacity_mib or 0 for member in members), _largest_peak(members)
    return known if known and known >= peak else max(LARGEST_CARD_MIB, peak)


def _typical_memory(members: Sequence[UsageHistory]) -> float:
    """Mean memory in use, MiB."""
    means = [member.mean_mib for member in members if member.mean_mib is not None]
    return max(1.0, sum(means) / len(means)) if means else float(max(1, _largest_peak(members)))


def shrink_block_reason(members: Sequence[UsageHistory], now: float) -> str:
    """Why a workload may not shrink, and until when; "" if it may."""
    last = max((trouble for member in members for trouble in _failure_events(member)), default=None)
    if last is None or last.at + BLOCK_SECONDS <= now:
        return ""
    return f"{last.cause} on {_utc_minute(last.at)}, so it stays until {_utc_minute(last.at + BLOCK_SECONDS)}"


def _failure_events(member: UsageHistory) -> list[FailureEvent]:
    killed = [FailureEvent(at, "it ran out of memory") for at in member.ooms]
    return killed + [
        FailureEvent(at, f"its GPU reported XID {code}") for at, code in member.xids if code in APPLICATION_XIDS
    ]


def _utc_minute(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")


def has_flat_usage(history: UsageHistory) -> bool:
    """Does it hold nearly the whole card and never give any back?"""
    if not history.capacity_mib or history.peak_mib < FULL_SHARE * history.capacity_mib:
        return False
    peaks = history.readings()
    seen = peaks[peaks > GAP]
    return seen.size >= MIN_FLAT_BINS and bool(np.median(seen) >= FLAT_SHARE * seen.max())


def workload_idle_until(members: Sequence[UsageHistory]) -> int:
    """Unix seconds until which no engine was active under any pod; 0 where one was, or no profiling field told."""
    active = [member.active_milli for member in members]
    if any(each is None or each >= IDLE_BELOW for each in active):
        return 0
    return max(member.observed_until for member in members)
