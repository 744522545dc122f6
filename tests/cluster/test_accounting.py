"""`accounting enable` on a real control plane: its output works, and the quota is enforced."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from tests.builders import make_pod
from tests.cluster.client import RefusedError
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_plane import running
from webhook.cli.main import build_app
from webhook.documents.reader import read_documents
from webhook.model.gpu_resources import ACCOUNTING_RESOURCE


def printed_documents(namespace: str) -> list[dict[str, object]]:
    """Return the documents that the command prints."""
    ran = CliRunner().invoke(build_app(["accounting"]), ["accounting", "enable", "-n", namespace, "--gpus", "1"])
    return [document.data for document in read_documents(ran.stdout.encode(), "stdout")]


def check(plane: Plane, namespace: str) -> Result:
    """Return the result of `accounting check` for the plane."""
    flags = ["accounting", "check", "-n", namespace, "--kubeconfig", str(plane.kubeconfig)]
    return CliRunner().invoke(build_app(["accounting"]), flags)


def test_a_pod_runs_and_the_next_one_exceeds_the_quota(plane: Plane, nodes: list[str], namespace: str) -> None:
    entry, quota = printed_documents(namespace)
    plane.api.create(f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    counted = f"/api/v1/namespaces/{namespace}/resourcequotas/gpus"
    eventually(lambda: plane.api.get(counted)["status"].get("hard"))
    pods = f"/api/v1/namespaces/{namespace}/pods"

    with plane.scheduler_with(**entry):
        plane.api.create(pods, make_pod("first").namespace(namespace).requests(ACCOUNTING_RESOURCE, "750").build())
        running(plane, namespace, "first")
    assert "the scheduler ignores it: a pod with it runs on a node that does not" in check(plane, namespace).stdout

    eventually(
        lambda: plane.api.get(counted)["status"]["used"][f"requests.{ACCOUNTING_RESOURCE}"],
        until=lambda it: it == "750",
    )
    with pytest.raises(RefusedError, match=r"exceeded quota: gpus, requested: .*=500, used: .*=750, limited: .*=1k"):
        plane.api.create(pods, make_pod("second").namespace(namespace).requests(ACCOUNTING_RESOURCE, "500").build())


def test_check_reports_what_a_dry_run_pod_lacks(plane: Plane, nodes: list[str], namespace: str) -> None:
    unknown = "whether the scheduler ignores it cannot be read from any API"
    ran = eventually(lambda: check(plane, namespace), until=lambda result: unknown in result.stdout)
    assert ran.exit_code == 1
    assert f"a dry-run pod with one GPU in {namespace} does not get it" in ran.stdout
    assert not plane.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
