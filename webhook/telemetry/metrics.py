"""Counts as the metrics of Prometheus. Every name of ours begins with `rightslice_`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

METRICS_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()


class MetricsPage:
    """Figures of our own, and those of the process."""

    def __init__(self, counts: Collector, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry or CollectorRegistry()
        self._registry.register(counts)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)


LabelValues = TypeVar("LabelValues", bound=tuple[str, ...])
"""The values of a metric's labels."""


def single_label(counts: Counter[str]) -> dict[tuple[str, ...], int]:
    """Counts that have one label."""
    return {(word,): count for word, count in counts.items()}


def counter_family(name: str, text: str, labels: tuple[str, ...], counts: Mapping[LabelValues, int]) -> Metric:
    """A counter with labels."""
    family = CounterMetricFamily(f"rightslice_{name}", text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def unlabelled_counter(name: str, text: str, value: float) -> Metric:
    """A counter without labels."""
    return CounterMetricFamily(f"rightslice_{name}", text, value=value)


def gauge_family(name: str, text: str, value: float) -> Metric:
    """A gauge without labels."""
    return GaugeMetricFamily(f"rightslice_{name}", text, value=value)
