"""A collector of OpenTelemetry spans, over HTTP and gRPC, on loopback ports."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(TraceServiceServicer):
    """The spans that were received.

    Attributes:
        spans: By the name of the service.
        http_url, grpc_address: Where exporters reach it.
    """

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}
        self.http_url = self.grpc_address = ""

    def Export(self, request: Any, context: object) -> ExportTraceServiceResponse:
        """Receive spans over gRPC."""
        self.receive(request)
        return ExportTraceServiceResponse()

    def receive(self, request: ExportTraceServiceRequest) -> None:
        """Store spans."""
        for each in request.resource_spans:
            attributes = {one.key: one.value.string_value for one in each.resource.attributes}
            found = self.spans.setdefault(attributes.get("service.name", ""), [])
            found += [span for scope in each.scope_spans for span in scope.spans]


@contextmanager
def run_collector() -> Iterator[Collector]:
    """Receive spans within the block."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces", self.path
            collector.receive(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    remote = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, remote)  # type: ignore[no-untyped-call]  # generated code
    collector.grpc_address = f"127.0.0.1:{remote.add_insecure_port('127.0.0.1:0')}"
    collector.http_url = f"http://127.0.0.1:{server.server_address[1]}"
    remote.start()
    try:
        yield collector
    finally:
        remote.stop(None)
        server.shutdown()
        server.server_close()


def attributes_of(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    found: dict[str, Any] = {}
    for one in span.attributes:
        kind = one.value.WhichOneof("value")
        value = getattr(one.value, str(kind))
        found[one.key] = [each.string_value for each in value.values] if kind == "array_value" else value
    return found
