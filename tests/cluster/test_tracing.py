"""Spans of reviews on a real API server that records traces: each review is a part of the request that caused it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_caller_certificates import is_reviewed, registered
from tests.controlplane.build import control_plane, wanted_version
from tests.server.site import serve_site
from tests.telemetry.collector import Collector, attributes_of, run_collector
from tests.telemetry.test_tracing import ENDPOINT, tracer_for

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector."""
    with run_collector() as running:
        yield running


@pytest.fixture(scope="module")
def tracing_plane(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane whose API server traces all requests."""
    folder = tmp_path_factory.mktemp("tracing")
    about = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "TracingConfiguration"}
    settings = about | {"endpoint": collector.grpc_address, "samplingRatePerMillion": 1_000_000}
    (folder / "tracing.yaml").write_text(json.dumps(settings), encoding="utf-8")
    flags = [f"--tracing-config-file={folder / 'tracing.yaml'}"]
    with Plane(control_plane(wanted_version()), folder / "plane", apiserver_flags=flags) as plane:
        yield plane


def test_the_span_of_a_review_is_below_the_api_server_s_request(
    tracing_plane: Plane, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.http_url)
    monkeypatch.setattr("webhook.telemetry.tracing.CLOSE_SECONDS", 60.0)
    tracer = tracer_for(collector)
    with serve_site() as site:
        site.server.telemetry.tracer = tracer
        with registered(tracing_plane, site):
            assert is_reviewed(tracing_plane, site, "traced")
    tracer.close()
    (span,) = [each for each in collector.spans["rightslice"] if attributes_of(each).get("rightslice.name") == "traced"]

    def of_api_server() -> list[Span]:
        return collector.spans.get("apiserver", [])

    eventually(lambda: span.parent_span_id in {each.span_id for each in of_api_server()})
    eventually(
        lambda: {each.name for each in of_api_server() if each.trace_id == span.trace_id},
        until=lambda trace: "Call validating webhook" in trace,
    )
