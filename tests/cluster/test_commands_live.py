"""audit, check and explain over a live cluster: listed by pages, and the same words as over a snapshot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.plane import Plane
from tests.cluster.waiting import eventually
from tests.conftest import ROOT
from tests.make import make_pod


def rightslice(plane: Plane, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as the admin of the plane."""
    where = ["--cluster", "live", "--kubeconfig", str(plane.kubeconfig)]
    command = [sys.executable, "-m", "webhook.cli", *arguments, *where]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


@pytest.fixture
def pods(plane: Plane, nodes: list[str], namespace: str) -> list[str]:
    """Three pods with GPUs that run, and one without."""
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    names = ["one", "two", "three", "plain"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name in names:
        made = make_pod(name).namespace(namespace).spec(tolerations=tolerations)
        plane.api.create(path, (made if name == "plain" else made.gpus(1)).build())
    eventually(lambda: all(plane.api.get(f"{path}/{name}")["spec"].get("nodeName") for name in names))
    return names


@pytest.mark.usefixtures("pods")
def test_an_audit_adds_up_what_runs(plane: Plane, namespace: str) -> None:
    ran = rightslice(plane, "audit", "-o", "json", "-v", "--fail-on", "never")
    assert ran.returncode == 0, ran.stderr
    (row,) = [each for each in json.loads(ran.stdout)["namespaces"] if each["namespace"] == namespace]
    assert (row["pods"], row["gpuMilliBefore"]) == (4, 3000)
    assert f"cluster: {plane.url} (" in ran.stderr


def test_an_audit_goes_page_by_page(plane: Plane, namespace: str, pods: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; import webhook.audit.cluster as c; c.PAGE = 2\n"
        "with c.Cluster(sys.argv[1]) as cluster:\n"
        "    view = cluster.view()\n"
        "    pods = [each.data['metadata'] for each in cluster.pods()]\n"
        f"    names = sorted(each['name'] for each in pods if each['namespace'] == '{namespace}')\n"
        "    print(len(view.fleet.nodes), cluster.pods_on_nodes, names)\n"
    )
    command = [sys.executable, "-c", code, str(plane.kubeconfig)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT)
    count, on_nodes, names = ran.stdout.split(" ", 2)
    assert int(count) == len(plane.api.get("/api/v1/nodes")["items"])
    assert int(on_nodes) >= len(pods)
    assert names.strip() == str(sorted(pods))


@pytest.mark.usefixtures("pods")
def test_one_pod_is_explained(plane: Plane, namespace: str) -> None:
    ran = rightslice(plane, "explain", "pod/two", "-n", namespace)
    assert ran.returncode == 0, ran.stderr
    assert f"Pod {namespace}/two" in ran.stdout
    missing = rightslice(plane, "explain", "nobody", "-n", namespace)
    assert (missing.returncode, missing.stdout) == (3, "")
    assert '404 NotFound: pods "nobody" not found' in missing.stderr


@pytest.mark.usefixtures("nodes")
def test_a_manifest_is_checked_against_what_there_is(plane: Plane, namespace: str) -> None:
    limits = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/limitranges", limits)
    pod = json.dumps(make_pod().namespace(namespace).gpus(4).build())
    ran = rightslice(plane, "check", "-", "-o", "json", "--policies", "policies", "--fail-on", "never", stdin=pod)
    assert ran.returncode == 0, ran.stderr
    assert "LimitRange l" in ran.stdout
