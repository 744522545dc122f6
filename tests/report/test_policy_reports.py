"""Report objects: one per namespace, results by workload and code, limited."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.report.audit_samples import DENIED, LONG, NOTED, NOW, audited_pod, cluster, rows_of
from webhook.report.policy_reports import MAX_RESULTS, ReportApi, build_policy_reports

TEXT = {"source", "policy", "rule", "category", "message"}
WORDS = {"result": {"pass", "fail", "warn", "error", "skip"}, "severity": {"critical", "high", "medium", "low", "info"}}


def test_only_namespaces_with_findings_to_act_on_have_one() -> None:
    assert [each["metadata"]["namespace"] for each in build_policy_reports(rows_of(cluster()), NOW)] == ["batch"]


def test_pods_of_a_workload_are_one_result() -> None:
    pods = [audited_pod(f"p{i}", workload="Job/j", findings=[DENIED, NOTED]) for i in range(50)]
    [report] = build_policy_reports(rows_of(pods), NOW)
    [result] = report["results"]
    assert (result["rule"], result["result"], result["properties"]["pods"]) == ("GPU-L102", "fail", "50")
    assert result["resources"] == [{"kind": "Job", "namespace": "team", "name": "j"}]
    assert report["summary"] == {"pass": 0, "fail": 1, "warn": 0, "error": 0, "skip": 0}


def test_a_pod_counts_once_for_equal_findings_in_two_containers() -> None:
    second = msgspec.structs.replace(DENIED, path=("spec", "containers", 1))
    [report] = build_policy_reports(rows_of([audited_pod("p", findings=[DENIED, second])]), NOW)
    [result] = report["results"]
    assert (result["message"].partition(":")[0], result["properties"]["pods"]) == ("spec", "1")


def test_omitted_results_are_counted() -> None:
    pods = [audited_pod(f"p{i:05}", findings=[DENIED]) for i in range(MAX_RESULTS + 7)]
    [report] = build_policy_reports(rows_of(pods), NOW)
    assert len(report["results"]) == MAX_RESULTS
    assert report["summary"]["fail"] == MAX_RESULTS + 7
    assert report["metadata"]["annotations"] == {"rightslice.dev/results-omitted": "7"}


def test_an_object_is_no_larger_than_an_api_server_stores() -> None:
    [report] = build_policy_reports(
        rows_of([audited_pod(f"p{i:05}", findings=[LONG]) for i in range(MAX_RESULTS)]), NOW
    )
    kept, omitted = len(report["results"]), int(report["metadata"]["annotations"]["rightslice.dev/results-omitted"])
    assert kept > MAX_RESULTS / 10
    assert kept + omitted == MAX_RESULTS
    assert len(json.dumps(report, ensure_ascii=False).encode()) < 1.4 * 1024 * 1024


KINDS = {ReportApi.OPENREPORTS: "Report", ReportApi.WGPOLICY: "PolicyReport"}


@pytest.mark.parametrize("api", ReportApi)
def test_each_api_gets_its_fields(api: ReportApi) -> None:
    [report] = build_policy_reports(rows_of(cluster()), NOW, api)
    assert (report["apiVersion"], report["kind"]) == (api.value, KINDS[api])
    assert ("source" in report, "configuration" in report) == ((api is ReportApi.OPENREPORTS,) * 2)
    for result in report["results"]:
        assert_fits(result)


def assert_fits(result: dict[str, Any]) -> None:
    """Check the types that both CRDs require: strings, enums, strings in `properties`, whole seconds."""
    assert all(isinstance(result[key], str) and result[key] for key in TEXT)
    assert all(result[key] in words for key, words in WORDS.items())
    assert all(isinstance(value, str) for value in result["properties"].values())
    assert {key: type(value) for key, value in result["timestamp"].items()} == {"seconds": int, "nanos": int}
