"""From a Prometheus to histories: which metrics there are, how far back and how finely they are read, and by whom.

Memory comes in bins, a part of the time at once, so that no answer is large. What is one figure a container is asked
for the whole time. Everything is read by Prometheus' own clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from webhook.errors import UsageError
from webhook.report.text import pluralize
from webhook.usage import queries
from webhook.usage.container_samples import (
    ContainerKey,
    ContainerSamples,
    TimeGrid,
    add_activity,
    add_capacity,
    add_compute_share,
    add_gpu_utilization,
    add_mean,
    add_memory_peaks,
    build_history,
    container_key,
    has_evidence,
    has_memory_samples,
    samples_in_range,
    xid_code,
)
from webhook.usage.history import GAP, MIB_TYPECODE, UsageHistory
from webhook.usage.prometheus import MAX_SERIES, NARROW, MetricSeries, PrometheusClient, finite_number
from webhook.usage.prometheus_source import DAY, HOUR
from webhook.usage.queries import DeviceMetrics, LabelScheme
from webhook.usage.workload_owners import OwnerChains, read_container_images, read_owner_chains

BIN_SECONDS = (900, 1800, HOUR, 2 * HOUR, 4 * HOUR)
"""Lengths of a bin: the first that keeps the whole within `MAX_POINTS`."""

MAX_POINTS = 4_000_000
"""Bins of all containers together: 20,000 containers over a week by the hour."""

POINTS_PER_ANSWER = 250_000
"""Bins in one answer: about 6 MiB of JSON."""

BINS_PER_ANSWER = 2_000
"""Prometheus gives at most 11,000."""

MAX_CONTAINERS = 200_000
"""Of all pods that there were, each of which has its bins in memory here."""

SKEW_NOTE_SECONDS = 60.0
MAX_SKEW_SECONDS = DAY


class PrometheusReading(NamedTuple):
    """What was read: histories, the moment by Prometheus' clock, and what there is to say about them."""

    histories: list[UsageHistory]
    now: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """How much it is: `asyncio.run` asks for this text when it is done, and all of it is 15 MiB."""
        return f"{type(self).__name__}({len(self.histories)} histories, now={self.now}, notes={self.notes})"


async def read_histories(prometheus: PrometheusClient, clock: Callable[[], float]) -> PrometheusReading:
    """Read everything. Takes the time it takes: a deadline is the caller's.

    Args:
        prometheus: Whom to ask.
        clock: Our own, Unix seconds.

    Raises:
        UsageError: Prometheus does not answer, or not with what can be used; says what must hold.
    """
    now = await prometheus.server_time()
    notes = _clock_notes(now, clock())
    source = prometheus.source
    back = now - source.days * DAY
    devices = await _find_device_metrics(prometheus, back, now)
    span = await _choose_time_grid(prometheus, devices, now)
    seen: dict[ContainerKey, ContainerSamples] = {}
    for device in devices:
        await _read_device_metrics(prometheus, device, span, seen)
    form = await _find_owner_labels(prometheus, back, now)
    if form is None:
        notes.append(
            f"{queries.POD_OWNER} has no series: use is kept by pod, which no new "
            f"pod can be known by. {KUBE_STATE_METRICS_FIX}"
        )
        owners, images = OwnerChains(), {}
    else:
        await _read_oom_kills(prometheus, form, span, seen)
        _check_container_count(prometheus, seen)
        pods = {pod for _, pod, _ in seen}
        owners = await read_owner_chains(prometheus, form, pods, span.now, span.window)
        images = await read_container_images(prometheus, form, pods, span.now, span.window)
    notes += _data_notes(seen, devices)
    notes += [f"Prometheus warned: {warning}" for warning in prometheus.warnings]
    made = {key: build_history(key, one, span, owners, images) for key, one in seen.items() if has_evidence(one)}
    with_gpus = {one.workload_key for key, one in made.items() if seen[key].peaks_mib}
    return PrometheusReading([one for one in made.values() if one.workload_key in with_gpus], now, tuple(notes))


KUBE_STATE_METRICS_FIX = (
    "Install kube-state-metrics, with kube_pod_owner, kube_replicaset_owner and kube_job_owner among its metrics"
)


