"""The table of every Prometheus metric: the collectors, `docs/metrics.md` and its test read it.

`python -m webhook.telemetry.metrics > docs/metrics.md` writes the page.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

METRICS_CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()

BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""Seconds. A decision takes well under a millisecond; the API server waits for two or three seconds."""

Labels = TypeVar("Labels", bound=tuple[str, ...])

MetricType = Literal["counter", "gauge", "histogram", "info"]
WEBHOOK, EXTENDER, AGENT, AUDIT = "webhook", "extender", "agent", "audit"
RESULTS = ("success", "error")


class MetricDefinition(NamedTuple):
    """One metric; label names are separated by spaces."""

    name: str
    type: MetricType
    label_names: str
    help: str
    processes: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        """The label names."""
        return self.label_names.split()


MetricRows = tuple[tuple[str, MetricType, str, str], ...]
"""Name, type, label names and help of metrics."""

_WEBHOOK_METRICS: MetricRows = (
    ("rightslice_admission_requests_total", "counter", "route operation result",
     "Admission reviews answered, by result: allowed, warned, patched, denied, or retried (a client sends it again)."),
    ("rightslice_policy_denials_total", "counter", "policy",
     "Reviews denied, once per denying policy. After 100 policies, others are counted as (others)."),
    ("rightslice_policy_matches_total", "counter", "policy",
     "Reviews of objects that a policy matched. After 100 policies, others are counted as (others)."),
    ("rightslice_findings_total", "counter", "code mode", "Findings, by code and mode: enforce, warn or audit."),
    ("rightslice_admission_duration_seconds", "histogram", "route",
     "Time to decode, evaluate and answer one review, without the network."),
    ("rightslice_gpu_milli_requested_total", "counter", "",
     "GPU capacity requested by created pods that no policy denies, in thousandths of a GPU."),
    ("rightslice_gpu_milli_admitted_total", "counter", "",
     "GPU capacity of the same pods after right-sizing, in thousandths of a GPU."),
    ("rightslice_right_sizing_outcomes_total", "counter", "outcome",
     "Created pods that request a GPU and that no policy denies, by outcome: RightSized, AuditMode, or the reason why "
     "they keep their request."),
    ("rightslice_right_sized_pods_total", "counter", "evidence",
     "Created pods that were right-sized, by the evidence of their need: declared, observed or default."),
    ("rightslice_right_sizable_need_bytes_total", "counter", "slice",
     "GPU memory that created pods need and that a MIG slice would cover, by the state of such slices: free, full (all "
     "are allocated) or missing (no card is partitioned into one)."),
    ("rightslice_policies_last_load_successful", "gauge", "",
     "1 if the active policies are the current files and objects, 0 if the last valid set is used."),
    ("rightslice_policies_last_load_timestamp_seconds", "gauge", "", "When the active policies were loaded."),
    ("rightslice_policy_loads_total", "counter", "result", "Attempts to load policies, by result: success or error."),
    ("rightslice_active_policies", "gauge", "", "Number of active policies; with 0, all is allowed."),
    ("rightslice_review_cpu_seconds", "gauge", "",
     "CPU time of a review of the largest usual pod by the policies that may match one pod, measured once after each "
     "load. A review is stopped after 0.045 s."),
    ("rightslice_policies_info", "info", "digest", "Digest of the active policies."),
    ("rightslice_rollout_halted", "gauge", "policy",
     "1 if the rollout of the policy was halted and the policy is in audit mode."),
    ("rightslice_events_total", "counter", "result",
     "Events for the owners of pods, by result: success, error or dropped."),
    ("rightslice_requests_in_flight", "gauge", "", "Requests whose body is being received."),
    ("rightslice_usage_loads_total", "counter", "result", "Attempts to load GPU usage, by result: success or error."),
    ("rightslice_usage_containers", "gauge", "", "Containers with known GPU usage."),
    ("rightslice_usage_age_seconds", "gauge", "", "Age of the GPU usage data."),
    ("rightslice_certificate_rotation_steps_total", "counter", "step",
     "Rotation steps of this replica: create_authority, update_bundles, issue_certificate or prune_authorities."),
    ("rightslice_certificate_rotation_failing", "gauge", "", "1 while managed certificates cannot be maintained."),
    ("rightslice_leader", "gauge", "", "1 if this replica is the leader."),
)  # fmt: skip

