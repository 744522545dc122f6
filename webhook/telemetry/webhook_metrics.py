"""What is counted, in plain integers, and turned into metrics when somebody asks.

One event loop counts, so an addition is enough: a review costs about a microsecond here, and a label can only be
a word of a closed set, or one of a hundred policies, however many names pass by.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

from prometheus_client.core import (
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from webhook.telemetry.metrics import counter_family, gauge_family, single_label, unlabelled_counter

WATCH_METRICS = (
    ("watch_lists", "Times that all objects of a kind were listed.", "lists"),
    ("watch_events", "Objects told by watches.", "events"),
    ("watch_breaks", "Lists and watches that ended otherwise than they should.", "breaks"),
    ("watch_unread", "Objects that could not be read or taken in.", "unread"),
)
"""Metric, what it says, and where it is counted."""

MAX_POLICY_SERIES = 100
"""Series for policies: their names are no closed set, as admins may make and delete any number."""

OTHER_POLICIES = "(others)"
"""What no policy can be called."""

BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
"""Seconds. Deciding takes well under a millisecond; the API server waits for two or three seconds."""


class WatchCounters(Protocol):
    """The watch of one kind of object: lists made, changes seen, breaks, objects that could not be read."""

    name: str
    lists: int
    events: int
    breaks: int
    undecodable: int


class DurationHistogram:
    """How often a duration fell into each bucket."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative_buckets(self) -> list[tuple[str, float]]:
        """Bucket ends as text, with the number of durations up to each."""
        ends = [*map(str, BUCKETS), "+Inf"]
        return [(end, sum(self.counts[: index + 1])) for index, end in enumerate(ends)]


class WebhookMetrics(Collector):
    """Every figure of one process.

    Attributes:
        matched, denied: Reviews on /validate that a policy spoke about, and denied, by its name. They go into the
            status of policies too.
    """

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.findings: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        self.policy_loads: Counter[str] = Counter()
        self.certificate_loads: Counter[str] = Counter()
        self.matched: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.events_dropped: Callable[[], int] = int
        self.rollouts: Mapping[str, bool] = {}
        self.certificate_steps: Counter[str] = Counter()
        self.certificate_expiry = 0.0
        self.certificate_failing = 0
        self.is_leader = 0
        self.gpu_milli_before = 0
        self.gpu_milli_after = 0
        self.policies_current = 0
        self.policies_in_force = 0
        self.policies_loaded = 0.0
        self.policy_digest = ""
        self.connections: Callable[[], int] = int
        self.in_flight: Callable[[], int] = int
        self.view_age: Callable[[], float] | None = None
        self.usage_loads: Counter[str] = Counter()
        self.usage_age: Callable[[], float | None] | None = None
        self.usage_containers: Callable[[], int] = int
        self.watches: Callable[[], Iterable[WatchCounters]] = tuple

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand; the names are those of `collect`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it as Prometheus metrics."""
        labels = ("route", "operation", "verdict")
        yield counter_family("admission_requests", "Reviews answered.", labels, self.requests)
        yield self._collect_durations()
        yield counter_family("findings", "Findings, by code and mode.", ("code", "mode"), self.findings)
        yield counter_family(
            "policy_matched", "Reviews that a policy spoke about.", ("policy",), _policy_series(self.matched)
        )
        yield counter_family("policy_denied", "Reviews that a policy denied.", ("policy",), _policy_series(self.denied))
        yield unlabelled_counter(
            "gpu_milli_before", "Thousandths of a GPU that created pods asked for.", self.gpu_milli_before
        )
        yield unlabelled_counter(
            "gpu_milli_after", "Thousandths of a GPU that the same pods got.", self.gpu_milli_after
        )
        yield counter_family(
            "refused", "Requests and connections turned away.", ("reason",), single_label(self.refused)
        )
        yield counter_family(
            "crashes", "Faults of the program while it judged.", ("route",), single_label(self.crashes)
        )
        yield counter_family(
            "policy_loads", "Times that policies were read.", ("result",), single_label(self.policy_loads)
        )
        loads = single_label(self.certificate_loads)
        yield counter_family("certificate_loads", "Times that the serving certificate was read.", ("result",), loads)
        yield from self._collect_certificate()
        yield self._collect_rollouts()
        events = single_label(self.events) | {("dropped",): self.events_dropped()}
        yield counter_family("events", "Events for the owners of pods.", ("result",), events)
        yield gauge_family(
            "policies_current", "1 if the policies in use are those in the files.", self.policies_current
        )
        yield gauge_family(
            "policies_in_force", "How many policies are in use; 0 allows everything.", self.policies_in_force
        )
        yield gauge_family(
            "policies_loaded_timestamp_seconds", "When the policies in use were read.", self.policies_loaded
        )
        yield InfoMetricFamily("rightslice_policies", "The policies in use.", {"digest": self.policy_digest})
        yield gauge_family("connections", "Open connections.", self.connections())
        yield gauge_family("requests_in_flight", "Requests whose body is still coming.", self.in_flight())
        if self.view_age is not None:
            yield gauge_family(
                "view_age_seconds", "Since the API server last confirmed all we know of it.", self.view_age()
            )
            yield from self._collect_watches()

        if self.usage_age is not None:
            yield from self._collect_usage(self.usage_age())

    def _collect_usage(self, age: float | None) -> Iterator[Metric]:
        loads = single_label(self.usage_loads)
        yield counter_family("usage_loads", "Times that use of GPUs was read.", ("result",), loads)
        yield gauge_family("usage_containers", "Containers whose use of GPUs is known.", self.usage_containers())
        if age is not None:
            yield gauge_family("usage_age_seconds", "Since the moment that the known use of GPUs is of.", age)

    def _collect_rollouts(self) -> Metric:
        text = "1 if the rollout of a policy was halted: the policy is on trial for everybody."
        family = GaugeMetricFamily("rightslice_rollout_halted", text, labels=("policy",))
        for name, halted in islice(self.rollouts.items(), MAX_POLICY_SERIES):
            family.add_metric((name,), int(halted))
        return family

    def _collect_watches(self) -> Iterator[Metric]:
        watches = list(self.watches())
        for name, text, counted in WATCH_METRICS:
            yield counter_family(name, text, ("kind",), {(watch.name,): getattr(watch, counted) for watch in watches})

    def _collect_certificate(self) -> Iterator[Metric]:
        steps = single_label(self.certificate_steps)
        yield gauge_family(
            "certificate_end_seconds", "When the serving certificate ends, Unix time.", self.certificate_expiry
        )
        yield counter_family("certificate_steps", "Things done about shared certificates.", ("step",), steps)
        yield gauge_family("certificate_trouble", "1 if shared certificates cannot be kept.", self.certificate_failing)
        yield gauge_family("leader", "1 if this replica leads: it renews certificates.", self.is_leader)

    def _collect_durations(self) -> Metric:
        text = "Time to read, judge and answer one review, without the network."
        family = HistogramMetricFamily("rightslice_admission_duration_seconds", text, labels=("route",))
        for route, histogram in self.durations.items():
            family.add_metric((route,), histogram.cumulative_buckets(), histogram.total)
        return family


def _policy_series(counts: Counter[str]) -> dict[tuple[str, ...], int]:
    """Counts of the first names that came; those of all others added up."""
    named = dict(islice(counts.items(), MAX_POLICY_SERIES))
    rest = counts.total() - sum(named.values())
    return single_label(Counter({**named, OTHER_POLICIES: rest} if rest else named))
