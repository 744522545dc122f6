"""Metrics and log messages of the scheduler extender; label values come from closed sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from prometheus_client.core import Metric

from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import DurationHistogram, counter_family, gauge_family, histogram_family
from webhook.telemetry.server_telemetry import ServerTelemetry
from webhook.web.health import HealthCheck


class ExtenderMetrics(ServerTelemetry):
    """Telemetry of one extender process.

    Attributes:
        answers: Requests answered, by verb and result.
        durations: Seconds by verb.
        over_share: Number of namespaces or queues above their fair share; None without fair share.
    """

    def __init__(self, log: StructuredLogger) -> None:
        super().__init__(log)
        self.answers: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, DurationHistogram] = {}
        self.reserved: Callable[[], int] = int
        self.nodes: Callable[[], int] = int
        self.over_share: Callable[[], int] | None = None

    def collect(self) -> Iterator[Metric]:
        """Return all metrics."""
        yield counter_family("rightslice_extender_requests_total", self.answers)
        yield histogram_family("rightslice_extender_duration_seconds", self.durations)
        yield gauge_family("rightslice_extender_reservations", self.reserved())
        yield gauge_family("rightslice_extender_nodes", self.nodes())
        if self.over_share is not None:
            yield gauge_family("rightslice_extender_over_share", self.over_share())
        yield from super().collect()

    def record_answer(self, verb: str, result: str, seconds: float) -> None:
        """Count an answered request."""
        self.answers[verb, result] += 1
        self.durations.setdefault(verb, DurationHistogram()).observe(seconds)

    def warn_node(self, node: str, reason: str) -> None:
        """Log that implausible data of a node, or of its agent's report, is ignored."""
        self.log.warning("implausible node data ignored", node=node, reason=reason)

    def certificate_check(self) -> HealthCheck:
        """Return the line of `/readyz?verbose`; an old certificate does not make the process unready."""
        expiry = datetime.fromtimestamp(self.certificate_expiry, UTC)
        message = f"expires {expiry:%Y-%m-%dT%H:%M:%SZ}" if self.certificate_expiry else "in use"
        error = self.certificate_error
        message = f"{message}; the new files do not load: {error}" if error else message
        return HealthCheck("certificate", not error, message, required=False)
