"""The JSON of `check` is a contract, defined by `docs/check-output.md` and tested here."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.cli.conftest import INPUTS, JUNE, Run
from tests.conftest import ROOT
from webhook.model.codes import CODES

PAGE = (ROOT / "docs/check-output.md").read_text()

OBJECT: dict[str, type] = {
    "file": str,
    "line": int,
    "apiVersion": str,
    "kind": str,
    "namespace": str,
    "name": str,
    "verdict": str,
    "keepReason": str,
    "message": str,
    "findings": list,
    "replicas": type(None),  # of a workload: REPLICAS
    "patch": list,
    "gpuMilliBefore": int,
    "gpuMilliAfter": int,
}
REPLICAS: dict[str, type] = {"rightSized": int, "kept": int, "rejected": int}
FINDING: dict[str, type] = {
    "code": str,
    "mode": str,
    "path": str,
    "line": int,
    "column": int,
    "message": str,
    "fix": str,
    "policy": str,
    "deniesPods": bool,
    "reason": str,
}
SUMMARY: dict[str, type] = {
    "objects": int,
    "denied": int,
    "warned": int,
    "allowed": int,
    "noGpu": int,
    "skipped": int,
    "invalid": int,
    "findings": dict,
    "gpuMilliBefore": int,
    "gpuMilliAfter": int,
    "exemptions": list,
    "skips": list,
    "policies": list,
}
AMOUNT: dict[str, type] = {"milli": int, "microPerHour": int, "unpricedMilli": int}
WORKLOAD: dict[str, type] = {
    "namespace": str,
    "workload": str,
    "pods": int,
    "pending": int,
    "gpuMilliBefore": int,
    "gpuMilliAfter": int,
    "gpuMilliSaved": int,
    "gpuMilliAuditSaved": int,
    "allocated": dict,
    "idle": dict,
    "idleUnknownMilli": int,
    "overRequested": dict,
    "wasted": dict,
    "denied": int,
    "warned": int,
    "unevaluated": list,
    "outcome": str,
    "keepReason": str,
    "findings": list,
}
COST: dict[str, type] = {
    "currency": str,
    "source": str,
    "microPerHour": int,
    "effectiveMicroPerHour": int,
    "wastedMicroPerHour": int,
    "idleMicroPerHour": type(None),  # no usage data
    "overRequestedMicroPerHour": int,
    "fragmentedMicroPerHour": int,
    "unschedulableMicroPerHour": int,
    "unknownMicroPerHour": int,
    "unpricedMilli": int,
    "rates": list,
    "notes": list,
}
RATE: dict[str, type] = {"product": str, "milli": int, "microPerHour": int}
FIGURES: dict[str, type] = {
    **dict.fromkeys(("installedGpus", "allocatableMilli", "allocatedMilli", "effectiveMilli", "wastedMilli"), int),
    "idleUnknownMilli": int,
    "idleMilli": type(None),  # no usage data
    **dict.fromkeys(("overRequestedMilli", "fragmentedMilli", "usableMilli", "unknownMilli"), int),
    "utilizationMilli": type(None),  # no usage data
    **dict.fromkeys(("schedulingEfficiencyMilli", "pendingPods", "gpuWorkloads", "gpuWorkloadsWithUsage"), int),
    **dict.fromkeys(("podsOnMissingNodes", "overcommittedMilli", "unschedulableMilli"), int),
    "cost": dict,
}
NAMESPACE: dict[str, type] = {
    "namespace": str,
    "pods": int,
    "gpuMilliBefore": int,
    "gpuMilliAfter": int,
    "gpuMilliSaved": int,
    "gpuMilliAuditSaved": int,
    "denied": int,
    "warned": int,
}
SKIP: dict[str, type] = {"file": str, "line": int, "message": str, "invalid": bool}
VERDICTS = {"allowed", "warned", "denied", "skipped", "no-gpu"}


def assert_shape(data: Any, want: dict[str, type]) -> None:
    assert {key: type(value) for key, value in data.items()} == want


@pytest.fixture
def document(rightslice: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rightslice("check", "deploy", "odd", "bad", *INPUTS, "-o", "json").out)
    return found


def test_the_document_has_exactly_these_fields(document: dict[str, Any]) -> None:
    assert set(document) == {"objects", "summary"}
    assert_shape(document["summary"], SUMMARY)
    for each in document["summary"]["skips"]:
        assert_shape(each, SKIP)
    for each in document["objects"]:
        assert_shape(each | {"replicas": None}, OBJECT)
        if each["kind"] == "Deployment":
            assert_shape(each["replicas"], REPLICAS)
        for finding in each["findings"]:
            assert_shape(finding, FINDING)
            assert finding["code"] in CODES
            assert finding["mode"] in ("enforce", "warn", "audit")


def test_the_sums_are_correct(document: dict[str, Any]) -> None:
    objects, summary = document["objects"], document["summary"]
    verdicts = [each["verdict"] for each in objects]
    assert set(verdicts) == VERDICTS, "the fixture files have an object of each"
    assert summary["objects"] == len(objects)
    for verdict in VERDICTS:
        assert summary["noGpu" if verdict == "no-gpu" else verdict] == verdicts.count(verdict)
    assert len(summary["skips"]) == summary["skipped"]
    assert summary["invalid"] == sum(skip["invalid"] for skip in summary["skips"]) == 2
    assert summary["gpuMilliBefore"] == sum(each["gpuMilliBefore"] for each in objects)
    assert summary["findings"]["enforce"] == 1


def test_a_kept_request_has_a_stable_reason_for_scripts(rightslice: Run) -> None:
    [pod] = json.loads(rightslice("check", "deploy/train.yaml", *INPUTS, "-o", "json").out)["objects"]
    assert pod["keepReason"] == "MultipleGPUs"
    assert "several GPUs" in pod["message"]


def test_audit_adds_namespaces(rightslice: Run) -> None:
    document = json.loads(rightslice("audit", "cluster.yaml", *INPUTS, "-o", "json").out)
    parts = {"namespaces", "workloads", "claims", "rightSizedAtAdmission", "utilization", "reach"}
    assert set(document) == {"objects", "summary", *parts}
    assert set(document["rightSizedAtAdmission"]) == {"pods", "gpuMilliBefore", "gpuMilliAfter", "gpuMilliSaved"}
    pods = {"eligiblePods", "rightSizedPods", "evaluatedAlonePods", "displacedPods"}
    assert set(document["reach"]) == {*pods, "kept", "ineligible", "partitioning"}
    for each in document["namespaces"]:
        assert_shape(each, NAMESPACE)
    for each in document["workloads"]:
        assert_shape(each, WORKLOAD)
        for part in ("allocated", "overRequested"):
            assert_shape(each[part], AMOUNT)
        assert each["idle"] == dict.fromkeys(AMOUNT), "without usage data idle is unknown, not 0"
        assert each["idleUnknownMilli"] == each["allocated"]["milli"]
    assert_shape(document["utilization"], FIGURES)
    assert_shape(document["utilization"]["cost"], COST)
    for each in document["utilization"]["cost"]["rates"]:
        assert_shape(each, RATE)


PRICES: dict[str, type] = {"currency": str, "source": str, "rates": list, "notes": list}


@pytest.mark.parametrize(("command", "rates"), [(("audit", "--since", "9999d"), 0), (("rightsize",), 1)])
def test_costs_without_utilization_have_their_prices(rightslice: Run, command: tuple[str, ...], rates: int) -> None:
    result = rightslice(command[0], "cluster.yaml", *INPUTS[:2], *command[1:], "-o", "json", "--now", JUNE)
    prices = json.loads(result.out)["prices"]
    assert_shape(prices, PRICES)
    assert prices["source"].startswith("example prices, not yours")
    assert len(prices["rates"]) == rates


@pytest.mark.parametrize(
    "field", [*OBJECT, *REPLICAS, *FINDING, *SUMMARY, *NAMESPACE, *WORKLOAD, *AMOUNT, *FIGURES, *COST, *RATE]
)
def test_the_page_names_every_field(field: str) -> None:
    assert f"`{field}`" in PAGE


def test_the_documented_example_equals_the_check_output(rightslice: Run) -> None:
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    written = rightslice("check", "deploy/train.yaml", *INPUTS, "-o", "json").out
    assert json.loads(example) == json.loads(written)
