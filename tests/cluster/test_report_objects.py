"""`audit --write` on a real API server, with published CRDs and the role of docs/audit.md."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.builders import make_pod
from tests.cluster.accounts import bind_account, documented_role
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.test_crds import is_served
from tests.conftest import ROOT
from tests.controlplane.definitions import definitions
from tests.policy.policy_texts import policy_text
from tests.report.audit_samples import DENIED, LONG, NOTED, NOW, audited_pod, rows_of
from webhook.audit.report_writer import publish_reports
from webhook.kube.api import KubeClient
from webhook.report.policy_reports import MAX_RESULTS, ReportApi, build_policy_reports
from webhook.report.results import CheckResult

NAME = "rightslice-audit"
REPORTS = "/apis/openreports.io/v1alpha1/namespaces/{}/reports"
POLICY_REPORTS = "/apis/wgpolicyk8s.io/v1alpha2/namespaces/{}/policyreports"
PATHS = {"openreports": REPORTS, "wgpolicy": POLICY_REPORTS}
APIS = {"openreports": ReportApi.OPENREPORTS, "wgpolicy": ReportApi.WGPOLICY}


@pytest.fixture
def none_served(plane: Plane) -> Iterator[None]:
    """No report APIs, before and after. Removing them can take an API server over two minutes."""
    yield
    if names := report_crds(plane):
        plane.kubectl("delete", "--wait=false", *names)
        eventually(lambda: report_crds(plane), until=lambda left: not left, within=300)


def report_crds(plane: Plane) -> list[str]:
    """Return the CRDs of policy reports."""
    found = plane.kubectl("get", "crd", "-o", "name").stdout.split()
    return [each for each in found if each.endswith(("openreports.io", "wgpolicyk8s.io"))]


def install_report_crds(plane: Plane, publisher: str) -> None:
    """Create these CRDs, and wait until the API server serves them."""
    plane.kubectl("apply", "--server-side", f"--filename={definitions(publisher)}")
    eventually(lambda: is_served(plane, PATHS[publisher].format("default")))


def run_audit(plane: Plane, *flags: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run an audit with --write."""
    cluster_flags = ["--cluster", "live", "--kubeconfig", str(kubeconfig or plane.kubeconfig)]
    command = [sys.executable, "-m", "webhook.cli", "audit", "--write", *cluster_flags, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=ROOT)


def run_publish(plane: Plane, found: Sequence[CheckResult], *apis: ReportApi, dry_run: bool = False) -> list[str]:
    """Run an audit with --write and return its messages."""
    messages: list[str] = []

    async def run() -> None:
        async with await KubeClient.connect(str(plane.kubeconfig)) as api:
            await publish_reports(
                api, build_policy_reports(rows_of(found), NOW, apis[0]), apis, messages.append, dry_run=dry_run
            )

    asyncio.run(run())
    return messages


@pytest.mark.usefixtures("none_served")
def test_without_a_report_api_a_note_says_what_to_install(plane: Plane) -> None:
    ran = run_audit(plane)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "neither Report of openreports.io/v1alpha1 nor PolicyReport of wgpolicyk8s.io/v1alpha2" in ran.stderr
    assert "Install the CRDs of OpenReports" in ran.stderr


@pytest.mark.usefixtures("none_served")
@pytest.mark.parametrize("publisher", PATHS)
def test_reports_are_stored_and_deleted_when_out_of_date(plane: Plane, namespace: str, publisher: str) -> None:
    install_report_crds(plane, publisher)
    api, path = APIS[publisher], f"{PATHS[publisher].format(namespace)}/{NAME}"
    kind = {"openreports": "Report", "wgpolicy": "PolicyReport"}[publisher]
    found = [audited_pod(f"p{i}", namespace=namespace, workload="Job/j", findings=[DENIED, NOTED]) for i in range(3)]
    counts = "1 fail, 0 warn"

    assert run_publish(plane, found, api, dry_run=True) == [f"{kind} {namespace}/{NAME} would be written: {counts}"]
    assert not plane.api.exists(path)
    for _ in range(2):
        assert run_publish(plane, found, api) == [f"{kind} {namespace}/{NAME} written: {counts}"]
    stored = plane.api.get(path)
    assert [(each["rule"], each["result"], each["properties"]["pods"]) for each in stored["results"]] == [
        ("GPU-L102", "fail", "3")
    ]
    assert {each["manager"] for each in stored["metadata"]["managedFields"]} == {NAME}

    deleted = f"{kind} {namespace}/{NAME} {{}}deleted: out of date"
    assert run_publish(plane, [], api, dry_run=True) == [deleted.format("would be ")]
    assert plane.api.exists(path)
    assert run_publish(plane, [], api) == [deleted.format("")]
    assert not plane.api.exists(path)