_SERVER_METRICS: MetricRows = (
    ("rightslice_http_rejections_total", "counter", "reason",
     "Requests and connections rejected before evaluation, for example overloaded, not_ready or body_too_large."),
    ("rightslice_internal_errors_total", "counter", "component",
     "Unexpected exceptions; the log has the stack traces."),
    ("rightslice_certificate_loads_total", "counter", "result",
     "Attempts to load the serving certificate, by result: success or error."),
    ("rightslice_certificate_expiration_timestamp_seconds", "gauge", "", "When the serving certificate expires."),
    ("rightslice_open_connections", "gauge", "", "Open connections."),
    ("rightslice_cluster_view_age_seconds", "gauge", "",
     "Time since the API server last confirmed the least recently confirmed resource."),
    ("rightslice_watch_lists_total", "counter", "resource", "Complete lists of a resource."),
    ("rightslice_watch_events_total", "counter", "resource", "Watch events received."),
    ("rightslice_watch_errors_total", "counter", "resource", "Lists and watches that failed."),
    ("rightslice_watch_skipped_objects_total", "counter", "resource",
     "Objects skipped because they could not be decoded or stored."),
)  # fmt: skip

_EXTENDER_METRICS: MetricRows = (
    ("rightslice_extender_requests_total", "counter", "verb result",
     "Scheduler requests answered, by verb: filter, prioritize, prioritize-claims or preempt."),
    ("rightslice_extender_duration_seconds", "histogram", "verb",
     "Time to decode and answer one scheduler request, without the network."),
    ("rightslice_extender_reservations", "gauge", "", "Reservations for pods that are not bound to a node yet."),
    ("rightslice_extender_nodes", "gauge", "", "Nodes that are ranked."),
    ("rightslice_extender_over_share", "gauge", "", "Namespaces or queues above their fair share."),
    ("rightslice_extender_gpu_milli", "gauge", "product state",
     "GPU capacity in thousandths of a GPU, by state: allocated, free, or unschedulable (unallocated on nodes that "
     "take no pods, or on tainted devices)."),
    ("rightslice_extender_fragmented_gpu_milli", "gauge", "product",
     "Free GPU capacity that a pod of the recent mix cannot use, on average, in thousandths of a GPU."),
)  # fmt: skip

_AGENT_METRICS: MetricRows = (
    ("rightslice_agent_discoveries_total", "counter", "result", "Attempts to read the GPUs through NVML."),
    ("rightslice_agent_discovery_duration_seconds", "gauge", "", "Duration of the last GPU discovery."),
    ("rightslice_agent_kubelet_calls_total", "counter", "result", "Calls of the kubelet's PodResources API."),
    ("rightslice_agent_gpunode_writes_total", "counter", "result", "Writes of the GPUNode object."),
    ("rightslice_agent_gpus", "gauge", "", "GPUs of the node."),
    ("rightslice_agent_gpus_unhealthy", "gauge", "", "GPUs that are unhealthy."),
    ("rightslice_agent_gpus_allocated", "gauge", "", "GPUs that are allocated to a pod, completely or in part."),
    ("rightslice_agent_nvlinks_down", "gauge", "", "NVLinks that are down."),
)  # fmt: skip

_AUDIT_METRICS: MetricRows = (
    ("rightslice_reach_eligible_pods", "gauge", "outcome",
     "Pods that could use a smaller GPU now, by outcome: RightSized, AuditMode, Denied, or the reason why they keep "
     "their request."),
    ("rightslice_reach_ineligible_pods", "gauge", "reason", "Other pods with GPUs, by the reason why."),
    ("rightslice_reach_partition_cards", "gauge", "product profile",
     "Whole cards to partition into a MIG profile, for pods that no free slice covers."),
    ("rightslice_reach_partition_pods", "gauge", "product profile",
     "Pods that could be right-sized then, at most."),
)  # fmt: skip

METRICS = (
    *(MetricDefinition(*row, (WEBHOOK,)) for row in _WEBHOOK_METRICS),
    *(MetricDefinition(*row, (WEBHOOK, EXTENDER)) for row in _SERVER_METRICS),
    *(MetricDefinition(*row, (EXTENDER,)) for row in _EXTENDER_METRICS),
    *(MetricDefinition(*row, (AGENT,)) for row in _AGENT_METRICS),
    *(MetricDefinition(*row, (AUDIT,)) for row in _AUDIT_METRICS),
)
_BY_NAME = {metric.name: metric for metric in METRICS}

