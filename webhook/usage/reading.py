"""From a Prometheus to histories: which metrics there are, how far back and how finely they are read, and by whom.

Memory comes in bins, a part of the time at once, so that no answer is large. What is one figure a container is asked
for the whole time. Everything is read by Prometheus' own clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from webhook.errors import UsageError
from webhook.report.words import count
from webhook.usage import queries
from webhook.usage.history import GAP, MIB_ARRAY, History
from webhook.usage.owners import Owners, read_images, read_owners
from webhook.usage.prometheus import NARROW, SERIES_MOST, Prometheus, Series, number
from webhook.usage.queries import Device, Form
from webhook.usage.seen import (
    PodKey,
    Seen,
    Span,
    any_seen,
    code,
    history,
    key_of,
    moments,
    put,
    take_active,
    take_capacity,
    take_mean,
    take_percent,
    take_share,
    tells,
)
from webhook.usage.source import DAY, HOUR

STEPS = (900, 1800, HOUR, 2 * HOUR, 4 * HOUR)
"""Lengths of a bin: the first that keeps the whole within `POINTS_MOST`."""

POINTS_MOST = 4_000_000
"""Bins of all containers together: 20,000 containers over a week by the hour."""

POINTS_AT_ONCE = 250_000
"""Bins in one answer: about 6 MiB of JSON."""

BINS_AT_ONCE = 2_000
"""Prometheus gives at most 11,000."""

CONTAINERS_MOST = 200_000
"""Of all pods that there were, each of which has its bins in memory here."""

SKEW_TOLD = 60.0
SKEW_MOST = DAY


class Reading(NamedTuple):
    """What was read: histories, the moment by Prometheus' clock, and what there is to say about them."""

    histories: list[History]
    now: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """How much it is: `asyncio.run` asks for this text when it is done, and all of it is 15 MiB."""
        return f"{type(self).__name__}({len(self.histories)} histories, now={self.now}, notes={self.notes})"


async def read(prometheus: Prometheus, clock: Callable[[], float]) -> Reading:
    """Read everything. Takes the time it takes: a deadline is the caller's.

    Args:
        prometheus: Whom to ask.
        clock: Our own, Unix seconds.

    Raises:
        UsageError: Prometheus does not answer, or not with what can be used; says what must hold.
    """
    now = await prometheus.now()
    notes = _notes_on_clock(now, clock())
    source = prometheus.source
    back = now - source.days * DAY
    devices = await _devices(prometheus, back, now)
    span = await _span(prometheus, devices, now)
    seen: dict[PodKey, Seen] = {}
    for device in devices:
        await _read_device(prometheus, device, span, seen)
    form = await _form_of_owners(prometheus, back, now)
    if form is None:
        notes.append(f"{queries.POD_OWNER} has no series: use is kept by pod, which no new pod can be known by. {KSM}")
        owners, images = Owners(), {}
    else:
        await _read_kills(prometheus, form, span, seen)
        _bound(prometheus, seen)
        pods = {pod for _, pod, _ in seen}
        owners = await read_owners(prometheus, form, pods, span.now, span.window)
        images = await read_images(prometheus, form, pods, span.now, span.window)
    notes += _notes_on_faults(seen, devices)
    notes += [f"Prometheus warned: {warning}" for warning in prometheus.warnings]
    made = {key: history(key, one, span, owners, images) for key, one in seen.items() if tells(one)}
    with_gpus = {one.key for key, one in made.items() if seen[key].peaks_mib}
    return Reading([one for one in made.values() if one.key in with_gpus], now, tuple(notes))


KSM = "Install kube-state-metrics, with kube_pod_owner, kube_replicaset_owner and kube_job_owner among its metrics"


