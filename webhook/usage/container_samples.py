"""What was seen of each container: series in, a `UsageHistory` out.

Numbers of strangers are judged here: NaN, infinities, negative and impossible amounts count for nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import ceil, nan
from typing import NamedTuple

import numpy as np

from webhook.model.mig_catalogue import mig_card_spec, mig_profile_spec
from webhook.usage.history import GAP, MAX_FAILURES, MAX_MIB, MIB_TYPECODE, UsageHistory
from webhook.usage.prometheus import MetricSeries, Sample, finite_number
from webhook.usage.prometheus_source import HOUR
from webhook.usage.queries import LabelScheme
from webhook.usage.workload_owners import OwnerChains

ContainerKey = tuple[str, str, str]
"""Namespace, pod and container."""


class TimeGrid(NamedTuple):
    """The time that is read, by Prometheus' clock.

    Attributes:
        start, end: Unix seconds, multiples of the step.
        step: Seconds of a bin.
        at_once: Bins in one answer.
        now: The moment, after the end of the last whole bin.
    """

    start: int
    end: int
    step: int
    bins_per_answer: int
    now: int

    @property
    def bin_count(self) -> int:
        """How many there are."""
        return (self.end - self.start) // self.step

    @property
    def first_hour(self) -> int:
        """The end of the first hour, where the last one ends now."""
        return self.now - (self.now - self.start - HOUR) // HOUR * HOUR

    @property
    def window(self) -> str:
        """All of it until now, in PromQL."""
        return f"{self.now - self.start}s"


@dataclass(slots=True)
class ContainerSamples:
    """What was seen of one container so far."""

    peaks_mib: array[int]
    mean_mib: int | None = None
    capacity_mib: int | None = None
    compute_milli: int | None = None
    active_milli: int | None = None
    ooms: set[int] = field(default_factory=set)
    xids: set[tuple[int, int]] = field(default_factory=set)
    out_of_range: int = 0
    """Kills and faults at moments that nobody asked about."""


def samples_in_range(series: MetricSeries, span: TimeGrid, one: ContainerSamples) -> list[tuple[int, str]]:
    """The samples of a series, Unix seconds, that are of the time that is read; the others are only counted."""
    within = [(int(moment), text) for moment, text in series.values if span.start <= moment <= span.now]
    one.out_of_range += len(series.values) - len(within)
    return within


def add_memory_peaks(found: Sequence[MetricSeries], span: TimeGrid, bins: Sequence[array[int]]) -> None:
    """Write series into their bins. Moments that nobody asked for are left out, and what is no amount of memory.

    All of an answer are looked at together: one by one, this was most of what a load costs.
    """
    counts = [len(series.values) for series in found]
    samples = list(chain.from_iterable([series.values for series in found]))
    moments = np.fromiter((moment for moment, _ in samples), float, len(samples))
    readings = np.fromiter(map(_sample_value, samples), float, len(samples))
    index = (moments - span.start) / span.step
    usable = (
        (index == np.floor(index)) & (index > 0) & (index <= span.bin_count) & (readings >= 0) & (readings <= MAX_MIB)
    )
    whose = np.repeat(np.arange(len(found)), counts)[usable].tolist()
    at = (index[usable].astype(int) - 1).tolist()
    for one, place, peak in zip(whose, at, np.ceil(readings[usable]).astype(int).tolist(), strict=True):
        if peak > bins[one][place]:
            bins[one][place] = peak


def _sample_value(sample: Sample) -> float:
    try:
        return float(sample[1])
    except ValueError:
        return nan


def container_key(series: MetricSeries, form: LabelScheme) -> ContainerKey:
    """Which container a series is of."""
    labels = series.metric
    return labels.get(form.namespace, ""), labels.get(form.pod, ""), labels.get(form.container, "")


def xid_code(text: str) -> int:
    """An XID, 0 where there is none."""
    value = finite_number(text)
    return int(value) if value is not None and 0 < value < 10_000 else 0


def add_mean(one: ContainerSamples, _: MetricSeries, value: float) -> None:
    one.mean_mib = _larger_amount(one.mean_mib, value)


def add_capacity(one: ContainerSamples, _: MetricSeries, value: float) -> None:
    one.capacity_mib = _larger_amount(one.capacity_mib, value)


def add_activity(one: ContainerSamples, _: MetricSeries, value: float) -> None:
    one.active_milli = _larger_amount(one.active_milli, 1000 * value, most=1000)


def add_compute_share(one: ContainerSamples, series: MetricSeries, value: float) -> None:
    """What is relative to a MIG instance becomes a share of the card."""
    share = multiprocessor_share(series.metric.get("modelName", ""), series.metric.get("GPU_I_PROFILE", ""))
    if share is not None:
        one.compute_milli = _larger_amount(one.compute_milli, 1000 * value * share, most=1000)


def add_gpu_utilization(one: ContainerSamples, series: MetricSeries, value: float) -> None:
    """`GPU_UTIL` says nothing about MIG instances. It says too much about cards, which is the safe side."""
    if not series.metric.get("GPU_I_PROFILE"):
        one.compute_milli = _larger_amount(one.compute_milli, 10 * value, most=1000)


def multiprocessor_share(product: str, profile: str) -> float | None:
    """The share of a card's multiprocessors that a MIG profile has; 1 for the whole card, None if it is not known.

    >>> share_of("NVIDIA A100-SXM4-40GB", "3g.20gb")
    0.3888888888888889
    """
    if not profile:
        return 1.0
    name = product.replace(" ", "-")
    cut, whole = mig_profile_spec(name, profile), mig_card_spec(name)
    if cut is None or whole is None:
        return None
    if cut.sms and whole.sms:
        return cut.sms / whole.sms
    return int(profile.partition("g")[0]) / whole.compute_slices


def _larger_amount(before: int | None, value: float, most: int = MAX_MIB) -> int | None:
    """The larger of two amounts, rounded up; what is no amount counts for nothing."""
    if not 0 <= value <= most * 1.01:
        return before
    return max(before or 0, min(most, ceil(round(value, 6))))  # 0.984 x 1000 is a little more than 984


_MAX_EVENTS_EACH = MAX_FAILURES // 2
"""The latest: it is by them that a workload stays as it is."""


def has_memory_samples(one: ContainerSamples) -> bool:
    return max(one.peaks_mib, default=GAP) > GAP


def has_evidence(one: ContainerSamples) -> bool:
    """Is there anything to hand over: memory that was seen, or a kill or a fault?"""
    return has_memory_samples(one) or bool(one.ooms) or any(fault for _, fault in one.xids)


def build_history(
    key: ContainerKey, one: ContainerSamples, span: TimeGrid, owners: OwnerChains, images: Mapping[ContainerKey, str]
) -> UsageHistory:
    """As it is handed over; bins before the first reading and after the last are left off, and one gap is what is left
    where there is no reading.

    The mean is of all the time until now and may be above the peaks, which are of whole bins: they bound it.
    """
    namespace, pod, container = key
    first, peaks_mib = _trim_gaps(one, span)
    return UsageHistory(
        namespace=namespace,
        workload=owners.workload(namespace, pod),
        container=container,
        pod=pod,
        start=span.start + first * span.step,
        step_seconds=span.step,
        peaks_mib=peaks_mib,
        image=images.get(key, ""),
        mean_mib=None if one.mean_mib is None or max(peaks_mib) == GAP else min(one.mean_mib, max(peaks_mib)),
        capacity_mib=one.capacity_mib,
        compute_milli=one.compute_milli,
        active_milli=one.active_milli,
        ooms=tuple(sorted(one.ooms)[-_MAX_EVENTS_EACH:]),
        xids=tuple(sorted(fault for fault in one.xids if fault[1])[-_MAX_EVENTS_EACH:]),
    )


def _trim_gaps(one: ContainerSamples, span: TimeGrid) -> tuple[int, array[int]]:
    """The first bin with a reading, and all from there to the last one."""
    if not has_memory_samples(one):
        return span.bin_count - 1, array(MIB_TYPECODE, [GAP])
    there = np.flatnonzero(np.frombuffer(one.peaks_mib, dtype=np.int32) > GAP)
    first, last = int(there[0]), int(there[-1])
    return first, one.peaks_mib[first : last + 1]
