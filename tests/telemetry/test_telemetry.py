"""Metrics and logs."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.builders import make_pod
from webhook.errors import ApiError
from webhook.kube.reflector import WatchStatus
from webhook.model.admission import AdmissionRequest
from webhook.model.decisions import Decision, GpuNeed, KeepReason, KeepRequest, OfferChoice, patch_add
from webhook.model.enums import EvidenceSource, PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import parse_pod
from webhook.telemetry.logs import make_logger
from webhook.telemetry.metrics import DurationHistogram
from webhook.telemetry.telemetry import Telemetry, response_result

DENIED = Finding("GPU-L102", PolicyMode.ENFORCE, (), "must be so")
WARNED = Finding("GPU-T201", PolicyMode.WARN, (), "no node has it")
AUDITED = Finding("GPU-S201", PolicyMode.AUDIT, (), "is privileged")
RESIZED = Finding("GPU-R101", PolicyMode.WARN, (), "was right-sized")
PATCH = (patch_add(("a",), 1),)


def request(**fields: Any) -> AdmissionRequest:
    given = {"operation": "CREATE", "group": "", "kind": "Pod", "namespace": "team", "name": "pod", "uid": "u-1"}
    return AdmissionRequest(pod=parse_pod(make_pod().build()), load_object=dict, **(given | fields))


class RecordedTelemetry:
    """Telemetry with its metrics and log."""

    def __init__(self, level: str = "info") -> None:
        self.log = io.StringIO()
        self.telemetry = Telemetry(make_logger(level, self.log))

    def samples(self) -> dict[str, float]:
        lines = self.telemetry.metrics_text().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


RESULTS = {
    "no findings, /mutate": ("mutate", Decision(), "allowed"),
    "patched": ("mutate", Decision(patch=PATCH), "patched"),
    "denied by /validate only, /mutate": ("mutate", Decision(findings=(DENIED,)), "allowed"),
    "no findings, /validate": ("validate", Decision(), "allowed"),
    "denied": ("validate", Decision(findings=(DENIED, WARNED)), "denied"),
    "warned": ("validate", Decision(findings=(WARNED, AUDITED)), "warned"),
    "audited": ("validate", Decision(findings=(AUDITED,)), "allowed"),
    "right-sized, /validate": (
        "validate",
        Decision(findings=(Finding("GPU-R101", PolicyMode.WARN, (), "was right-sized"),), patch=PATCH),
        "allowed",
    ),
}


@pytest.mark.parametrize(("route", "decision", "want"), RESULTS.values(), ids=RESULTS)
def test_response_result(route: str, decision: Decision, want: str) -> None:
    assert response_result(route, decision) == want


def test_mutation_warnings_count_on_validate_for_workloads_only() -> None:
    decision = Decision(findings=(Finding("GPU-R101", PolicyMode.WARN, (), "was right-sized"),))
    assert response_result("validate", decision) == "allowed"
    assert response_result("validate", decision, workload=True) == "warned"


def test_review_is_counted() -> None:
    recorded = RecordedTelemetry()
    decision = Decision(findings=(RESIZED,), patch=PATCH, gpu_milli_before=2000, gpu_milli_after=500)
    recorded.telemetry.record_decision("mutate", request(), decision, 0.0003)
    recorded.telemetry.record_decision("validate", request(operation="MAGIC"), Decision(findings=(DENIED,)), 7.0)
    samples = recorded.samples()
    total = "rightslice_admission_requests_total"
    assert samples[f'{total}{{operation="CREATE",result="patched",route="mutate"}}'] == 1
    assert samples[f'{total}{{operation="other",result="denied",route="validate"}}'] == 1
    assert samples['rightslice_findings_total{code="GPU-R101",mode="warn"}'] == 1
    assert samples['rightslice_findings_total{code="GPU-L102",mode="enforce"}'] == 1
    assert samples["rightslice_gpu_milli_requested_total"] == 2000
    assert samples["rightslice_gpu_milli_admitted_total"] == 500
    bucket = "rightslice_admission_duration_seconds_bucket"
    assert samples[f'{bucket}{{le="0.0002",route="mutate"}}'] == 0
    assert samples[f'{bucket}{{le="0.0005",route="mutate"}}'] == 1
    assert samples[f'{bucket}{{le="1.0",route="validate"}}'] == 0
    assert samples[f'{bucket}{{le="+Inf",route="validate"}}'] == 1


def test_outcome_of_right_sizing_is_counted_for_each_created_pod_with_gpus() -> None:
    recorded = RecordedTelemetry()
    kept = Decision(outcome=KeepRequest(KeepReason.QUEUED, "label x"), gpu_milli_before=1000)
    recorded.telemetry.record_decision("mutate", request(), kept, 0.1)
    recorded.telemetry.record_decision("validate", request(), kept, 0.1)
    recorded.telemetry.record_decision("mutate", request(), Decision(), 0.1)
    outcomes = {name: count for name, count in recorded.samples().items() if "right_sizing_outcomes_total" in name}
    assert outcomes == {'rightslice_right_sizing_outcomes_total{outcome="QueuedWorkload"}': 1}


@pytest.mark.parametrize(("applied", "count"), [(True, 1), (False, 0)])
def test_right_sized_pods_are_counted_by_evidence(applied: bool, count: int) -> None:
    recorded = RecordedTelemetry()
    decision = Decision(outcome=SLICE, applied=applied, gpu_milli_before=1000)

    recorded.telemetry.record_decision("mutate", request(), decision, 0.1)

    metric, samples = "rightslice_right_sized_pods_total", recorded.samples()
    found = {name: samples[f'{metric}{{evidence="{name}"}}'] for name in ("declared", "observed", "default")}
    assert found == {"declared": count, "observed": 0, "default": 0}


SLICE = OfferChoice("nvidia.com/mig-1g.10gb", (), GpuNeed(8, None, EvidenceSource.DECLARED, "8Mi declared"), "p")
NEEDS: dict[str, tuple[OfferChoice | KeepRequest, dict[str, int]]] = {
    "a slice, given or audited": (
        OfferChoice("nvidia.com/mig-1g.10gb", (), GpuNeed(8, None, EvidenceSource.DECLARED, "8Mi declared"), "p"),
        {"free": 8},
    ),
    "all such slices are allocated": (KeepRequest(KeepReason.NO_FREE_CAPACITY), {"full": 8}),
    "no card is partitioned for it": (KeepRequest(KeepReason.NO_OFFER), {"missing": 8}),
    "a device class would cover it, and no pod can get it": (KeepRequest(KeepReason.MIXED_CLASS), {"missing": 8}),
    "another reason": (KeepRequest(KeepReason.QUEUED), {}),
}


@pytest.mark.parametrize(("outcome", "expected"), NEEDS.values(), ids=NEEDS)
@pytest.mark.parametrize("largest", [8, 7])
def test_needs_are_counted_by_the_availability_of_a_slice(
    outcome: OfferChoice | KeepRequest, expected: dict[str, int], largest: int
) -> None:
    recorded = RecordedTelemetry()
    recorded.telemetry.metrics.largest_slice_mib = lambda: largest
    decision = Decision(outcome=outcome, needed_mib=8, gpu_milli_before=1000)

    recorded.telemetry.record_decision("mutate", request(), decision, 0.1)

    metric, samples = "rightslice_right_sizable_need_bytes_total", recorded.samples()
    found = {name: samples[f'{metric}{{slice="{name}"}}'] for name in ("free", "full", "missing")}
    covered = expected if largest == 8 else {name: mib for name, mib in expected.items() if name != "missing"}
    assert found == {"free": 0, "full": 0, "missing": 0} | {name: mib << 20 for name, mib in covered.items()}


def test_dry_run_counts_no_gpu_capacity() -> None:
    recorded = RecordedTelemetry()
    recorded.telemetry.record_decision("mutate", request(dry_run=True), Decision(gpu_milli_before=9), 0.1)
    assert recorded.samples()["rightslice_gpu_milli_requested_total"] == 0


def test_denied_pod_counts_in_no_figure_of_created_pods() -> None:
    recorded = RecordedTelemetry()
    denied = Decision(
        findings=(DENIED,), outcome=SLICE, applied=True, needed_mib=8, gpu_milli_before=1000, gpu_milli_after=143
    )

    recorded.telemetry.record_decision("mutate", request(), denied, 0.1)

    of_created = ("rightslice_gpu_milli_", "rightslice_right_")
    assert {name: value for name, value in recorded.samples().items() if name.startswith(of_created) and value} == {}


def test_unknown_code_creates_no_series() -> None:
    recorded = RecordedTelemetry()
    recorded.telemetry.record_decision(
        "validate", request(), Decision(findings=(Finding("X", PolicyMode.WARN, (), "m"),)), 0.1
    )
    assert not any("rightslice_findings_total" in name for name in recorded.samples())


def test_bucket_includes_its_upper_bound() -> None:
    histogram = DurationHistogram()
    histogram.observe(0.001)
    assert dict(histogram.cumulative_buckets())["0.001"] == 1
    assert dict(histogram.cumulative_buckets())["0.0005"] == 0


def test_denial_is_logged_with_its_uid_and_codes() -> None:
    recorded = RecordedTelemetry()
    recorded.telemetry.record_decision(
        "validate", request(name="train"), Decision(findings=(DENIED,), policies=("p",)), 0.1
    )
    (line,) = recorded.lines()
    assert (line["event"], line["level"], line["uid"], line["name"]) == ("request denied", "info", "u-1", "train")
    assert (line["codes"], line["policies"]) == (["GPU-L102"], ["p"])


@pytest.mark.parametrize(("decision", "event"), [(Decision(findings=(DENIED,)), "denied"), (Decision(), "debug")])
def test_decision_is_logged_with_the_reason_to_keep_the_request(decision: Decision, event: str) -> None:
    recorded = RecordedTelemetry("debug")
    kept = KeepRequest(KeepReason.MULTIPLE_GPUS)
    decision = msgspec.structs.replace(decision, outcome=kept, gpu_milli_before=2000)
    recorded.telemetry.record_decision("validate", request(), decision, 0.1)
    assert [line["keepReason"] for line in recorded.lines()] == ["MultipleGPUs"], event


@pytest.mark.parametrize(("level", "lines"), [("info", []), ("debug", ["allowed", "patched"])])
def test_admitted_requests_are_one_line_at_debug(level: str, lines: list[str]) -> None:
    recorded = RecordedTelemetry(level)
    recorded.telemetry.record_decision("validate", request(), Decision(), 0.1)
    recorded.telemetry.record_decision("mutate", request(), Decision(patch=PATCH), 0.1)
    assert [line["result"] for line in recorded.lines()] == lines


def test_only_a_hundred_policies_have_their_own_series() -> None:
    recorded = RecordedTelemetry()
    for index in range(150):
        decision = Decision(findings=(msgspec.structs.replace(DENIED, policy=f"p-{index}"),), policies=(f"p-{index}",))
        recorded.telemetry.record_decision("validate", request(), decision, 0.1)
    samples = recorded.samples()
    assert samples['rightslice_policy_matches_total{policy="p-99"}'] == 1
    assert samples['rightslice_policy_denials_total{policy="p-0"}'] == 1
    assert samples['rightslice_policy_denials_total{policy="(others)"}'] == 50
    assert 'rightslice_policy_denials_total{policy="p-100"}' not in samples


def test_name_cannot_forge_a_log_line_or_control_a_terminal() -> None:
    recorded = RecordedTelemetry()
    name = 'x\n{"event":"forged"}\r\x1b[31m\x7f\u2028\u202e' + "y" * 10_000
    recorded.telemetry.record_decision("validate", request(name=name), Decision(findings=(DENIED,)), 0.1)
    text = recorded.log.getvalue()
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert text.isascii()
    assert len(text) < 5000
    assert json.loads(text)["event"] == "request denied"


def test_exception_is_logged_with_its_stack_and_without_its_message() -> None:
    recorded = RecordedTelemetry()
    secret = "canary-5e1f"
    with pytest.raises(KeyError) as caught:
        dict[str, int]()[secret]
    recorded.telemetry.record_internal_error("mutate", caught.value, "u-1")
    (line,) = recorded.lines()
    assert "test_telemetry.py" in line["exception"]
    assert line["exception"].endswith("KeyError")
    assert secret not in recorded.log.getvalue()
    assert recorded.samples()['rightslice_internal_errors_total{component="mutate"}'] == 1


def test_policy_loads_are_counted_by_result() -> None:
    recorded = RecordedTelemetry()
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    recorded.telemetry.record_policies_loaded("abc", 3, moment)
    assert recorded.samples()["rightslice_policies_last_load_successful"] == 1
    assert recorded.samples()["rightslice_active_policies"] == 3
    assert recorded.samples()["rightslice_policies_last_load_timestamp_seconds"] == moment.timestamp()
    recorded.telemetry.record_policies_rejected(("a.yaml:1:1: must be so",))
    samples = recorded.samples()
    assert samples["rightslice_policies_last_load_successful"] == 0
    assert samples['rightslice_policies_info{digest="abc"}'] == 1
    assert recorded.lines()[-1]["errors"] == ["a.yaml:1:1: must be so"]


RESULT_COUNTERS = ("policy_loads", "usage_loads", "certificate_loads", "events")


@pytest.mark.parametrize("name", RESULT_COUNTERS)
@pytest.mark.parametrize("result", ["success", "error"])
def test_each_result_has_its_series_before_the_first_count(name: str, result: str) -> None:
    """Prometheus sees no increase in the first sample of a series."""
    recorded = RecordedTelemetry()
    recorded.telemetry.metrics.usage_age = lambda: None

    assert recorded.samples()[f'rightslice_{name}_total{{result="{result}"}}'] == 0


def test_the_log_level_is_applied() -> None:
    stream = io.StringIO()
    log = make_logger("error", stream)
    log.warning("quiet")
    log.error("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_live_view_has_metrics_of_its_age_and_watches() -> None:
    recorded = RecordedTelemetry()
    assert not any(name.startswith(("rightslice_cluster_view", "rightslice_watch")) for name in recorded.samples())
    watch = WatchStatus("pods", lists=2, events=70, errors=1)
    recorded.telemetry.view_age, recorded.telemetry.watches = lambda: 12.5, lambda: [watch]
    samples = recorded.samples()
    assert samples["rightslice_cluster_view_age_seconds"] == 12.5
    assert samples['rightslice_watch_lists_total{resource="pods"}'] == 2
    assert samples['rightslice_watch_events_total{resource="pods"}'] == 70
    assert samples['rightslice_watch_errors_total{resource="pods"}'] == 1
    recorded.telemetry.record_watch_error("pods", ApiError("GET /pods", 410, "Gone", ""))
    assert recorded.lines()[-1]["event"] == "watch failed"
