"""The metrics of one process, as Prometheus scrapes them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
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
