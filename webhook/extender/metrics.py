"""What the extender counts, for Prometheus. A label can only be a word of a closed set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import counter_family, gauge_family, single_label
from webhook.telemetry.webhook_metrics import WATCH_METRICS, DurationHistogram, WatchCounters
from webhook.web.health import HealthCheck
from webhook.web.http_messages import strip_control_characters


class ExtenderMetrics(Collector):
    """The figures of one extender, and the log of what is rare.

    Attributes:
        answers: Requests answered, by verb and result.
        durations: Seconds by verb.
        refused: Requests and connections turned away, by reason.
        certificate_fault: Why the files that are there now are not in use; "" where they are.
        reserved, nodes, connections: How many there are.
        over: How many namespaces or queues are over their share; None where nobody looks.
        view_age: Seconds since the API server last confirmed what is ranked; None for a snapshot.
        watches: The watches, of a live cluster.
    """

    def __init__(self, log: StructuredLogger) -> None:
        self.log = log
        self.answers: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.refused: Counter[str] = Counter()
        self.crashes: Counter[str] = Counter()
        self.loads: Counter[str] = Counter()
        self.certificate_end = 0.0
        self.certificate_fault = ""
        self.reserved: Callable[[], int] = int
        self.nodes: Callable[[], int] = int
        self.over: Callable[[], int] | None = None
        self.connections: Callable[[], int] = int
        self.view_age: Callable[[], float] | None = None
        self.watches: Callable[[], Sequence[WatchCounters]] = tuple

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand; the names are those of `collect`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All of it as Prometheus metrics."""
        yield counter_family("extender_requests", "Requests answered.", ("verb", "result"), self.answers)
        yield self._durations()
        yield counter_family(
            "refused", "Requests and connections turned away.", ("reason",), single_label(self.refused)
        )
        yield counter_family(
            "crashes", "Faults of the program while it answered.", ("route",), single_label(self.crashes)
        )
        yield counter_family(
            "certificate_loads", "Times the serving certificate was read.", ("result",), single_label(self.loads)
        )
        yield gauge_family(
            "certificate_end_seconds", "When the serving certificate ends, Unix time.", self.certificate_end
        )
        yield gauge_family("extender_reservations", "Places promised to pods not seen on a node yet.", self.reserved())
        yield gauge_family("extender_nodes", "Nodes that are ranked.", self.nodes())
        yield gauge_family("connections", "Open connections.", self.connections())
        if self.over is not None:
            yield gauge_family("extender_over_share", "Namespaces or queues that were over their share.", self.over())
        if self.view_age is not None:
            yield gauge_family(
                "view_age_seconds", "Since the API server last confirmed all we know of it.", self.view_age()
            )
        for name, text, counted in WATCH_METRICS:
            yield counter_family(name, text, ("kind",), {(one.name,): getattr(one, counted) for one in self.watches()})

    def record_answer(self, verb: str, result: str, seconds: float) -> None:
        """A request was answered."""
        self.answers[verb, result] += 1
        self.durations.setdefault(verb, DurationHistogram()).observe(seconds)

    def record_crash(self, route: str, uid: str, error: Exception) -> None:
        """A fault of ours; its stack is kept."""
        self.crashes[route] += 1
        self.log.error("crashed", route=route, uid=uid, exc_info=error)

    def warn_node(self, node: str, why: str) -> None:
        """What a node says, or its agent reports, cannot be, and counts as not said."""
        self.log.warning("node says what cannot be", node=node, why=why)

    def record_watch_error(self, kind: str, why: str) -> None:
        """A list or watch ended otherwise than it should; it goes on after a while."""
        self.log.warning("watch broke", kind=kind, why=why)

    def set_certificate_expiry(self, ends: datetime | None) -> None:
        """The certificate in use ends then; None: it cannot be told."""
        self.certificate_end = ends.timestamp() if ends else 0.0

    def record_certificate_loaded(self, ends: datetime | None) -> None:
        """A new serving certificate is in use."""
        self.loads["good"] += 1
        self.certificate_fault = ""
        self.set_certificate_expiry(ends)
        self.log.info("certificate loaded", ends=f"{ends:%Y-%m-%dT%H:%M:%SZ}" if ends else "")

    def record_certificate_rejected(self, why: str) -> None:
        """The files are no usable pair; the last good one stays."""
        self.loads["bad"] += 1
        self.certificate_fault = why
        self.log.error("certificate does not load, the last good one stays", why=why)

    def certificate_check(self) -> HealthCheck:
        """A line of `/readyz?verbose`. With an old certificate it serves on."""
        ends = datetime.fromtimestamp(self.certificate_end, UTC)
        says = f"ends {ends:%Y-%m-%dT%H:%M:%SZ}" if self.certificate_end else "in use"
        fault = strip_control_characters(self.certificate_fault)
        return HealthCheck(
            "certificate", not fault, f"{says}; the files do not load: {fault}" if fault else says, required=False
        )

    def _durations(self) -> Metric:
        text = "Time to read a request and to answer it, without the network."
        family = HistogramMetricFamily("rightslice_extender_duration_seconds", text, labels=("verb",))
        for verb, histogram in self.durations.items():
            family.add_metric((verb,), histogram.cumulative_buckets(), histogram.total)
        return family
