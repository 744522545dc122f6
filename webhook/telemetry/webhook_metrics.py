"""Counters of the webhook: plain integers, converted to Prometheus metrics on request.

Only one event loop writes them, so no lock is needed and a review costs about a microsecond here. Label values come
from closed sets or from at most a hundred policy names, so the number of series is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.telemetry.metrics import (
    DurationHistogram,
    counter_family,
    gauge_family,
    histogram_family,
    info_family,
)

MAX_POLICY_SERIES = 100
"""Admins can create and delete any number of policies."""

OTHER_POLICIES = "(others)"
"""Not a valid policy name."""


class WebhookMetrics(Collector):
    """The metrics of the webhook that no other process has.

    Attributes:
        matches, denials: Reviews on /validate by policy name; also written to the status of policies.
        usage_age: Seconds; None if usage is not loaded.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.findings: Counter[tuple[str, str]] = Counter()
        self.matches: Counter[str] = Counter()
        self.denials: Counter[str] = Counter()
        self.gpu_milli_requested = 0
        self.gpu_milli_admitted = 0
        self.policy_loads: Counter[str] = Counter()
        self.policies_current = 0
        self.active_policies = 0
        self.policies_loaded_at = 0.0
        self.policy_digest = ""
        self.rollouts: Mapping[str, bool] = {}
        self.events: Counter[str] = Counter()
        self.events_dropped: Callable[[], int] = int
        self.rotation_steps: Counter[str] = Counter()
        self.rotation_failing = 0
        self.is_leader = 0
        self.in_flight: Callable[[], int] = int
        self.usage_loads: Counter[str] = Counter()
        self.usage_age: Callable[[], float | None] | None = None
        self.usage_containers: Callable[[], int] = int

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield counter_family("rightslice_admission_requests_total", self.requests)
        yield histogram_family("rightslice_admission_duration_seconds", self.durations)
        yield counter_family("rightslice_findings_total", self.findings)
        yield counter_family("rightslice_policy_matches_total", _policy_series(self.matches))
        yield counter_family("rightslice_policy_denials_total", _policy_series(self.denials))
        yield counter_family("rightslice_gpu_milli_requested_total", self.gpu_milli_requested)
        yield counter_family("rightslice_gpu_milli_admitted_total", self.gpu_milli_admitted)
        yield counter_family("rightslice_policy_loads_total", self.policy_loads)
        yield gauge_family("rightslice_policies_last_load_successful", self.policies_current)
        yield gauge_family("rightslice_active_policies", self.active_policies)
        yield gauge_family("rightslice_policies_last_load_timestamp_seconds", self.policies_loaded_at)
        yield info_family("rightslice_policies_info", {"digest": self.policy_digest})
        rollouts = {name: int(halted) for name, halted in islice(self.rollouts.items(), MAX_POLICY_SERIES)}
        yield gauge_family("rightslice_rollout_halted", rollouts)
        yield counter_family("rightslice_events_total", self.events + Counter(dropped=self.events_dropped()))
        yield counter_family("rightslice_certificate_rotation_steps_total", self.rotation_steps)
        yield gauge_family("rightslice_certificate_rotation_failing", self.rotation_failing)
        yield gauge_family("rightslice_leader", self.is_leader)
        yield gauge_family("rightslice_requests_in_flight", self.in_flight())
        if self.usage_age is not None:
            yield counter_family("rightslice_usage_loads_total", self.usage_loads)
            yield gauge_family("rightslice_usage_containers", self.usage_containers())
            if (age := self.usage_age()) is not None:
                yield gauge_family("rightslice_usage_age_seconds", age)


def _policy_series(counts: Counter[str]) -> Counter[str]:
    """Return the counts of the first policies, and the sum of all others as one series."""
    named = Counter(dict(islice(counts.items(), MAX_POLICY_SERIES)))
    rest = counts.total() - named.total()
    return named + Counter({OTHER_POLICIES: rest})
