"""Estimate a `UsageView` from recorded usage: for each container, the risk that it needs more than each size.

Admission chooses a size once for a pod's whole life, and a new pod has no past to compare with, so windows are weighted
by recency only. docs/rightsizing.md has the method, its validation and its limits. Workloads that were killed for
memory, or whose GPU reported an error, are blocked from shrinking for a week; idle workloads and those that preallocate
memory are marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

import numpy as np

from webhook.model.usage import CERTAIN_PPM, IDLE_BELOW, RISKS_PPM, ObservedUsage, UsageView
from webhook.usage.evidence_pools import (
    HOUR,
    PRIOR_WINDOWS,
    EvidencePool,
    OverrunCounter,
    PoolChoice,
    PoolIndex,
    SizeGrid,
    WindowSpan,
    build_size_grid,
    cheapest_limits,
    fleet_tail,
    hourly_probability,
    peak_distribution,
    recency_weights,
    thin_span,
)
from webhook.usage.history import GAP, Floats, UsageHistory

BLOCK_SECONDS = 7 * 86_400
"""A week after the last failure, to see one weekly cycle."""

APPLICATION_XIDS = frozenset({11, 13, 25, 31, 32, 43, 45, 109})
"""Errors of applications: invalid instructions, exceptions, page faults, and channels stopped because of them. Other
XIDs are errors of the device."""


FULL_SHARE = 0.85
"""Share of the card from which usage may be preallocation."""

FLAT_SHARE = 0.97
"""Share of the peak that the median reaches if usage is flat."""

MIN_FLAT_BINS = 8
"""Fewest bins to call usage flat."""


HALF_LIFE_SECONDS = 48 * HOUR
"""Age at which a window has half the weight: Autopilot's value for memory."""

TARGETS_PPM = (500, 1000, 2500, 5000, 10_000, 20_000, 40_000)
"""Risks for which a price is computed."""

BACKTEST_LIMITS = 400
"""Past limits to recompute, to count how often they were overrun."""

LARGEST_CARD_MIB = 192 << 10
"""Assumed memory of a GPU whose memory is unknown."""

PODS_PER_BATCH = 128
"""Pods whose windows are computed together."""

ROUNDING_ERROR = 1e-12
"""Tolerance for rounding in probabilities."""

_LEVELS = 1 - np.array(RISKS_PPM) / CERTAIN_PPM - ROUNDING_ERROR


WorkloadKey = tuple[str, str, str]
"""Namespace, workload and container."""


class PeakForecast(NamedTuple):
    """Estimate for one container: its pool, and the probability to stay below each size for an hour."""

    pool: EvidencePool
    grid: SizeGrid
    below: Floats