def _notes_on_clock(now: float, ours: float) -> list[str]:
    skew = now - ours
    if abs(skew) > SKEW_MOST:
        raise UsageError(f"Prometheus' clock must be within a day of ours, found {now:.0f} where we have {ours:.0f}")
    if abs(skew) <= SKEW_TOLD:
        return []
    way = "ahead of" if skew > 0 else "behind"
    return [f"Prometheus' clock is {abs(skew):.0f} s {way} ours; use is read by Prometheus' clock"]


async def _devices(prometheus: Prometheus, start: float, end: float) -> list[Device]:
    """The ways in which containers are named here, each with the metrics that name them so."""
    selector = prometheus.source.selector
    found = []
    for form in queries.FORMS:
        matcher = queries.selected("", '__name__=~"DCGM_.+"', form.only, selector)
        names = await prometheus.names(matcher, start, end)
        if queries.FB_USED in names:
            found.append(Device(form, frozenset(names), selector))
    if found:
        return found
    any_names = await prometheus.names(queries.selected("", '__name__=~"DCGM_.+"', selector), start, end)
    raise UsageError(f"{prometheus.source.base}: {_why_nothing(any_names)}")


def _why_nothing(names: set[str]) -> str:
    if not names:
        return (
            "must have metrics of DCGM exporter, found none. Have Prometheus scrape it, or mend --prometheus-selector"
        )
    if queries.FB_USED not in names:
        return f"must have {queries.FB_USED}, found only others of DCGM. Add it to the exporter's list of metrics"
    return (
        f"{queries.FB_USED} must say which pod holds a GPU (pod, exported_pod or pod_name), found no such label. "
        "Set DCGM_EXPORTER_KUBERNETES=true on the exporter, and let no relabelling drop the label"
    )


