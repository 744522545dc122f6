"""Commands on a live cluster: listed page by page, with the same output as for a snapshot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import to_builtins

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_crds import POLICIES, is_served
from tests.conftest import ROOT
from tests.policy.policy_texts import exception_text
from webhook.model.pods import OwnerReference
from webhook.server.event_writer import build_owner_event
from webhook.telemetry.owner_events import OwnerEvent

EXCEPTIONS = "/apis/rightslice.dev/v1alpha1/namespaces/{}/gpupolicyexceptions"


def rightslice(plane: Plane, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as the admin of the plane."""
    where = ["--cluster", "live", "--kubeconfig", str(plane.kubeconfig)]
    command = [sys.executable, "-m", "webhook.cli", *arguments, *where]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


@pytest.fixture
def pods(plane: Plane, nodes: list[str], namespace: str) -> list[str]:
    """Three pods with whole GPUs that run, and one without."""
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    whole = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}  # elsewhere nvidia.com/gpu is a slice
    names = ["one", "two", "three", "plain"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name in names:
        made = make_pod(name).namespace(namespace).spec(tolerations=tolerations)
        plane.api.create(path, (made if name == "plain" else made.gpus(1).spec(nodeSelector=whole)).build())
    eventually(lambda: all(plane.api.get(f"{path}/{name}")["spec"].get("nodeName") for name in names))
    return names


@pytest.mark.usefixtures("pods")
def test_an_audit_sums_running_pods(plane: Plane, namespace: str) -> None:
    ran = rightslice(plane, "audit", "-o", "json", "-v", "--fail-on", "never")
    assert ran.returncode == 0, ran.stderr
    (row,) = [each for each in json.loads(ran.stdout)["namespaces"] if each["namespace"] == namespace]
    assert (row["pods"], row["gpuMilliBefore"]) == (4, 3000)
    assert f"cluster: {plane.url} (" in ran.stderr


@pytest.mark.usefixtures("pods")
def test_running_pods_use_gpu_time(plane: Plane, namespace: str) -> None:
    def held() -> int:
        ran = rightslice(plane, "fairshare", "-o", "json")
        assert ran.returncode == 0, ran.stderr
        groups = {each["name"]: each for each in json.loads(ran.stdout)["groups"]}
        return groups[namespace]["gpuMilliAllocated"] if namespace in groups else 0

    eventually(held, until=lambda milli: milli == 3000)


def test_an_audit_lists_page_by_page(plane: Plane, namespace: str, pods: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; import webhook.audit.cluster_reader as c; c.PAGE_SIZE = 2\n"
        "with c.ClusterReader(sys.argv[1]) as cluster:\n"
        "    view = cluster.view()\n"
        "    pods = [each.data['metadata'] for each in cluster.pods()]\n"
        f"    names = sorted(each['name'] for each in pods if each['namespace'] == '{namespace}')\n"
        "    print(len(view.fleet.nodes), cluster.active_pods, names)\n"
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
    assert (missing.returncode, missing.stdout) == (2, "")
    assert f"no pod named 'nobody' in namespace '{namespace}' of this cluster" in missing.stderr


def test_a_changed_pod_is_explained(plane: Plane, namespace: str) -> None:
    record = {"policies": ["sizing"], "digest": "0123456789ab", "changed": ["resources"]}
    gave = {"need": "8Gi declared", "evidence": "declared", "resource": "nvidia.com/mig-1g.10gb"}
    before = {"main": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
    pod = make_pod("cut").namespace(namespace).asks("nvidia.com/mig-1g.10gb", "1")
    pod.annotate("rightslice.dev/decision", json.dumps(record | gave))
    pod.annotate("rightslice.dev/original-resources", json.dumps(before))
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build())
    told = rightslice(plane, "explain", "cut", "-n", namespace, "--policies", "policies").stdout
    assert "Rightslice changed resources" in told
    assert "sizing (policy digest 0123456789ab)" in told
    assert "main: nvidia.com/gpu 1" in told
    assert "it needs 8Gi declared, which nvidia.com/mig-1g.10gb covers" in told
    assert "denied" not in told


@pytest.mark.usefixtures("nodes")
def test_events_of_a_pod_and_its_controller_are_shown(plane: Plane, namespace: str) -> None:
    """Owned by an object that no controller handles, which would otherwise delete the pod."""
    made = plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "serve"}})
    owner = OwnerReference("ConfigMap", "serve", controller=True, api_version="v1", uid=made["metadata"]["uid"])
    pod = make_pod("replica").namespace(namespace).gpus(1).build()
    pod["metadata"]["ownerReferences"] = [to_builtins(owner)]
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    notice = OwnerEvent(namespace, owner, "GPU-L102", "denied a pod: it asks for 3", 1)
    event = build_owner_event(notice, "replica-0", datetime.now(UTC))
    plane.api.create(f"/api/v1/namespaces/{namespace}/events", event)

    told = rightslice(plane, "explain", "replica", "-n", namespace, "--policies", "policies")

    assert "GPU-L102 on ConfigMap/serve (rightslice): denied a pod: it asks for 3" in told.stdout, told.stderr


@pytest.mark.usefixtures("nodes")
def test_a_manifest_is_checked_against_the_cluster(plane: Plane, namespace: str) -> None:
    limits = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/limitranges", limits)
    pod = json.dumps(make_pod().namespace(namespace).gpus(4).build())
    ran = rightslice(plane, "check", "-", "-o", "json", "--policies", "policies", "--fail-on", "never", stdin=pod)
    assert ran.returncode == 0, ran.stderr
    assert "LimitRange l" in ran.stdout