def _clock_notes(now: float, ours: float) -> list[str]:
    skew = now - ours
    if abs(skew) > MAX_SKEW_SECONDS:
        raise UsageError(f"Prometheus' clock must be within a day of ours, found {now:.0f} where we have {ours:.0f}")
    if abs(skew) <= SKEW_NOTE_SECONDS:
        return []
    way = "ahead of" if skew > 0 else "behind"
    return [f"Prometheus' clock is {abs(skew):.0f} s {way} ours; use is read by Prometheus' clock"]


async def _find_device_metrics(prometheus: PrometheusClient, start: float, end: float) -> list[DeviceMetrics]:
    """The ways in which containers are named here, each with the metrics that name them so."""
    selector = prometheus.source.selector
    found = []
    for form in queries.LABEL_SCHEMES:
        matcher = queries.metric_selector("", '__name__=~"DCGM_.+"', form.matchers, selector)
        names = await prometheus.metric_names(matcher, start, end)
        if queries.FB_USED in names:
            found.append(DeviceMetrics(form, frozenset(names), selector))
    if found:
        return found
    any_names = await prometheus.metric_names(queries.metric_selector("", '__name__=~"DCGM_.+"', selector), start, end)
    raise UsageError(f"{prometheus.source.base_url}: {_missing_metrics_error(any_names)}")


def _missing_metrics_error(names: set[str]) -> str:
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