async def _span(prometheus: Prometheus, devices: Sequence[Device], now: float) -> Span:
    """As fine as the number of containers allows."""
    length = prometheus.source.days * DAY
    many = max(1, sum([await _most(prometheus, device, now, length) for device in devices]))
    if many > SERIES_MOST:
        raise UsageError(
            f"{prometheus.source.base}: must have at most {SERIES_MOST} containers with GPUs at once, "
            f"found {many}. {NARROW}"
        )
    step = next((step for step in STEPS if many * (length // step) <= POINTS_MOST), STEPS[-1])
    end = int(now) // step * step
    bins = length // step
    return Span(end - bins * step, end, step, min(bins, BINS_AT_ONCE, max(1, POINTS_AT_ONCE // many)), int(now))


async def _most(prometheus: Prometheus, device: Device, now: float, length: int) -> int:
    """The most containers that used GPUs at one moment, of some moments."""
    counted = await prometheus.range(queries.many(device), now - length, now, max(HOUR, length // 48))
    values = (number(value) for series in counted for _, value in series.values)
    return int(max((value for value in values if value is not None), default=0))


async def _read_device(prometheus: Prometheus, device: Device, span: Span, seen: dict[PodKey, Seen]) -> None:
    await _read_peaks(prometheus, device, span, seen)
    window = span.window

    async def each(query: str, take: Callable[[Seen, Series, float], None]) -> None:
        for series in await prometheus.instant(query, span.now):
            one, value = seen.get(key_of(series, device.form)), number(series.value[1]) if series.value else None
            if one is not None and value is not None:
                take(one, series, value)

    await each(queries.mean(device, window), take_mean)
    if device.has(queries.FB_FREE):
        await each(queries.capacity(device, window), take_capacity)
    if engine := device.has(*queries.ENGINE):
        await each(queries.active(device, engine, window), take_active)
    if busy := device.has(*queries.SM, *queries.ENGINE):
        await each(queries.compute(device, busy, window), take_share)
    elif device.has(queries.GPU_UTIL):
        await each(queries.compute(device, queries.GPU_UTIL, window), take_percent)
    await _read_xids(prometheus, device, span, seen)


async def _read_peaks(prometheus: Prometheus, device: Device, span: Span, seen: dict[PodKey, Seen]) -> None:
    """Memory, a part of the time at once."""
    length = span.at_once * span.step
    for start in range(span.start, span.end, length):
        end = min(span.end, start + length)
        found = await prometheus.range(queries.peaks(device, span.step), start + span.step, end, span.step)
        put(found, span, [_one_of(seen, key_of(series, device.form), span).peaks_mib for series in found])
        _bound(prometheus, seen)


def _bound(prometheus: Prometheus, seen: Mapping[PodKey, Seen]) -> None:
    if len(seen) > CONTAINERS_MOST:
        raise UsageError(
            f"{prometheus.source.base}: must have at most {CONTAINERS_MOST} containers with GPUs "
            f"in {prometheus.source.days} days, found more. {NARROW}"
        )


def _one_of(seen: dict[PodKey, Seen], key: PodKey, span: Span) -> Seen:
    """What was seen of a container that has a GPU."""
    if key not in seen:
        seen[key] = Seen(array(MIB_ARRAY, [GAP]) * span.bins)
    return seen[key]


async def _read_xids(prometheus: Prometheus, device: Device, span: Span, seen: dict[PodKey, Seen]) -> None:
    """Faults of GPUs, by the hour."""
    if last := device.has(*queries.XID):
        for series in await prometheus.range(queries.xids(device, last), span.first_hour, span.now, HOUR):
            one = _one_of(seen, key_of(series, device.form), span)
            one.xids |= {(moment, code(value)) for moment, value in moments(series, span, one)}
    if device.has(queries.XID_COUNT):
        for series in await prometheus.range(queries.counted_xids(device), span.first_hour, span.now, HOUR):
            one = _one_of(seen, key_of(series, device.form), span)
            one.xids |= {(moment, code(series.metric.get("xid", ""))) for moment, _ in moments(series, span, one)}


async def _form_of_owners(prometheus: Prometheus, start: float, end: float) -> Form | None:
    """How kube-state-metrics' labels are called here; None where it has told nothing."""
    for form in (queries.EXPORTED, queries.PLAIN):
        matcher = queries.selected(queries.POD_OWNER, form.only, prometheus.source.selector)
        if await prometheus.names(matcher, start, end):
            return form
    return None


async def _read_kills(prometheus: Prometheus, form: Form, span: Span, seen: dict[PodKey, Seen]) -> None:
    """Containers that were killed for memory: each time they were started again, and the end of those that were not.

    Also those of which nothing else was seen, in namespaces where GPUs are used: one that is killed as soon as it
    starts has no sample of its GPU.
    """
    selector, spaces = prometheus.source.selector, {namespace for namespace, _, _ in seen}
    for query, most in ((queries.restarted_for_memory, None), (queries.ended_for_memory, 1)):
        for series in await prometheus.range(query(form, selector), span.first_hour, span.now, HOUR):
            if (key := key_of(series, form))[0] in spaces:
                one = seen.setdefault(key, Seen(array(MIB_ARRAY)))
                one.ooms |= {moment for moment, _ in moments(series, span, one)[:most]}


def _notes_on_faults(seen: Mapping[PodKey, Seen], devices: Sequence[Device]) -> list[str]:
    """What is missing that would have been of use."""
    notes = []
    held = [one for one in seen.values() if one.peaks_mib]
    if blind := sum(not any_seen(one) for one in held):
        notes.append(
            f"{blind} of {len(held)} containers have no usable reading of memory: "
            "their GPU is shared by time, or the samples are NaN, infinite or negative"
        )
    if astray := sum(one.astray for one in seen.values()):
        what = count(astray, "kill or fault", "kills and faults")
        notes.append(f"{what} at moments that were not asked about: left out")
    if devices and not all(device.has(queries.FB_FREE) for device in devices):
        notes.append(f"{queries.FB_FREE} has no series: a GPU whose memory is not known counts as the largest there is")
    if not any(device.has(*queries.ENGINE) for device in devices):
        notes.append(f"{queries.ENGINE[0]} has no series: idle GPUs are not found. The exporter needs SYS_ADMIN for it")
    return notes
