"""OpenTelemetry spans of reviews, with the extra `tracing`, where the usual variables name an exporter.

A span continues the trace of the API server. A thread of the SDK exports spans in batches; at most 2,048 wait
(`OTEL_BSP_MAX_QUEUE_SIZE`), and further ones are dropped. Without an exporter nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from webhook import __version__
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision
from webhook.telemetry.logs import StructuredLogger
from webhook.telemetry.repeated_warnings import RepeatedWarnings
from webhook.telemetry.telemetry import response_result
from webhook.well_known import APP_NAME

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP_PROTOCOL = "http/protobuf"

EXPORT_LOGGERS = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")
NOT_EXPORTED = "spans not exported"
EXPORT_ADVICE = (
    "Check that a collector answers over HTTP at OTEL_EXPORTER_OTLP_ENDPOINT, and that the "
    "NetworkPolicy of the webhook allows it. No review waits for it; OTEL_SDK_DISABLED=true switches spans off."
)
CONSEQUENCES = (
    "Queue full, dropping %s.",
    "Failed to export %s batch due to timeout, max retries or shutdown.",
    "Shutdown in progress, aborting retry.",
)
"""Messages that follow from a failed export and name no cause."""

CLOSE_SECONDS = 5.0
"""How long the end of the process waits for the last export."""


class TracingError(Exception):
    """Tracing is configured and cannot be used."""


class TracedReview(NamedTuple):
    """An answered review.

    Attributes:
        route: The path without its slash.
        trace_parent: The header of the request that names the span of the API server; "" without one.
        status: The HTTP status of the response.
        begun, ended: Unix times in nanoseconds.
    """

    route: str
    trace_parent: str
    status: int
    request: AdmissionRequest | None
    decision: Decision | None
    begun: int
    ended: int


class ReviewTracer:
    """Records a server span for each review."""

    def __init__(self, provider: TracerProvider) -> None:
        """Prepare spans; the provider has a span processor."""
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._tracer = provider, provider.get_tracer(APP_NAME, __version__)
        self._extract, self._server = TraceContextTextMapPropagator().extract, SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)

    def record(self, review: TracedReview) -> None:
        """Record the span of a review."""
        context = self._extract({"traceparent": review.trace_parent})
        span = self._tracer.start_span(f"POST /{review.route}", context, self._server, start_time=review.begun)
        if span.is_recording():  # else the API server, or the sampler, does not want it
            span.set_attributes(_attributes(review))
        if review.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            span.set_status(self._failed)
        span.end(review.ended)

    def close(self) -> None:
        """Export what waits, for a few seconds at most: the collector may not answer."""
        last_export = Thread(target=self._provider.shutdown, daemon=True)
        last_export.start()
        last_export.join(CLOSE_SECONDS)


def _attributes(review: TracedReview) -> dict[str, str | int | list[str]]:
    """Return what a span says, by OpenTelemetry's names where it has some; the parser bounds all texts."""
    found: dict[str, str | int | list[str]] = {
        "http.request.method": "POST",
        "http.response.status_code": review.status,
        "url.path": f"/{review.route}",
        "url.scheme": "https",
    }
    if review.request is not None:
        request = review.request
        found |= {
            "k8s.namespace.name": request.namespace,
            "rightslice.kind": request.kind,
            "rightslice.name": request.name,
            "rightslice.operation": request.operation,
            "rightslice.uid": request.uid,
        }
    if review.decision is not None:
        workload = review.request is not None and review.request.pod is None
        found["rightslice.decision"] = response_result(review.route, review.decision, workload=workload)
        found["rightslice.codes"] = sorted({each.code for each in review.decision.findings})
        if review.decision.keep_reason:
            found["rightslice.keep_reason"] = review.decision.keep_reason
    return found


class _ExporterLog(logging.Handler):
    """Logs warnings of OpenTelemetry, for example that the exporter does not reach the collector."""

    def __init__(self, log: StructuredLogger) -> None:
        super().__init__(logging.WARNING)
        self._warnings = RepeatedWarnings(log)

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(EXPORT_LOGGERS):
            self._warnings.warn("warning of OpenTelemetry", record.getMessage())
        elif not (record.msg in CONSEQUENCES and self._warnings.is_counted(NOT_EXPORTED)):
            self._warnings.warn(NOT_EXPORTED, record.getMessage(), EXPORT_ADVICE)


def make_tracer(environment: Mapping[str, str], log: StructuredLogger) -> ReviewTracer | None:
    """Return a tracer that exports to the endpoint of the environment; None without one, or if it is switched off.

    Raises:
        TracingError: The extra `tracing` is not installed, the protocol is not HTTP, or a variable cannot be used.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp")
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true" or exporter == "none"
    if is_off or not any(environment.get(name) for name in ENDPOINTS):
        return None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), HTTP_PROTOCOL)
    if exporter != "otlp" or protocol != HTTP_PROTOCOL:
        required = f"only the exporter otlp with protocol {HTTP_PROTOCOL} is supported"
        raise TracingError(f"{required}, found {exporter} with {protocol}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        install = "Install the wheel of Rightslice with its extra tracing"
        raise TracingError(f"OpenTelemetry is not installed ({error}). {install}") from error
    library = logging.getLogger("opentelemetry")
    library.handlers, library.propagate = [_ExporterLog(log)], False
    named = {} if environment.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: APP_NAME}
    try:
        provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise TracingError(f"a variable OTEL_… has a value that cannot be used: {error}") from error
    return ReviewTracer(provider)
