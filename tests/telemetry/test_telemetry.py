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
from webhook.model.decisions import Decision, KeepReason, KeepRequest, patch_add
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.model.pods import parse_pod
from webhook.telemetry.logs import make_logger
from webhook.telemetry.metrics import DurationHistogram
from webhook.telemetry.telemetry import Telemetry, response_result

DENIED = Finding("GPU-L102", PolicyMode.ENFORCE, (), "must be so")
WARNED = Finding("GPU-T201", PolicyMode.WARN, (), "no node has it")
NOTED = Finding("GPU-S201", PolicyMode.AUDIT, (), "is privileged")
SHAPED = Finding("GPU-R101", PolicyMode.ENFORCE, (), "was right-sized")
PATCH = (patch_add(("a",), 1),)


def request(**fields: Any) -> AdmissionRequest:
    given = {"operation": "CREATE", "group": "", "kind": "Pod", "namespace": "team", "name": "pod", "uid": "u-1"}
    return AdmissionRequest(pod=parse_pod(make_pod().build()), load_object=dict, **(given | fields))


class Watched:
    """Telemetry with its metrics and log."""

    def __init__(self, level: str = "info") -> None:
        self.log = io.StringIO()
        self.telemetry = Telemetry(make_logger(level, self.log))

    def samples(self) -> dict[str, float]:
        lines = self.telemetry.metrics_text().decode().splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


VERDICTS = {
    "nothing found, /mutate": ("mutate", Decision(), "allowed"),
    "patched": ("mutate", Decision(patch=PATCH), "patched"),
    "denied elsewhere, /mutate": ("mutate", Decision(findings=(DENIED,)), "allowed"),
    "nothing found, /validate": ("validate", Decision(), "allowed"),
    "denied": ("validate", Decision(findings=(DENIED, WARNED)), "denied"),
    "warned": ("validate", Decision(findings=(WARNED, NOTED)), "warned"),
    "noted": ("validate", Decision(findings=(NOTED,)), "allowed"),
    "shaped, /validate": ("validate", Decision(findings=(SHAPED,), patch=PATCH), "allowed"),
}


@pytest.mark.parametrize(("route", "decision", "want"), VERDICTS.values(), ids=VERDICTS)
def test_verdict(route: str, decision: Decision, want: str) -> None:
    assert response_result(route, decision) == want


def test_mutation_warnings_count_on_validate_for_workloads_only() -> None:
    told = Decision(findings=(Finding("GPU-R101", PolicyMode.WARN, (), "was right-sized"),))
    assert response_result("validate", told) == "allowed"
    assert response_result("validate", told, workload=True) == "warned"


def test_a_review_is_counted() -> None:
    watched = Watched()
    decision = Decision(findings=(SHAPED, DENIED), patch=PATCH, gpu_milli_before=2000, gpu_milli_after=500)
    watched.telemetry.record_decision("mutate", request(), decision, 0.0003)
    watched.telemetry.record_decision("validate", request(operation="MAGIC"), decision, 7.0)
    samples = watched.samples()
    total = "rightslice_admission_requests_total"
    assert samples[f'{total}{{operation="CREATE",result="patched",route="mutate"}}'] == 1
    assert samples[f'{total}{{operation="other",result="denied",route="validate"}}'] == 1
    assert samples['rightslice_findings_total{code="GPU-R101",mode="enforce"}'] == 1
    assert samples['rightslice_findings_total{code="GPU-L102",mode="enforce"}'] == 1
    assert samples["rightslice_gpu_milli_requested_total"] == 2000
    assert samples["rightslice_gpu_milli_admitted_total"] == 500
    bucket = "rightslice_admission_duration_seconds_bucket"
    assert samples[f'{bucket}{{le="0.0002",route="mutate"}}'] == 0
    assert samples[f'{bucket}{{le="0.0005",route="mutate"}}'] == 1
    assert samples[f'{bucket}{{le="1.0",route="validate"}}'] == 0
    assert samples[f'{bucket}{{le="+Inf",route="validate"}}'] == 1


def test_dry_runs_save_nothing() -> None:
    watched = Watched()
    watched.telemetry.record_decision("mutate", request(dry_run=True), Decision(gpu_milli_before=9), 0.1)
    assert watched.samples()["rightslice_gpu_milli_requested_total"] == 0


def test_a_code_that_is_in_no_table_makes_no_series() -> None:
    watched = Watched()
    watched.telemetry.record_decision(
        "validate", request(), Decision(findings=(Finding("X", PolicyMode.WARN, (), "m"),)), 0.1
    )
    assert not any("rightslice_findings_total" in name for name in watched.samples())


def test_a_duration_at_a_bucket_s_end_falls_into_it() -> None:
    histogram = DurationHistogram()
    histogram.observe(0.001)
    assert dict(histogram.cumulative_buckets())["0.001"] == 1
    assert dict(histogram.cumulative_buckets())["0.0005"] == 0