def policy_object(kind: str, name: str, **spec: object) -> Json:
    return {"apiVersion": "rightslice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def in_force(plane: Plane, namespace: str) -> Iterator[str]:
    """The name of a namespace with policies: an object, a file, and one that is both."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "crds"))
    exceptions = EXCEPTIONS.format(namespace)
    eventually(lambda: is_served(plane, POLICIES) and is_served(plane, exceptions))
    here = {"match": {"namespaces": [namespace]}, "mode": "enforce"}
    one = {"resource": "nvidia.com/gpu", "max": 1}
    objects = [
        policy_object("GPUPolicy", f"{namespace}-object", **here, limits={"perPod": [one]}),
        policy_object("GPUPolicy", f"{namespace}-both", **here, limits={"perPod": [{**one, "max": 0}]}),
    ]
    for each in objects:
        plane.api.create(POLICIES, each)
    file = json.dumps(policy_object("GPUPolicy", f"{namespace}-both", **here, security={"deny": ["mirrorPod"]}))
    data = {"metadata": {"name": "rightslice-policies"}, "data": {"guard.yaml": file}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", data)
    yield namespace
    for each in objects:
        plane.api.delete(f"{POLICIES}/{each['metadata']['name']}")


@pytest.mark.usefixtures("nodes")
def test_the_clusters_own_policies_are_used(plane: Plane, in_force: str) -> None:
    pod = json.dumps(make_pod("train").namespace(in_force).gpus(2).build())
    where = ("--policy-namespace", in_force)

    def denied(*flags: str) -> set[tuple[str, str]]:
        ran = rightslice(plane, "check", "-", "-o", "json", *flags, stdin=pod)
        (found,) = json.loads(ran.stdout)["objects"]
        return {(each["code"], each["policy"]) for each in found["findings"] if each["mode"] == "enforce"}

    assert denied(*where) == {("GPU-L103", f"{in_force}-object")}
    assert f"{in_force}-both" in {policy for _, policy in denied()}, "where there is no file, the object counts"
    assert not {policy for _, policy in denied("--policies", "policies") if policy.startswith(in_force)}

    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
    match = {"namespaces": [in_force]}
    policy = f"{in_force}-object"
    text = exception_text(policyName=policy, codes=["GPU-L103"], match=match, expirationTime=soon)
    exempt = {**json.loads(text), "metadata": {"name": "e"}}
    plane.api.create(EXCEPTIONS.format(in_force), exempt)
    assert denied(*where) == set()


LIMITS = {
    "limitranges": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]},
    "resourcequotas": {"hard": {"limits.nvidia.com/gpu": "8"}},
}


def test_lint_of_a_cluster_and_of_the_corrected_objects(plane: Plane, namespace: str) -> None:
    for plural, spec in LIMITS.items():
        plane.api.create(f"/api/v1/namespaces/{namespace}/{plural}", {"metadata": {"name": "gpus"}, "spec": spec})

    found = rightslice(plane, "lint", "-n", namespace, "-o", "json")
    told = [(one["location"], [f["code"] for f in one["findings"]]) for one in json.loads(found.stdout)]
    assert found.returncode == 1, found.stderr
    assert told == [
        (f"limitrange/{namespace}/gpus", ["GPU-L301"]),
        (f"resourcequota/{namespace}/gpus", ["GPU-Q401", "GPU-Q402"]),
    ]
    assert f"limitrange/{namespace}/gpus" in rightslice(plane, "lint").stdout

    plane.kubectl("replace", "-f", "-", stdin=rightslice(plane, "lint", "-n", namespace, "-o", "yaml").stdout)
    again = rightslice(plane, "lint", "-n", namespace)
    assert (again.returncode, again.stdout.strip()) == (0, ""), again.stdout


REPORTS = "policyreports.wgpolicyk8s.io"


@pytest.mark.usefixtures("pods")
def test_policy_reports_use_the_api_of_the_cluster(plane: Plane, namespace: str, tmp_path: Path) -> None:
    one = {"resource": "nvidia.com/gpu", "max": 0}
    policy = tmp_path / "p.yaml"
    policy.write_text(json.dumps(policy_object("GPUPolicy", "none", mode="enforce", limits={"perPod": [one]})))
    audit = ("audit", "-o", "policyreport", "--policies", str(policy))
    ran = rightslice(plane, *audit)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "note: the cluster has no API for reports" in ran.stderr

    kind = {
        "plural": "policyreports",
        "singular": "policyreport",
        "kind": "PolicyReport",
        "listKind": "PolicyReportList",
    }
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1alpha2", "served": True, "storage": True, "schema": schema}
    spec = {"group": "wgpolicyk8s.io", "scope": "Namespaced", "names": kind, "versions": [version]}
    plane.api.create(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {"metadata": {"name": REPORTS}, "spec": spec}
    )
    try:
        path = f"/apis/wgpolicyk8s.io/v1alpha2/namespaces/{namespace}/policyreports"
        eventually(lambda: is_served(plane, path))
        plane.kubectl("apply", "--server-side", "-f", "-", stdin=rightslice(plane, *audit).stdout)
        (report,) = plane.api.get(path)["items"]
    finally:
        plane.kubectl("delete", "crd", REPORTS)
    assert report["summary"]["fail"] == 3
    assert {result["rule"] for result in report["results"]} == {"GPU-L103"}