async def _choose_time_grid(prometheus: PrometheusClient, devices: Sequence[DeviceMetrics], now: float) -> TimeGrid:
    """As fine as the number of containers allows."""
    length = prometheus.source.days * DAY
    many = max(1, sum([await _max_containers(prometheus, device, now, length) for device in devices]))
    if many > MAX_SERIES:
        raise UsageError(
            f"{prometheus.source.base_url}: must have at most {MAX_SERIES} containers with GPUs at once, "
            f"found {many}. {NARROW}"
        )
    step = next((step for step in BIN_SECONDS if many * (length // step) <= MAX_POINTS), BIN_SECONDS[-1])
    end = int(now) // step * step
    bins = length // step
    return TimeGrid(
        end - bins * step, end, step, min(bins, BINS_PER_ANSWER, max(1, POINTS_PER_ANSWER // many)), int(now)
    )


async def _max_containers(prometheus: PrometheusClient, device: DeviceMetrics, now: float, length: int) -> int:
    """The most containers that used GPUs at one moment, of some moments."""
    counted = await prometheus.query_range(
        queries.container_count_query(device), now - length, now, max(HOUR, length // 48)
    )
    values = (finite_number(value) for series in counted for _, value in series.values)
    return int(max((value for value in values if value is not None), default=0))


async def _read_device_metrics(
    prometheus: PrometheusClient, device: DeviceMetrics, span: TimeGrid, seen: dict[ContainerKey, ContainerSamples]
) -> None:
    await _read_memory_peaks(prometheus, device, span, seen)
    window = span.window

    async def each(query: str, take: Callable[[ContainerSamples, MetricSeries, float], None]) -> None:
        for series in await prometheus.query(query, span.now):
            one, value = (
                seen.get(container_key(series, device.scheme)),
                finite_number(series.value[1]) if series.value else None,
            )
            if one is not None and value is not None:
                take(one, series, value)

    await each(queries.mean_memory_query(device, window), add_mean)
    if device.first_existing(queries.FB_FREE):
        await each(queries.memory_capacity_query(device, window), add_capacity)
    if engine := device.first_existing(*queries.ENGINE):
        await each(queries.engine_activity_query(device, engine, window), add_activity)
    if busy := device.first_existing(*queries.SM, *queries.ENGINE):
        await each(queries.compute_query(device, busy, window), add_compute_share)
    elif device.first_existing(queries.GPU_UTIL):
        await each(queries.compute_query(device, queries.GPU_UTIL, window), add_gpu_utilization)
    await _read_xid_errors(prometheus, device, span, seen)


async def _read_memory_peaks(
    prometheus: PrometheusClient, device: DeviceMetrics, span: TimeGrid, seen: dict[ContainerKey, ContainerSamples]
) -> None:
    """Memory, a part of the time at once."""
    length = span.bins_per_answer * span.step
    for start in range(span.start, span.end, length):
        end = min(span.end, start + length)
        found = await prometheus.query_range(
            queries.peak_memory_query(device, span.step), start + span.step, end, span.step
        )
        add_memory_peaks(
            found, span, [_samples_of(seen, container_key(series, device.scheme), span).peaks_mib for series in found]
        )
        _check_container_count(prometheus, seen)


def _check_container_count(prometheus: PrometheusClient, seen: Mapping[ContainerKey, ContainerSamples]) -> None:
    if len(seen) > MAX_CONTAINERS:
        raise UsageError(
            f"{prometheus.source.base_url}: must have at most {MAX_CONTAINERS} containers with GPUs "
            f"in {prometheus.source.days} days, found more. {NARROW}"
        )


def _samples_of(seen: dict[ContainerKey, ContainerSamples], key: ContainerKey, span: TimeGrid) -> ContainerSamples:
    """What was seen of a container that has a GPU."""
    if key not in seen:
        seen[key] = ContainerSamples(array(MIB_TYPECODE, [GAP]) * span.bin_count)
    return seen[key]


async def _read_xid_errors(
    prometheus: PrometheusClient, device: DeviceMetrics, span: TimeGrid, seen: dict[ContainerKey, ContainerSamples]
) -> None:
    """Faults of GPUs, by the hour."""
    if last := device.first_existing(*queries.XID):
        for series in await prometheus.query_range(
            queries.last_xid_query(device, last), span.first_hour, span.now, HOUR
        ):
            one = _samples_of(seen, container_key(series, device.scheme), span)
            one.xids |= {(moment, xid_code(value)) for moment, value in samples_in_range(series, span, one)}
    if device.first_existing(queries.XID_COUNT):
        for series in await prometheus.query_range(queries.xid_count_query(device), span.first_hour, span.now, HOUR):
            one = _samples_of(seen, container_key(series, device.scheme), span)
            one.xids |= {
                (moment, xid_code(series.metric.get("xid", ""))) for moment, _ in samples_in_range(series, span, one)
            }


async def _find_owner_labels(prometheus: PrometheusClient, start: float, end: float) -> LabelScheme | None:
    """How kube-state-metrics' labels are called here; None where it has told nothing."""
    for form in (queries.EXPORTED_LABELS, queries.PLAIN_LABELS):
        matcher = queries.metric_selector(queries.POD_OWNER, form.matchers, prometheus.source.selector)
        if await prometheus.metric_names(matcher, start, end):
            return form
    return None


async def _read_oom_kills(
    prometheus: PrometheusClient, form: LabelScheme, span: TimeGrid, seen: dict[ContainerKey, ContainerSamples]
) -> None:
    """Containers that were killed for memory: each time they were started again, and the end of those that were not.

    Also those of which nothing else was seen, in namespaces where GPUs are used: one that is killed as soon as it
    starts has no sample of its GPU.
    """
    selector, spaces = prometheus.source.selector, {namespace for namespace, _, _ in seen}
    for query, most in ((queries.oom_restart_query, None), (queries.oom_termination_query, 1)):
        for series in await prometheus.query_range(query(form, selector), span.first_hour, span.now, HOUR):
            if (key := container_key(series, form))[0] in spaces:
                one = seen.setdefault(key, ContainerSamples(array(MIB_TYPECODE)))
                one.ooms |= {moment for moment, _ in samples_in_range(series, span, one)[:most]}


def _data_notes(seen: Mapping[ContainerKey, ContainerSamples], devices: Sequence[DeviceMetrics]) -> list[str]:
    """What is missing that would have been of use."""
    notes = []
    held = [one for one in seen.values() if one.peaks_mib]
    if blind := sum(not has_memory_samples(one) for one in held):
        notes.append(
            f"{blind} of {len(held)} containers have no usable reading of memory: "
            "their GPU is shared by time, or the samples are NaN, infinite or negative"
        )
    if astray := sum(one.out_of_range for one in seen.values()):
        what = pluralize(astray, "kill or fault", "kills and faults")
        notes.append(f"{what} at moments that were not asked about: left out")
    if devices and not all(device.first_existing(queries.FB_FREE) for device in devices):
        notes.append(f"{queries.FB_FREE} has no series: a GPU whose memory is not known counts as the largest there is")
    if not any(device.first_existing(*queries.ENGINE) for device in devices):
        notes.append(f"{queries.ENGINE[0]} has no series: idle GPUs are not found. The exporter needs SYS_ADMIN for it")
    return notes
