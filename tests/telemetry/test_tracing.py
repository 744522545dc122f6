"""Spans of reviews, as a collector receives them."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.builders import Json, make_pod
from tests.server.site import Site, encoded, post, review, serve_site
from tests.telemetry.collector import Collector, attributes_of, run_collector
from webhook.engine.decide import decide
from webhook.model.decisions import Decision
from webhook.server.admission_state import Decide
from webhook.telemetry.logs import make_logger
from webhook.telemetry.tracing import ReviewTracer, TracedReview, TracingError, make_tracer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
LOG = make_logger("info", io.StringIO())


@pytest.fixture(autouse=True)
def ended_exports() -> Iterator[None]:
    """Wait until no export is retried: its jitter changes the state of `random` while a later test draws examples."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the environment points."""
    with run_collector() as running:
        monkeypatch.setenv(ENDPOINT, running.http_url)
        monkeypatch.setattr("webhook.telemetry.tracing.CLOSE_SECONDS", 60.0)  # a collector that answers may be slow
        yield running


def tracer_for(collector: Collector) -> ReviewTracer:
    """Return a tracer that exports to a collector."""
    tracer = make_tracer({ENDPOINT: collector.http_url}, LOG)
    assert tracer is not None
    return tracer


def traced(collector: Collector, *requests: bytes, decision: Decide = decide) -> list[int]:
    """Send requests to a server that exports spans; return the statuses."""
    tracer = tracer_for(collector)

    def send(site: Site) -> list[int]:
        site.server.telemetry.tracer = tracer
        return [site.send_request(request).status for request in requests]

    with serve_site(decision) as site:
        found = send(site)
    tracer.close()
    return found


def test_a_span_continues_the_trace_of_the_api_server_with_decision_and_codes(collector: Collector) -> None:
    pod = make_pod().gpus(1).env("NVIDIA_VISIBLE_DEVICES", "all").build()
    denied = encoded(review(pod, uid="u-7"))
    assert traced(collector, post("/validate", denied, f"traceparent: 00-{TRACE}-{PARENT}-01")) == [200]
    [span] = collector.spans["rightslice"]
    assert (span.name, span.kind) == ("POST /validate", span.SPAN_KIND_SERVER)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 30e9
    assert attributes_of(span) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": "/validate",
        "url.scheme": "https",
        "k8s.namespace.name": "team",
        "rightslice.kind": "Pod",
        "rightslice.name": "pod",
        "rightslice.operation": "CREATE",
        "rightslice.uid": "u-7",
        "rightslice.decision": "allowed",
        "rightslice.codes": ["GPU-S101"],
        "rightslice.keep_reason": "NoRightSizingPolicy",
    }


def test_a_review_that_the_api_server_does_not_sample_has_no_span(collector: Collector) -> None:
    assert traced(collector, post("/validate", encoded(review()), f"traceparent: 00-{TRACE}-{PARENT}-00")) == [200]
    assert collector.spans == {}


def test_reviews_that_are_not_evaluated_have_spans_too(collector: Collector) -> None:
    def fail(*_: object) -> Decision:
        raise RuntimeError

    requests = post("/mutate", b"{}"), post("/mutate", encoded(review()))
    assert traced(collector, *requests, decision=fail) == [400, 500]
    found = [
        (attributes_of(span)["http.response.status_code"], span.status.code) for span in collector.spans["rightslice"]
    ]
    assert found == [(400, 0), (500, 2)]


@pytest.mark.parametrize("header", ["00-zz-zz-01", "x" * 2000, f"00-{'0' * 32}-{PARENT}-01"])
def test_a_trace_context_that_is_none_begins_a_new_trace(collector: Collector, header: str) -> None:
    assert traced(collector, post("/validate", encoded(review()), f"traceparent: {header}")) == [200]
    [span] = collector.spans["rightslice"]
    assert span.parent_span_id == b""


def test_a_span_holds_no_long_text_of_a_client(collector: Collector) -> None:
    long: list[Json] = [{"uid": "u" * 100_000}, {"name": "n" * 1000}, {"namespace": "n" * 1000}]
    traced(collector, *[post("/validate", encoded(review(**each))) for each in long])
    assert [span.ByteSize() < 1000 for span in collector.spans["rightslice"]] == [True] * 3


OFF: dict[str, dict[str, str]] = {
    "no endpoint": {"OTEL_TRACES_EXPORTER": "otlp"},
    "switched off": {ENDPOINT: "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "TRUE"},
    "no exporter": {ENDPOINT: "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
}


@pytest.mark.parametrize("environment", OFF.values(), ids=OFF)
def test_without_an_endpoint_there_is_no_tracer(environment: dict[str, str]) -> None:
    assert make_tracer(environment, LOG) is None


def test_what_is_not_supported_is_said() -> None:
    grpc = {ENDPOINT: "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(
        TracingError, match="only the exporter otlp with protocol http/protobuf is supported, found otlp with grpc"
    ):
        make_tracer(grpc, LOG)


WRONG = {"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_BSP_SCHEDULE_DELAY": "0", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"}


@pytest.mark.parametrize(("name", "value"), WRONG.items(), ids=WRONG)
def test_a_variable_that_cannot_be_used_is_said(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(TracingError, match="a variable OTEL_… has a value that cannot be used"):
        make_tracer({ENDPOINT: "http://127.0.0.1:1"}, LOG)


def test_a_long_trace_state_of_a_client_is_not_logged(collector: Collector) -> None:
    stream = io.StringIO()
    tracer = make_tracer({ENDPOINT: collector.http_url}, make_logger("info", stream))
    assert tracer is not None
    with serve_site(decide) as site:
        site.server.telemetry.tracer = tracer
        context = f"traceparent: 00-{TRACE}-{PARENT}-01", f"tracestate: {'=' * 5000}"
        assert site.send_request(post("/validate", encoded(review()), *context)).status == 200
    tracer.close()
    assert stream.getvalue() == ""


def test_the_end_does_not_wait_for_a_collector_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv(ENDPOINT, url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "6")
        monkeypatch.setattr("webhook.telemetry.tracing.CLOSE_SECONDS", 0.5)
        tracer = make_tracer({ENDPOINT: url}, LOG)
        assert tracer is not None
        with serve_site(decide) as site:
            site.server.telemetry.tracer = tracer
            assert site.evaluate(review()).status == 200
        started = time.monotonic()
        tracer.close()
        assert time.monotonic() - started < 5


def test_a_collector_that_does_not_answer_is_logged_and_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    stream = io.StringIO()
    tracer = make_tracer({ENDPOINT: "http://127.0.0.1:9"}, make_logger("info", stream))
    assert tracer is not None
    with serve_site(decide) as site:
        site.server.telemetry.tracer = tracer
        assert site.evaluate(review()).status == 200
    tracer.close()
    assert {json.loads(line)["event"] for line in stream.getvalue().splitlines()} == {"spans not exported"}


def test_a_collector_that_is_down_is_one_warning_with_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter warns of each of its attempts, of the batch that it gives up, and of the full queue."""
    for name, value in {ENDPOINT: "http://127.0.0.1:9", "OTEL_BSP_MAX_QUEUE_SIZE": "512"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "4")
    stream = io.StringIO()
    tracer = make_tracer({ENDPOINT: "http://127.0.0.1:9"}, make_logger("info", stream))
    assert tracer is not None
    for _ in range(2000):
        tracer.record(TracedReview("mutate", "", 200, None, None, 1, 2))
    tracer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines() if "Queue full" not in line]
    assert [line["times"] for line in lines] == [1]
    assert "Check that a collector answers" in lines[0]["advice"]