@pytest.mark.usefixtures("none_served")
def test_a_report_of_the_maximum_size_is_stored(plane: Plane, namespace: str) -> None:
    install_report_crds(plane, "openreports")
    found = [audited_pod(f"p{i:04}", namespace=namespace, findings=[LONG]) for i in range(MAX_RESULTS + 1)]
    run_publish(plane, found, ReportApi.OPENREPORTS)
    assert plane.api.get(f"{REPORTS.format(namespace)}/{NAME}")["summary"]["fail"] == MAX_RESULTS + 1


@pytest.mark.usefixtures("none_served")
def test_a_deleted_namespace_does_not_affect_other_reports(plane: Plane, namespace: str) -> None:
    install_report_crds(plane, "openreports")
    found = [audited_pod("p", namespace=name, findings=[DENIED]) for name in ("away", namespace)]
    assert run_publish(plane, found, ReportApi.OPENREPORTS) == [
        f"Report away/{NAME} is skipped: its namespace is being deleted",
        f"Report {namespace}/{NAME} written: 1 fail, 0 warn",
    ]


@pytest.mark.usefixtures("none_served")
def test_a_report_of_another_tool_with_our_name_is_left_alone(plane: Plane, namespace: str) -> None:
    install_report_crds(plane, "openreports")
    path = REPORTS.format(namespace)
    labels = {"app.kubernetes.io/managed-by": "scanner"}
    foreign_report = {
        "apiVersion": "openreports.io/v1alpha1",
        "kind": "Report",
        "metadata": {"name": NAME, "labels": labels},
    }
    plane.api.create(path, {**foreign_report, "source": "scanner", "results": [{"policy": "p", "source": "scanner"}]})
    before = plane.api.get(f"{path}/{NAME}")

    [message] = run_publish(plane, [audited_pod("p", namespace=namespace, findings=[DENIED])], ReportApi.OPENREPORTS)
    assert message.startswith(f"Report {namespace}/{NAME} belongs to another tool and is not changed: its label ")
    assert "must be rightslice, found scanner. To store the results there, delete" in message
    assert run_publish(plane, [], ReportApi.OPENREPORTS) == []
    assert plane.api.get(f"{path}/{NAME}") == before


@pytest.mark.usefixtures("none_served")
def test_with_both_apis_the_newer_is_used_and_other_reports_stay(plane: Plane, namespace: str, tmp_path: Path) -> None:
    """By a service account with the role of docs/audit.md."""
    install_report_crds(plane, "wgpolicy")
    older = POLICY_REPORTS.format(namespace)
    type_and_name = {"apiVersion": "wgpolicyk8s.io/v1alpha2", "kind": "PolicyReport", "metadata": {"name": "scanner"}}
    plane.api.create(older, {**type_and_name, "results": [{"policy": "p"}]})
    run_publish(plane, [audited_pod("p", namespace=namespace, findings=[DENIED])], ReportApi.WGPOLICY)
    install_report_crds(plane, "openreports")
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", make_pod("greedy").namespace(namespace).gpus(2).build())
    policy = tmp_path / "policy.yaml"
    limits = {"perPod": [{"resource": "nvidia.com/gpu", "max": 1}]}
    policy.write_text(policy_text("tight", match={"namespaces": [namespace]}, mode="enforce", limits=limits))

    account = documented_account(plane, namespace, tmp_path)
    ran = run_audit(plane, "--policies", str(policy), kubeconfig=account)

    assert ran.returncode == 1, ran.stderr
    assert [line for line in ran.stderr.splitlines() if f" {namespace}/" in line] == [
        f"Report {namespace}/{NAME} written: 1 fail, 0 warn",
        f"PolicyReport {namespace}/{NAME} deleted: out of date",
    ]
    assert [each["metadata"]["name"] for each in plane.api.get(older)["items"]] == ["scanner"]
    [result] = plane.api.get(f"{REPORTS.format(namespace)}/{NAME}")["results"]
    assert (result["policy"], result["rule"], result["resources"][0]["name"]) == ("tight", "GPU-L103", "greedy")


def documented_account(plane: Plane, namespace: str, folder: Path) -> Path:
    """Return the kubeconfig of a service account with the ClusterRoles in docs/audit.md and docs/console.md."""
    file = folder / "kubeconfig"
    for page in ("docs/audit.md", "docs/console.md"):
        role = documented_role(page)
        plane.kubectl("apply", "-f", "-", stdin=json.dumps(role))
        bind_account(plane, namespace, role["metadata"]["name"], file)
    return file
