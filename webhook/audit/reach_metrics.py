"""The reach of right-sizing as Prometheus metrics, for a textfile collector or a Pushgateway."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.model.decisions import RIGHT_SIZED
from webhook.report.reach import ReachReport
from webhook.telemetry.metrics import gauge_family


class _ReachCollector(Collector):
    def __init__(self, reach: ReachReport) -> None:
        self._reach = reach

    def collect(self) -> Iterator[Metric]:
        reach = self._reach
        outcomes = {RIGHT_SIZED: reach.right_sized} | {each.reason: each.pods for each in reach.kept}
        advice = {(each.product, each.profile): each for each in reach.partitioning}
        yield gauge_family("rightslice_reach_eligible_pods", outcomes)
        yield gauge_family("rightslice_reach_ineligible_pods", {each.reason: each.pods for each in reach.ineligible})
        yield gauge_family("rightslice_reach_partition_cards", {key: each.cards for key, each in advice.items()})
        yield gauge_family("rightslice_reach_partition_pods", {key: each.pods for key, each in advice.items()})


def reach_metrics(reach: ReachReport) -> str:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_ReachCollector(reach))
    return generate_latest(registry).decode()
