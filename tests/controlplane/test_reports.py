"""Report objects as the Go types of their publishers read them; Policy Reporter uses those of OpenReports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import Json
from tests.report.audit_samples import DENIED, LONG, NOTED, NOW, audited_pod, rows_of
from webhook.model.enums import PolicyMode
from webhook.model.findings import Finding
from webhook.report.policy_reports import ReportApi, build_policy_reports
from webhook.report.results import CheckResult

WARNED = Finding("GPU-S201", PolicyMode.WARN, ("spec",), 'must not be "privileged"\n', "Remove it.", "guard")
UNKNOWN = msgspec.structs.replace(DENIED, code="GPU-X999", policy="")

PODS = (
    *(audited_pod(f"a-{i}", workload="Job/a", findings=[DENIED, WARNED, NOTED]) for i in range(3)),
    audited_pod("b-0", workload="Job/b", findings=[DENIED]),
    audited_pod("b-0", workload="Job/b", namespace="other", findings=[DENIED]),
    audited_pod("c-0", workload="RayCluster/c", findings=[UNKNOWN, LONG]),
)
"""Two workloads with an equal finding in one namespace, a third in another, and texts of every kind."""

RESULTS = [
    ("other", "Job", "b", "research", "GPU-L102", "fail", "high", True, "spec: must be one of 1, 2, 4, 8 (found 3)", 1),
    ("team", "Job", "a", "research", "GPU-L102", "fail", "high", True, "spec: must be one of 1, 2, 4, 8 (found 3)", 3),
    ("team", "Job", "b", "research", "GPU-L102", "fail", "high", True, "spec: must be one of 1, 2, 4, 8 (found 3)", 1),
    ("team", "RayCluster", "c", "research", "GPU-L102", "fail", "high", True, f"spec: {LONG.message}"[:512], 1),
    ("team", "RayCluster", "c", "rightslice", "GPU-X999", "fail", "high", True,
     "spec: must be one of 1, 2, 4, 8 (found 3)", 1),
    ("team", "Job", "a", "guard", "GPU-S201", "warn", "medium", False, 'spec: must not be "privileged"\\n', 3),
]  # fmt: skip
"""Namespace, kind, name, policy, rule, result, severity, scored, message and number of pods."""


def read_reports(program: Path, reports: Sequence[Json]) -> list[tuple[Any, str]]:
    """Return what the types read of each object, and the error."""
    lines = "\n".join(map(json.dumps, reports))
    done = subprocess.run([program], input=lines, capture_output=True, text=True, check=True, timeout=600)
    return [(answer["read"], answer["error"]) for answer in map(json.loads, done.stdout.splitlines())]


def reports_of(pods: Sequence[CheckResult], api: ReportApi, days: int = 0) -> list[Json]:
    return build_policy_reports(rows_of(pods), NOW + timedelta(days=days), api)


@pytest.mark.parametrize("api", ReportApi)
def test_every_finding_is_read(reports_program: Path, api: ReportApi) -> None:
    answers = read_reports(reports_program, reports_of(PODS, api))

    assert {error for _, error in answers} == {""}
    found = [
        (resource["namespace"], resource["kind"], resource["name"], result["policy"], result["rule"], result["result"],
         result["severity"], result.get("scored", False), result["message"], int(result["properties"]["pods"]))
        for report, _ in answers for result in report["results"] for resource in result["resources"]
    ]  # fmt: skip
    assert found == RESULTS


@pytest.mark.parametrize("api", ReportApi)
def test_nothing_written_is_lost_or_changed(reports_program: Path, api: ReportApi) -> None:
    written = reports_of(PODS, api)

    answers = read_reports(reports_program, written)

    assert [without_defaults(report) for report, _ in answers] == [without_defaults(report) for report in written]


def without_defaults(value: Any) -> Any:
    """Return the value without fields that Go leaves out: null, false and empty."""
    if isinstance(value, list):
        return [without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: without_defaults(each) for key, each in value.items()}
    return {key: each for key, each in kept.items() if each is not None and each is not False and each != {}}


@pytest.mark.parametrize("api", ReportApi)
def test_a_result_is_identified_by_workload_and_finding(reports_program: Path, api: ReportApi) -> None:
    """Policy Reporter keeps one of several results with the same ID, and reports one with another ID as new."""
    today, later = (reports_of(PODS, api, days) for days in (0, 1))

    found = [result_ids(read_reports(reports_program, reports)) for reports in (today, later)]

    assert len(set(found[0])) == len(RESULTS)
    assert found[0] == found[1]


def result_ids(answers: Sequence[tuple[Any, str]]) -> list[str]:
    return [result["properties"]["resultID"] for report, _ in answers for result in report["results"]]


def test_every_result_has_the_source_and_a_category(reports_program: Path) -> None:
    answers = read_reports(reports_program, reports_of(PODS, ReportApi.OPENREPORTS))

    results = [result for report, _ in answers for result in report["results"]]
    assert {report["source"] for report, _ in answers} == {result["source"] for result in results} == {"rightslice"}
    assert all(result["category"] for result in results)


INVALID = {
    "an unknown field": ({"remarks": []}, 'unknown field "remarks"'),
    "another kind": ({"kind": "ClusterReport"}, "no report: openreports.io/v1alpha1, Kind=ClusterReport"),
    "a number as text": ({"summary": {"fail": "1"}}, "cannot unmarshal string"),
}


@pytest.mark.parametrize(("change", "error"), INVALID.values(), ids=INVALID)
def test_invalid_objects_are_errors(reports_program: Path, change: Json, error: str) -> None:
    [(_, found), *_] = read_reports(reports_program, [reports_of(PODS, ReportApi.OPENREPORTS)[0] | change])

    assert error in found
