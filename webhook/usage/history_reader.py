"""Read usage histories from a Prometheus.

Memory is read in bins, a part of the period per request, so that no answer is large. Values that are one figure per
container are read for the whole period. All times are by Prometheus' clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from webhook.errors import UsageError
from webhook.report.text import pluralize
from webhook.usage import queries
from webhook.usage.container_samples import (
    ContainerKey,
    ContainerSamples,
    OwnerChains,
    TimeGrid,
    add_memory_peaks,
    build_history,
    compute_milli,
    container_key,
    has_memory_samples,
    larger_amount,
    read_container_images,
    read_owner_chains,
    samples_in_range,
    xid_code,
)
from webhook.usage.history import GAP, MAX_GPUS, MIB_TYPECODE, UsageHistory
from webhook.usage.prometheus import MAX_SERIES, NARROW, PrometheusClient, finite_number
from webhook.usage.prometheus_source import DAY, HOUR
from webhook.usage.queries import DeviceMetrics, LabelScheme

BIN_SECONDS = (900, 1800, HOUR, 2 * HOUR, 4 * HOUR)
"""Lengths of a bin; the first that keeps all bins within `MAX_POINTS` is used."""

MAX_POINTS = 4_000_000
"""Limit of bins of all containers: 20,000 containers over a week with bins of an hour."""

POINTS_PER_ANSWER = 250_000
"""Limit of bins in one answer: about 6 MiB of JSON."""

BINS_PER_ANSWER = 2_000
"""Limit of steps in one answer; Prometheus returns at most 11,000."""

MAX_CONTAINERS = 200_000
"""Limit of containers of all pods in the period, whose bins are all in memory."""

Containers = dict[ContainerKey, ContainerSamples]

SKEW_NOTE_SECONDS = 60.0
MAX_SKEW_SECONDS = DAY


KUBE_STATE_METRICS_FIX = (
    "Install kube-state-metrics with the metrics kube_pod_owner, kube_replicaset_owner and kube_job_owner"
)


class PrometheusReading(NamedTuple):
    """The histories, the time by Prometheus' clock, and notes about them."""

    histories: list[UsageHistory]
    now: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a short text: `asyncio.run` formats its result, which would be 15 MiB."""
        return f"{type(self).__name__}({len(self.histories)} histories, now={self.now}, notes={self.notes})"


async def read_histories(prometheus: PrometheusClient, clock: Callable[[], float]) -> PrometheusReading:
    """Read everything, without a deadline.

    Args:
        clock: The local clock, Unix seconds.

    Raises:
        UsageError: Prometheus does not answer, or its data cannot be used; says what must be true.
    """
    now = await prometheus.server_time()
    notes = _clock_notes(now, clock())
    source = prometheus.source
    back = now - source.days * DAY
    devices = await _find_device_metrics(prometheus, back, now)
    grid = await _choose_time_grid(prometheus, devices, now)
    containers: Containers = {}
    for device in devices:
        await _read_device_metrics(prometheus, device, grid, containers)
    scheme = await _find_owner_labels(prometheus, back, now)
    if scheme is None:
        notes.append(
            f"{queries.POD_OWNER} has no series: usage is stored by pod name, which never matches a new pod. "
            f"{KUBE_STATE_METRICS_FIX}"
        )
        owners, images = OwnerChains(), {}
    else:
        await _read_oom_kills(prometheus, scheme, grid, containers)
        _check_container_count(prometheus, containers)
        pods = {pod for _, pod, _ in containers}
        owners = await read_owner_chains(prometheus, scheme, pods, grid.now, grid.window)
        images = await read_container_images(prometheus, scheme, pods, grid.now, grid.window)
    notes += _data_notes(containers, devices)
    notes += [f"Prometheus warned: {warning}" for warning in prometheus.warnings]
    histories = {
        key: build_history(key, samples, grid, owners, images)
        for key, samples in containers.items()
        if has_memory_samples(samples) or samples.ooms or any(xid for _, xid in samples.xids)
    }
    with_gpus = {history.workload_key for key, history in histories.items() if containers[key].peaks_mib}
    kept = [history for history in histories.values() if history.workload_key in with_gpus]
    return PrometheusReading(kept, now, tuple(notes))


def _clock_notes(now: float, local: float) -> list[str]:
    skew = now - local
    if abs(skew) > MAX_SKEW_SECONDS:
        raise UsageError(f"Prometheus' clock must be within a day of the local one, found {now:.0f} and {local:.0f}")
    if abs(skew) <= SKEW_NOTE_SECONDS:
        return []
    way = "ahead of" if skew > 0 else "behind"
    return [f"Prometheus' clock is {abs(skew):.0f} s {way} the local one; usage is read by Prometheus' clock"]


async def _find_device_metrics(prometheus: PrometheusClient, start: float, end: float) -> list[DeviceMetrics]:
    """Return the GPU metrics that exist, for each label scheme in use."""
    selector = prometheus.source.selector
    found = []
    for scheme in queries.LABEL_SCHEMES:
        matcher = queries.metric_selector("", '__name__=~"DCGM_.+"', scheme.matchers, selector)
        names = await prometheus.metric_names(matcher, start, end)
        if queries.FB_USED in names:
            found.append(DeviceMetrics(scheme, frozenset(names), selector))
    if found:
        return found
    any_names = await prometheus.metric_names(queries.metric_selector("", '__name__=~"DCGM_.+"', selector), start, end)
    raise UsageError(f"{prometheus.source.base_url}: {_missing_metrics_error(any_names)}")


def _missing_metrics_error(names: set[str]) -> str:
    if not names:
        return "must have metrics of DCGM exporter, found none. Have Prometheus scrape it, or fix --prometheus-selector"
    if queries.FB_USED not in names:
        return f"must have {queries.FB_USED}, found only other DCGM metrics. Add it to the exporter's list of metrics"
    return (
        f"{queries.FB_USED} must have a label with the pod (pod, exported_pod or pod_name), found none. "
        "Set DCGM_EXPORTER_KUBERNETES=true on the exporter, and check that no relabeling drops the label"
    )


async def _choose_time_grid(prometheus: PrometheusClient, devices: Sequence[DeviceMetrics], now: float) -> TimeGrid:
    """Choose the smallest bins that the number of containers allows."""
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
    """Return the largest number of containers with GPUs at any of 48 times or more."""
    query = f"count(group by ({device.scheme.labels}) ({device.select(queries.FB_USED)}))"
    counted = await prometheus.query_range(query, now - length, now, max(HOUR, length // 48))
    values = (finite_number(value) for series in counted for _, value in series.values)
    return int(max((value for value in values if value is not None), default=0))


async def _read_device_metrics(
    prometheus: PrometheusClient, device: DeviceMetrics, grid: TimeGrid, containers: Containers
) -> None:
    await _read_memory_peaks(prometheus, device, grid, containers)
    window = grid.window

    async def read_values(query: str) -> list[tuple[ContainerSamples, dict[str, str], float]]:
        values = []
        for series in await prometheus.query(query, grid.now):
            samples = containers.get(container_key(series, device.scheme))
            value = finite_number(series.value[1]) if series.value else None
            if samples is not None and value is not None:
                values.append((samples, series.metric, value))
        return values

    for samples, _, value in await read_values(
        queries.container_query("avg_over_time(", device, queries.FB_USED, window)
    ):
        samples.mean_mib = larger_amount(samples.mean_mib, value)
    for samples, _, value in await read_values(queries.gpu_count_query(device, window)):
        samples.gpus = larger_amount(samples.gpus, value, most=MAX_GPUS) or 1
    if device.first_existing(queries.FB_FREE):
        for samples, _, value in await read_values(queries.memory_capacity_query(device, window)):
            samples.capacity_mib = larger_amount(samples.capacity_mib, value)
    if engine := device.first_existing(*queries.ENGINE):
        for samples, _, value in await read_values(queries.container_query("max_over_time(", device, engine, window)):
            samples.active_milli = larger_amount(samples.active_milli, 1000 * value, most=1000)
    if busy := device.first_existing(*queries.SM, *queries.ENGINE, queries.GPU_UTIL):
        quantile = "quantile_over_time(0.95, "
        query = queries.container_query(quantile, device, busy, window, "modelName", "GPU_I_PROFILE")
        for samples, labels, value in await read_values(query):
            milli = compute_milli(busy, value, labels.get("modelName", ""), labels.get("GPU_I_PROFILE", ""))
            samples.compute_milli = larger_amount(samples.compute_milli, milli, most=1000)
    await _read_xid_errors(prometheus, device, grid, containers)


async def _read_memory_peaks(
    prometheus: PrometheusClient, device: DeviceMetrics, grid: TimeGrid, containers: Containers
) -> None:
    """Read memory, a part of the period per request."""
    length = grid.bins_per_answer * grid.step
    for start in range(grid.start, grid.end, length):
        end = min(grid.end, start + length)
        query = queries.peak_memory_query(device, grid.step)
        found = await prometheus.query_range(query, start + grid.step, end, grid.step)
        bins = [_samples_of(containers, container_key(series, device.scheme), grid).peaks_mib for series in found]
        add_memory_peaks(found, grid, bins)
        _check_container_count(prometheus, containers)


def _check_container_count(prometheus: PrometheusClient, containers: Containers) -> None:
    if len(containers) > MAX_CONTAINERS:
        raise UsageError(
            f"{prometheus.source.base_url}: must have at most {MAX_CONTAINERS} containers with GPUs "
            f"in {prometheus.source.days} days, found more. {NARROW}"
        )


def _samples_of(containers: Containers, key: ContainerKey, grid: TimeGrid) -> ContainerSamples:
    if key not in containers:
        containers[key] = ContainerSamples(array(MIB_TYPECODE, [GAP]) * grid.bin_count)
    return containers[key]


async def _read_xid_errors(
    prometheus: PrometheusClient, device: DeviceMetrics, grid: TimeGrid, containers: Containers
) -> None:
    if last := device.first_existing(*queries.XID):
        query = queries.last_xid_query(device, last)
        for series in await prometheus.query_range(query, grid.first_hour, grid.now, HOUR):
            samples = _samples_of(containers, container_key(series, device.scheme), grid)
            samples.xids |= {(moment, xid_code(value)) for moment, value in samples_in_range(series, grid, samples)}
    if device.first_existing(queries.XID_COUNT):
        reported = f"max_over_time({device.select(queries.XID_COUNT)}[{queries.HOUR}])"
        query = f"max by ({device.scheme.labels}, xid) ({reported}) > 0"
        for series in await prometheus.query_range(query, grid.first_hour, grid.now, HOUR):
            samples = _samples_of(containers, container_key(series, device.scheme), grid)
            code = xid_code(series.metric.get("xid", ""))
            samples.xids |= {(moment, code) for moment, _ in samples_in_range(series, grid, samples)}


async def _find_owner_labels(prometheus: PrometheusClient, start: float, end: float) -> LabelScheme | None:
    for scheme in (queries.EXPORTED_LABELS, queries.PLAIN_LABELS):
        matcher = queries.metric_selector(queries.POD_OWNER, scheme.matchers, prometheus.source.selector)
        if await prometheus.metric_names(matcher, start, end):
            return scheme
    return None


async def _read_oom_kills(
    prometheus: PrometheusClient, scheme: LabelScheme, grid: TimeGrid, containers: Containers
) -> None:
    """Read OOM kills: each one that was followed by a restart, and final ones.

    Containers without other samples count too in namespaces with GPU usage: one that is killed as soon as it starts has
    no sample of its GPU.
    """
    selector, namespaces = prometheus.source.selector, {namespace for namespace, _, _ in containers}
    for query, limit in ((queries.oom_restart_query, None), (queries.oom_termination_query, 1)):
        for series in await prometheus.query_range(query(scheme, selector), grid.first_hour, grid.now, HOUR):
            if (key := container_key(series, scheme))[0] in namespaces:
                samples = containers.setdefault(key, ContainerSamples(array(MIB_TYPECODE)))
                samples.ooms |= {moment for moment, _ in samples_in_range(series, grid, samples)[:limit]}


def _data_notes(containers: Containers, devices: Sequence[DeviceMetrics]) -> list[str]:
    notes = []
    with_gpus = [samples for samples in containers.values() if samples.peaks_mib]
    if blind := sum(not has_memory_samples(samples) for samples in with_gpus):
        notes.append(
            f"{blind} of {len(with_gpus)} containers have no valid memory samples: "
            "their GPU is time-sliced, or the samples are NaN, infinite or negative"
        )
    if ignored := sum(samples.out_of_range for samples in containers.values()):
        notes.append(f"{pluralize(ignored, 'OOM kill or XID', 'OOM kills and XIDs')} outside the period ignored")
    if devices and not all(device.first_existing(queries.FB_FREE) for device in devices):
        notes.append(f"{queries.FB_FREE} has no series: GPUs of unknown memory count as the largest that exist")
    if not any(device.first_existing(*queries.ENGINE) for device in devices):
        notes.append(f"{queries.ENGINE[0]} has no series: idle GPUs are not found. The exporter needs SYS_ADMIN for it")
    return notes