def estimate_usage(histories: Iterable[UsageHistory], now: float) -> UsageView:
    """Estimate the usage of all workloads.

    Args:
        histories: One per container and pod, all with bins of one length, none later than `now`.
        now: Unix seconds.
    """
    all_histories = list(histories)
    sampled = [history for history in all_histories if not history.lacks_readings]
    pools = PoolIndex(sampled, now)
    workloads, members = _group_by_workload(sampled), _group_by_workload(all_histories)
    overruns, observed = OverrunCounter(), {}
    often = max(1, len(workloads) // BACKTEST_LIMITS)
    for index, (key, forecast) in enumerate(_forecast_workloads(workloads, pools, now)):
        observed[key] = _observed_usage(workloads[key], members[key], forecast, now)
        if forecast is not None and index % often == 0:
            _count_overruns(forecast, pools, overruns, most=max(1, BACKTEST_LIMITS // len(workloads)))
    return UsageView(
        observed
        | {key: _observed_usage(some, some, None, now) for key, some in members.items() if key not in observed},
        tuple((target, round(1000 * overruns.least_price(target / CERTAIN_PPM))) for target in TARGETS_PPM),
    )


def _group_by_workload(histories: Iterable[UsageHistory]) -> dict[WorkloadKey, list[UsageHistory]]:
    workloads: dict[WorkloadKey, list[UsageHistory]] = {}
    for history in histories:
        workloads.setdefault(history.workload_key, []).append(history)
    return workloads


def _forecast_workloads(
    workloads: Mapping[WorkloadKey, Sequence[UsageHistory]], pools: PoolIndex, now: float
) -> Iterator[tuple[WorkloadKey, PeakForecast | None]]:
    for some in _workload_batches(workloads):
        for (key, members), choice in zip(some, pools.choose_pools([members for _, members in some]), strict=True):
            yield key, _forecast_workload(members, choice, pools, now) if choice else None


def _workload_batches(
    workloads: Mapping[WorkloadKey, Sequence[UsageHistory]],
) -> Iterator[list[tuple[WorkloadKey, Sequence[UsageHistory]]]]:
    """Yield workloads in batches, so that memory for windows does not grow with the fleet."""
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
    members: Sequence[UsageHistory], choice: PoolChoice, pools: PoolIndex, now: float
) -> PeakForecast:
    card = _card_memory(members)
    grid = build_size_grid(min(_typical_memory(members), card), card)
    below = _chance_below(choice.nearest, pools, grid, now)
    own = choice.own
    # Its own windows are too few, or so old that they weigh less than the fleet's tail.
    if choice.nearest is not own or _span_weights(own.run, now).sum() < PRIOR_WINDOWS:
        by_own_runs, by_own_hours = (_chance_by_newest_window(span, below, grid) for span in (own.run, own.hour))
        below = np.minimum(below, np.minimum(by_own_runs, by_own_hours))
        below[grid.sizes < _largest_peak(members)] = 0
    return PeakForecast(choice.nearest, grid, below)


def _chance_by_newest_window(span: WindowSpan, tail: Floats, grid: SizeGrid) -> Floats:
    """Weight windows relative to the newest one, even if it is old: the workload has no newer usage."""
    windows = span.windows
    if not windows.at.size:
        return tail
    return hourly_probability(
        peak_distribution(windows.after, _span_weights(span, windows.at.max()), tail, grid), span.hours
    )


def _chance_below(pool: EvidencePool, pools: PoolIndex, grid: SizeGrid, now: float) -> Floats:
    """Return the probability to stay below each size for an hour: the smaller of those by hours and by runs."""
    hourly = _chance_by_span(pool.hour, pools, grid, now)
    return hourly if pool.run is pool.hour else np.minimum(hourly, _chance_by_span(pool.run, pools, grid, now))


def _chance_by_span(span: WindowSpan, pools: PoolIndex, grid: SizeGrid, now: float) -> Floats:
    tail = fleet_tail(pools.fleet_peaks(span.hours, now), grid)
    return hourly_probability(peak_distribution(span.windows.after, _span_weights(span, now), tail, grid), span.hours)


def _span_weights(span: WindowSpan, now: float) -> Floats:
    return recency_weights(span.windows, now, max(HALF_LIFE_SECONDS, span.hours * HOUR))


def _count_overruns(forecast: PeakForecast, pools: PoolIndex, overruns: OverrunCounter, most: int) -> None:
    """Recompute limits at past times from what was known then, and count the hours that overran them."""
    pool = forecast.pool.map_spans(thin_span)
    for index in range(pool.size - 1, pool.size // 2, -max(1, pool.size // 2 // most)):
        at, until = pool.run.windows.at[index], pool.run.windows.until[index]
        known = pool.map_spans(partial(_known_before, at=at))
        peaks = pool.hour.windows.after[(pool.hour.windows.at >= at) & (pool.hour.windows.until <= until)]
        if known.size and peaks.size:
            below = _chance_below(known, pools, forecast.grid, at)
            within_card = np.minimum(peaks, forecast.grid.sizes[-1])
            overruns.add(cheapest_limits(below, forecast.grid), within_card, pool.run.hours)


def _known_before(span: WindowSpan, at: float) -> WindowSpan:
    return span._replace(windows=span.windows.select(slice(0, int(np.searchsorted(span.windows.until, at, "right")))))


def _observed_usage(
    sampled: Sequence[UsageHistory], members: Sequence[UsageHistory], forecast: PeakForecast | None, now: float
) -> ObservedUsage:
    """Summarize a workload: memory of the histories with readings, and failures of all its members."""
    idle = workload_idle_until(members) if forecast else 0
    sizes = np.ceil(forecast.grid.sizes[forecast.below.searchsorted(_LEVELS)]) if forecast else np.empty(0)
    compute = [known for member in sampled if (known := _compute_share(member)) is not None]
    return ObservedUsage(
        memory_mib=_largest_peak(sampled),
        compute_milli=max(compute, default=None),
        samples=forecast.pool.size if forecast else 0,
        preallocates=any(has_flat_usage(member) for member in sampled),
        sizes_mib=tuple(sizes.astype(int).tolist()),
        typical_mib=round(_typical_memory(sampled)),
        card_mib=_card_memory(sampled),
        horizon_hours=max(1, round(forecast.pool.run.hours)) if forecast else 1,
        pool=forecast.pool.name if forecast else "workload",
        idle_until=idle,
        idle_pods=tuple(member.pod for member in members) if idle else (),
        blocked_reason=shrink_block_reason(members, now),
    )


def _largest_peak(members: Sequence[UsageHistory]) -> int:
    return max(member.peak_mib for member in members)


def _compute_share(member: UsageHistory) -> int | None:
    """Return the compute usage, or else the largest engine activity as an upper bound."""
    return member.active_milli if member.compute_milli is None else member.compute_milli


def _card_memory(members: Sequence[UsageHistory]) -> int:
    """Return the memory of the GPU; if it is unknown or smaller than a peak, that of the largest GPU."""
    known, peak = max(member.capacity_mib or 0 for member in members), _largest_peak(members)
    return known if known and known >= peak else max(LARGEST_CARD_MIB, peak)


def _typical_memory(members: Sequence[UsageHistory]) -> float:
    means = [member.mean_mib for member in members if member.mean_mib is not None]
    return max(1.0, sum(means) / len(means)) if means else float(max(1, _largest_peak(members)))


def shrink_block_reason(members: Sequence[UsageHistory], now: float) -> str:
    """Return why a workload must not shrink, and until when; "" if it may."""
    failures = [(at, "it ran out of memory") for member in members for at in member.ooms] + [
        (at, f"its GPU reported XID {code}")
        for member in members
        for at, code in member.xids
        if code in APPLICATION_XIDS
    ]
    at, cause = max(failures, default=(0, ""))
    if not cause or at + BLOCK_SECONDS <= now:
        return ""
    return f"{cause} on {_utc_minute(at)}, so it is not right-sized until {_utc_minute(at + BLOCK_SECONDS)}"


def _utc_minute(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%MZ")


def has_flat_usage(history: UsageHistory) -> bool:
    """Return True if usage is nearly the whole card and constant, as of frameworks that preallocate."""
    if not history.capacity_mib or history.peak_mib < FULL_SHARE * history.capacity_mib:
        return False
    peaks = history.readings()
    sampled = peaks[peaks > GAP]
    return sampled.size >= MIN_FLAT_BINS and bool(np.median(sampled) >= FLAT_SHARE * sampled.max())


def workload_idle_until(members: Sequence[UsageHistory]) -> int:
    """Return when a workload was last observed idle, Unix seconds; 0 if an engine was active or activity is unknown."""
    active = [member.active_milli for member in members]
    if any(each is None or each >= IDLE_BELOW for each in active):
        return 0
    return max(member.observed_until for member in members)
