"""Collect the samples of each container from Prometheus series, its workload and its image, and build a `UsageHistory`.

Values are untrusted: NaN, infinite, negative and impossible ones are ignored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil, nan
from typing import NamedTuple

import numpy as np

from webhook.model.mig_catalog import mig_card_spec, mig_profile_spec
from webhook.model.workloads import workload_name
from webhook.usage import queries
from webhook.usage.history import GAP, MAX_FAILURES, MAX_MIB, MIB_TYPECODE, UsageHistory
from webhook.usage.prometheus import MetricSeries, PrometheusClient, Sample, finite_number
from webhook.usage.prometheus_source import HOUR
from webhook.usage.queries import GPU_UTIL, LabelScheme

OwnedKey = tuple[str, str]
"""Namespace and name of a pod, ReplicaSet or Job."""


class ControllerRef(NamedTuple):
    """The controller of an object."""

    kind: str
    name: str


class OwnerChains(NamedTuple):
    """The controllers of pods, ReplicaSets and Jobs that have one."""

    pods: Mapping[OwnedKey, ControllerRef] = {}
    replica_sets: Mapping[OwnedKey, ControllerRef] = {}
    jobs: Mapping[OwnedKey, ControllerRef] = {}

    def workload(self, namespace: str, pod: str) -> str:
        """Return the top-level owner of a pod, such as "Deployment/serve"; "Pod/NAME" if it has none."""
        owner = self.pods.get((namespace, pod))
        if owner is None:
            return f"Pod/{pod}"
        parents = {"ReplicaSet": self.replica_sets, "Job": self.jobs}.get(owner.kind, {})
        return workload_name(*parents.get((namespace, owner.name), owner))


async def read_owner_chains(
    prometheus: PrometheusClient, scheme: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> OwnerChains:
    """Read the owners of pods by name, within a window that ends at a moment.

    Raises:
        UsageError: See `PrometheusClient.query`.
    """
    selector = prometheus.source.selector

    async def read_owners(
        metric: str, form: LabelScheme, label: str, names: Iterable[str]
    ) -> dict[OwnedKey, ControllerRef]:
        owners: dict[OwnedKey, ControllerRef] = {}
        for query in queries.queries_by_name(metric, form, label, names, selector, window, "owner_kind, owner_name"):
            for series in await prometheus.query(query, moment):
                labels = series.metric
                kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
                if kind and name and not kind.startswith("<"):
                    owners[labels.get(form.namespace, ""), labels.get(label, "")] = ControllerRef(kind, name)
        return owners

    direct = await read_owners(queries.POD_OWNER, scheme, scheme.pod, pods)
    any_series = scheme._replace(matchers="")
    replica_set_names = {owner.name for owner in direct.values() if owner.kind == "ReplicaSet"}
    replica_sets = await read_owners("kube_replicaset_owner", any_series, "replicaset", replica_set_names)
    job_names = {owner.name for owner in direct.values() if owner.kind == "Job"}
    return OwnerChains(direct, replica_sets, await read_owners("kube_job_owner", any_series, "job_name", job_names))


async def read_container_images(
    prometheus: PrometheusClient, scheme: LabelScheme, pods: Iterable[str], moment: float, window: str
) -> dict[tuple[str, str, str], str]:
    """Read the image of each container of pods by name.

    Raises:
        UsageError: See `PrometheusClient.query`.
    """
    images = {}
    also, selector = f"{scheme.container}, image", prometheus.source.selector
    for query in queries.queries_by_name(queries.POD_INFO, scheme, scheme.pod, pods, selector, window, also):
        for series in await prometheus.query(query, moment):
            labels = series.metric
            key = labels.get(scheme.namespace, ""), labels.get(scheme.pod, ""), labels.get(scheme.container, "")
            images[key] = labels.get("image", "")
    return images


ContainerKey = tuple[str, str, str]
"""Namespace, pod and container."""


class TimeGrid(NamedTuple):
    """The period to read, by Prometheus' clock.

    Attributes:
        start, end: Unix seconds, multiples of the step.
        step: Seconds of a bin.
        now: The present, after the end of the last whole bin.
    """

    start: int
    end: int
    step: int
    bins_per_answer: int
    now: int

    @property
    def bin_count(self) -> int:
        """The number of bins."""
        return (self.end - self.start) // self.step

    @property
    def first_hour(self) -> int:
        """The end of the first hour, counted back from now."""
        return self.now - (self.now - self.start - HOUR) // HOUR * HOUR

    @property
    def window(self) -> str:
        """The whole period until now, in PromQL."""
        return f"{self.now - self.start}s"


@dataclass(slots=True)
class ContainerSamples:
    """The samples of one container so far."""

    peaks_mib: array[int]
    mean_mib: int | None = None
    capacity_mib: int | None = None
    compute_milli: int | None = None
    active_milli: int | None = None
    gpus: int = 1
    ooms: set[int] = field(default_factory=set)
    xids: set[tuple[int, int]] = field(default_factory=set)
    out_of_range: int = 0
    """Number of kills and XIDs with times outside the period."""


def samples_in_range(series: MetricSeries, grid: TimeGrid, samples: ContainerSamples) -> list[tuple[int, str]]:
    """Return the samples within the period (Unix seconds), and count the others."""
    within = [(int(moment), text) for moment, text in series.values if grid.start <= moment <= grid.now]
    samples.out_of_range += len(series.values) - len(within)
    return within


def add_memory_peaks(series: Sequence[MetricSeries], grid: TimeGrid, bins: Sequence[array[int]]) -> None:
    """Write each series into its bins. Samples with other times and invalid values are ignored.

    All series are processed together: one by one, this was most of the cost of a load.
    """
    counts = [len(each.values) for each in series]
    samples = list(chain.from_iterable([each.values for each in series]))
    moments = np.fromiter((moment for moment, _ in samples), float, len(samples))
    readings = np.fromiter(map(_sample_value, samples), float, len(samples))
    index = (moments - grid.start) / grid.step
    usable = (
        (index == np.floor(index)) & (index > 0) & (index <= grid.bin_count) & (readings >= 0) & (readings <= MAX_MIB)
    )
    owner = np.repeat(np.arange(len(series)), counts)[usable].tolist()
    at = (index[usable].astype(int) - 1).tolist()
    for one, place, peak in zip(owner, at, np.ceil(readings[usable]).astype(int).tolist(), strict=True):
        if peak > bins[one][place]:
            bins[one][place] = peak


def _sample_value(sample: Sample) -> float:
    try:
        return float(sample[1])
    except ValueError:
        return nan


def container_key(series: MetricSeries, form: LabelScheme) -> ContainerKey:
    """Return the container that a series belongs to."""
    labels = series.metric
    return labels.get(form.namespace, ""), labels.get(form.pod, ""), labels.get(form.container, "")


def xid_code(text: str) -> int:
    """Parse an XID; 0 if it is invalid."""
    value = finite_number(text)
    return int(value) if value is not None and 0 < value < 10_000 else 0


def compute_milli(metric: str, value: float, product: str, profile: str) -> float:
    """Convert compute usage to thousandths of the card; NaN if that is impossible.

    `GPU_UTIL` is meaningless for MIG instances, and overstates the usage of cards, which is safe. Other metrics are
    relative to the MIG instance.
    """
    if metric == GPU_UTIL:
        return nan if profile else 10 * value
    share = multiprocessor_share(product, profile)
    return nan if share is None else 1000 * value * share


def multiprocessor_share(product: str, profile: str) -> float | None:
    """Return a MIG profile's share of the card's multiprocessors; 1 for the whole card, None if unknown.

    >>> multiprocessor_share("NVIDIA A100-SXM4-40GB", "3g.20gb")
    0.3888888888888889
    """
    if not profile:
        return 1.0
    name = product.replace(" ", "-")
    partition, whole = mig_profile_spec(name, profile), mig_card_spec(name)
    if partition is None or whole is None:
        return None
    if partition.sms and whole.sms:
        return partition.sms / whole.sms
    return int(profile.partition("g")[0]) / whole.compute_slices


def larger_amount(before: int | None, value: float, most: int = MAX_MIB) -> int | None:
    """Return the larger of two amounts, rounded up; an invalid value is ignored."""
    if not 0 <= value <= most * 1.01:
        return before
    return max(before or 0, min(most, ceil(round(value, 6))))  # 0.984 x 1000 is a little more than 984


_MAX_EVENTS_EACH = MAX_FAILURES // 2
"""Only the latest are kept, because they decide for how long shrinking is blocked."""


def has_memory_samples(samples: ContainerSamples) -> bool:
    return max(samples.peaks_mib, default=GAP) > GAP


def build_history(
    key: ContainerKey,
    samples: ContainerSamples,
    grid: TimeGrid,
    owners: OwnerChains,
    images: Mapping[ContainerKey, str],
) -> UsageHistory:
    """Build the history, without the gaps at both ends; one gap remains if there are no readings.

    The mean covers the time until now, and may exceed the peaks of whole bins: it is capped by them.
    """
    namespace, pod, container = key
    first, peaks_mib = _trim_gaps(samples, grid)
    return UsageHistory(
        namespace=namespace,
        workload=owners.workload(namespace, pod),
        container=container,
        pod=pod,
        start=grid.start + first * grid.step,
        step_seconds=grid.step,
        peaks_mib=peaks_mib,
        image=images.get(key, ""),
        mean_mib=None if samples.mean_mib is None or max(peaks_mib) == GAP else min(samples.mean_mib, max(peaks_mib)),
        capacity_mib=samples.capacity_mib,
        compute_milli=samples.compute_milli,
        active_milli=samples.active_milli,
        gpus=samples.gpus,
        ooms=tuple(sorted(samples.ooms)[-_MAX_EVENTS_EACH:]),
        xids=tuple(sorted(event for event in samples.xids if event[1])[-_MAX_EVENTS_EACH:]),
    )


def _trim_gaps(samples: ContainerSamples, grid: TimeGrid) -> tuple[int, array[int]]:
    """Return the index of the first bin with a reading, and the bins from it to the last one."""
    if not has_memory_samples(samples):
        return grid.bin_count - 1, array(MIB_TYPECODE, [GAP])
    sampled = np.flatnonzero(np.frombuffer(samples.peaks_mib, dtype=np.int32) > GAP)
    first, last = int(sampled[0]), int(sampled[-1])
    return first, samples.peaks_mib[first : last + 1]
