"""Metrics and log messages that the webhook and the scheduler extender have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from webhook.errors import ApiError
from webhook.kube.reflector import WatchStatus
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.metrics import count_results, counter_family, gauge_family


class ServerTelemetry(Collector):
    """The log and the shared metrics of one serving process.

    Attributes:
        certificate_expiry: Unix time; 0 if it is unknown.
        certificate_error: Why the current certificate files are not in use; "" if they are.
        view_age: Seconds since the API server last confirmed the cluster view; None for a snapshot.
        watches: The status of every watch of a live cluster.
    """

    def __init__(self, log: StructuredLogger) -> None:
        self.log = log
        self.rejections: Counter[str] = Counter()
        self.internal_errors: Counter[str] = Counter()
        self.certificate_loads: Counter[str] = count_results()
        self.certificate_expiry = 0.0
        self.certificate_error = ""
        self.connections: Callable[[], int] = int
        self.view_age: Callable[[], float] | None = None
        self.watches: Callable[[], Sequence[WatchStatus]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Return the shared metrics."""
        yield counter_family("rightslice_http_rejections_total", self.rejections)
        yield counter_family("rightslice_internal_errors_total", self.internal_errors)
        yield counter_family("rightslice_certificate_loads_total", self.certificate_loads)
        yield gauge_family("rightslice_certificate_expiration_timestamp_seconds", self.certificate_expiry)
        yield gauge_family("rightslice_open_connections", self.connections())
        if self.view_age is not None:
            yield gauge_family("rightslice_cluster_view_age_seconds", self.view_age())
            watches = self.watches()
            yield counter_family("rightslice_watch_lists_total", {(each.name,): each.lists for each in watches})
            yield counter_family("rightslice_watch_events_total", {(each.name,): each.events for each in watches})
            yield counter_family("rightslice_watch_errors_total", {(each.name,): each.errors for each in watches})
            skipped = {(each.name,): each.skipped for each in watches}
            yield counter_family("rightslice_watch_skipped_objects_total", skipped)

    def record_rejection(self, reason: str) -> None:
        """Count a request or connection that was rejected before evaluation; the reasons are a closed set."""
        self.rejections[reason] += 1

    def record_internal_error(self, component: str, error: Exception, uid: str = "") -> None:
        """Count and log an unexpected exception with its stack trace."""
        self.internal_errors[component] += 1
        self.log.error("internal error", component=component, uid=uid, exc_info=error)

    def record_watch_error(self, resource: str, error: ApiError) -> None:
        """Log a list or watch that failed; it is retried."""
        self.log.warning("watch failed", resource=resource, error=str(error))

    def set_certificate_expiry(self, expiry: datetime | None) -> None:
        """Set when the certificate in use expires; None if it is unknown."""
        self.certificate_expiry = expiry.timestamp() if expiry else 0.0

    def record_certificate_loaded(self, expiry: datetime | None) -> None:
        """Count and log a new serving certificate."""
        self.certificate_loads["success"] += 1
        self.certificate_error = ""
        self.set_certificate_expiry(expiry)
        self.log.info("certificate loaded", expires=f"{expiry:%Y-%m-%dT%H:%M:%SZ}" if expiry else "")

    def record_certificate_rejected(self, error: str) -> None:
        """Count and log certificate files that do not load; the last valid certificate stays in use."""
        self.certificate_loads["error"] += 1
        self.certificate_error = error
        self.log.error("certificate not loaded, keeping the last valid one", error=error)