def test_a_denial_is_logged_with_its_uid_and_codes() -> None:
    watched = Watched()
    watched.telemetry.record_decision(
        "validate", request(name="train"), Decision(findings=(DENIED,), policies=("p",)), 0.1
    )
    (line,) = watched.lines()
    assert (line["event"], line["level"], line["uid"], line["name"]) == ("request denied", "info", "u-1", "train")
    assert (line["codes"], line["policies"]) == (["GPU-L102"], ["p"])


@pytest.mark.parametrize(("decision", "event"), [(Decision(findings=(DENIED,)), "denied"), (Decision(), "debug")])
def test_a_decision_is_logged_with_the_reason_to_keep_the_request(decision: Decision, event: str) -> None:
    watched = Watched("debug")
    kept = KeepRequest(KeepReason.MULTIPLE_GPUS)
    decision = msgspec.structs.replace(decision, outcome=kept, involves_gpus=True)
    watched.telemetry.record_decision("validate", request(), decision, 0.1)
    assert [line["reason"] for line in watched.lines()] == ["MultipleGPUs"], event


@pytest.mark.parametrize(("level", "lines"), [("info", []), ("debug", ["allowed", "patched"])])
def test_admitted_requests_are_one_line_at_debug(level: str, lines: list[str]) -> None:
    watched = Watched(level)
    watched.telemetry.record_decision("validate", request(), Decision(), 0.1)
    watched.telemetry.record_decision("mutate", request(), Decision(patch=PATCH), 0.1)
    assert [line["result"] for line in watched.lines()] == lines


def test_policies_are_counted_and_a_hundred_of_them_by_name() -> None:
    watched = Watched()
    for index in range(150):
        decision = Decision(findings=(msgspec.structs.replace(DENIED, policy=f"p-{index}"),), policies=(f"p-{index}",))
        watched.telemetry.record_decision("validate", request(), decision, 0.1)
    samples = watched.samples()
    assert samples['rightslice_policy_matches_total{policy="p-99"}'] == 1
    assert samples['rightslice_policy_denials_total{policy="p-0"}'] == 1
    assert samples['rightslice_policy_denials_total{policy="(others)"}'] == 50
    assert 'rightslice_policy_denials_total{policy="p-100"}' not in samples


def test_a_name_cannot_write_a_second_line_or_reach_a_terminal() -> None:
    watched = Watched()
    name = 'x\n{"event":"forged"}\r\x1b[31m\x7f\u2028\u202e' + "y" * 10_000
    watched.telemetry.record_decision("validate", request(name=name), Decision(findings=(DENIED,)), 0.1)
    text = watched.log.getvalue()
    assert text.count("\n") == 1
    assert text.rstrip("\n").isprintable()
    assert text.isascii()
    assert len(text) < 5000
    assert json.loads(text)["event"] == "request denied"


def test_an_exception_is_logged_with_its_stack_and_without_its_message() -> None:
    watched = Watched()
    secret = "canary-5e1f"
    with pytest.raises(KeyError) as caught:
        dict[str, int]()[secret]
    watched.telemetry.record_internal_error("mutate", caught.value, "u-1")
    (line,) = watched.lines()
    assert "test_telemetry.py" in line["exception"]
    assert line["exception"].endswith("KeyError")
    assert secret not in watched.log.getvalue()
    assert watched.samples()['rightslice_internal_errors_total{component="mutate"}'] == 1


def test_policy_loads_are_counted_by_result() -> None:
    watched = Watched()
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    watched.telemetry.record_policies_loaded("abc", 3, moment)
    assert watched.samples()["rightslice_policies_last_load_successful"] == 1
    assert watched.samples()["rightslice_active_policies"] == 3
    assert watched.samples()["rightslice_policies_last_load_timestamp_seconds"] == moment.timestamp()
    watched.telemetry.record_policies_rejected(("a.yaml:1:1: must be so",))
    samples = watched.samples()
    assert samples["rightslice_policies_last_load_successful"] == 0
    assert samples['rightslice_policies_info{digest="abc"}'] == 1
    assert watched.lines()[-1]["errors"] == ["a.yaml:1:1: must be so"]


def test_the_log_level_is_applied() -> None:
    stream = io.StringIO()
    log = make_logger("error", stream)
    log.warning("quiet")
    log.error("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_a_live_view_has_an_age_and_its_watches_are_counted() -> None:
    watched = Watched()
    assert not any(name.startswith(("rightslice_cluster_view", "rightslice_watch")) for name in watched.samples())
    watch = WatchStatus("pods", lists=2, events=70, errors=1)
    watched.telemetry.view_age, watched.telemetry.watches = lambda: 12.5, lambda: [watch]
    samples = watched.samples()
    assert samples["rightslice_cluster_view_age_seconds"] == 12.5
    assert samples['rightslice_watch_lists_total{resource="pods"}'] == 2
    assert samples['rightslice_watch_events_total{resource="pods"}'] == 70
    assert samples['rightslice_watch_errors_total{resource="pods"}'] == 1
    watched.telemetry.record_watch_error("pods", ApiError("GET /pods", 410, "Gone", ""))
    assert watched.lines()[-1]["event"] == "watch failed"