QUERIES = (
    ("Denied requests per second", 'sum(rate(rightslice_admission_requests_total{result="denied"}[5m]))'),
    ("Denials by policy (once per denying policy)", "sum by (policy) (rate(rightslice_policy_denials_total[5m]))"),
    ("Denials by finding code", 'sum by (code) (rate(rightslice_findings_total{mode="enforce"}[5m]))'),
    (
        "Share of requested GPU capacity saved by right-sizing",
        "1 - sum(rate(rightslice_gpu_milli_admitted_total[1d])) / sum(rate(rightslice_gpu_milli_requested_total[1d]))",
    ),
    (
        "Share of the need for slices for which no card is partitioned",
        'sum(rate(rightslice_right_sizable_need_bytes_total{slice="missing"}[1d]))'
        " / sum(rate(rightslice_right_sizable_need_bytes_total[1d]))",
    ),
    (
        "99th percentile of the decision time",
        "histogram_quantile(0.99, sum by (le) (rate(rightslice_admission_duration_seconds_bucket[5m])))",
    ),
)
"""Common questions, and the PromQL that answers them."""


class DurationHistogram:
    """Counts durations in the buckets of `BUCKETS`."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """Return each upper bound as text, with the number of durations up to it."""
        bounds = [*map(str, BUCKETS), "+Inf"]
        return [(bound, sum(self.counts[: index + 1])) for index, bound in enumerate(bounds)]


class MetricsPage:
    """The metrics endpoint of one process: its own collectors and those of the Python process."""

    def __init__(self, *collectors: Collector) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self) -> bytes:
        """Return the text for `/metrics`."""
        return generate_latest(self._registry)


def count_results() -> Counter[str]:
    """Return a counter of successes and errors; both begin at 0, so that Prometheus sees the first as an increase."""
    return Counter(dict.fromkeys(RESULTS, 0))


def counter_family(name: str, counts: Mapping[Labels, int] | Counter[str] | int) -> Metric:
    """Return a counter of the table: counts by label values, by one label value, or one count."""
    definition = _BY_NAME[name]
    family = CounterMetricFamily(name, definition.help, labels=definition.labels)
    samples = {(): counts} if isinstance(counts, int) else counts
    for labels, count in samples.items():
        family.add_metric((labels,) if isinstance(labels, str) else labels, count)
    return family


def gauge_family(name: str, value: float | Mapping[str, float] | Mapping[Labels, float]) -> Metric:
    """Return a gauge of the table: one value, values by one label value, or by label values."""
    definition = _BY_NAME[name]
    family = GaugeMetricFamily(name, definition.help, labels=definition.labels)
    samples: Mapping[Any, float] = value if isinstance(value, Mapping) else {(): value}
    for labels, each in samples.items():
        family.add_metric((labels,) if isinstance(labels, str) else labels, each)
    return family


def histogram_family(name: str, histograms: Mapping[str, DurationHistogram]) -> Metric:
    """Return a histogram of the table, by the value of its one label."""
    definition = _BY_NAME[name]
    family = HistogramMetricFamily(name, definition.help, labels=definition.labels)
    for label, histogram in histograms.items():
        family.add_metric((label,), histogram.cumulative_buckets(), histogram.total)
    return family


def info_family(name: str, value: dict[str, str]) -> Metric:
    """Return an info metric of the table."""
    return InfoMetricFamily(name.removesuffix("_info"), _BY_NAME[name].help, value)


TITLES = {
    WEBHOOK: "Webhook",
    EXTENDER: "Scheduler extender",
    AGENT: "Node agent",
    AUDIT: "Files of `rightslice audit -o metrics=FILE`",
}
"""The sections of the page, by process."""

PAGE_HEAD = """\
# Metrics

Generated by `python -m webhook.telemetry.metrics > docs/metrics.md`; do not edit.

Every process serves its metrics at `/metrics`, with the standard ones of a Python process (`process_*`,
`python_*`). [An audit](audit.md#reach) writes its own to a file. The manifests contain
[alerts](../manifests/monitoring/alerts.yaml) and [dashboards](dashboards.md).

## Common queries

| question | PromQL |
|---|---|
"""


def metrics_page() -> str:
    """Return the text of `docs/metrics.md`."""
    page = PAGE_HEAD + "".join(f"| {question} | `{query}` |\n" for question, query in QUERIES)
    for process, title in TITLES.items():
        page += f"\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
        for each in METRICS:
            if process in each.processes:
                page += f"| `{each.name}` | {each.type} | {', '.join(each.labels)} | {each.help} |\n"
    return page


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
