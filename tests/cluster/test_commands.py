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
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.test_crds import POLICIES, is_served
from tests.conftest import ROOT
from tests.policy.policy_texts import exception_text
from webhook.model.pods import OwnerReference
from webhook.server.event_writer import build_owner_event
from webhook.telemetry.telemetry import OwnerEvent

EXCEPTIONS = "/apis/rightslice.dev/v1alpha1/namespaces/{}/gpupolicyexceptions"


def rightslice(plane: Plane, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as the admin of the plane."""
    cluster_flags = ["--cluster", "live", "--kubeconfig", str(plane.kubeconfig)]
    command = [sys.executable, "-m", "webhook.cli", *arguments, *cluster_flags]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=ROOT
    )


@pytest.fixture
def pods(plane: Plane, nodes: list[str], namespace: str) -> list[str]:
    """Create three running pods with a whole GPU and one without; return their names."""
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    node_selector = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}  # on other nodes nvidia.com/gpu is a slice
    names = ["one", "two", "three", "plain"]
    path = f"/api/v1/namespaces/{namespace}/pods"
    for name in names:
        made = make_pod(name).namespace(namespace).spec(tolerations=tolerations)
        plane.api.create(path, (made if name == "plain" else made.gpus(1).spec(nodeSelector=node_selector)).build())
    eventually(lambda: all(plane.api.get(f"{path}/{name}")["spec"].get("nodeName") for name in names))
    return names


BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


def test_a_layout_drains_no_node_whose_pods_a_budget_protects(plane: Plane, namespace: str, pods: list[str]) -> None:
    path = BUDGETS.format(namespace)
    budget = {"metadata": {"name": "all"}, "spec": {"selector": {}, "maxUnavailable": 0}}
    plane.api.create(path, budget)
    found = json.loads(rightslice(plane, "layout", "-o", "json").stdout)
    used = {plane.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["spec"]["nodeName"] for name in pods[:3]}
    assert used <= found["notDrained"].keys()
    assert {found["notDrained"][node] for node in used} == {f"PodDisruptionBudget {namespace}/all allows no eviction"}


@pytest.mark.usefixtures("pods")
def test_an_audit_sums_running_pods(plane: Plane, namespace: str) -> None:
    ran = rightslice(plane, "audit", "-o", "json", "-v", "--fail-on", "never")
    assert ran.returncode == 0, ran.stderr
    (row,) = [each for each in json.loads(ran.stdout)["namespaces"] if each["namespace"] == namespace]
    assert (row["pods"], row["gpuMilliBefore"]) == (4, 3000)
    assert f"cluster: {plane.url} (" in ran.stderr


@pytest.mark.usefixtures("pods")
def test_running_pods_use_gpu_time(plane: Plane, namespace: str) -> None:
    def allocated_milli() -> int:
        ran = rightslice(plane, "fairshare", "-o", "json")
        assert ran.returncode == 0, ran.stderr
        groups = {each["name"]: each for each in json.loads(ran.stdout)["groups"]}
        return groups[namespace]["gpuMilliAllocated"] if namespace in groups else 0

    eventually(allocated_milli, until=lambda milli: milli == 3000)


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
    ran = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True, cwd=ROOT)
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


@pytest.mark.usefixtures("pods")
def test_the_cluster_is_that_of_the_context(plane: Plane, namespace: str) -> None:
    config = json.loads(plane.kubectl("config", "view", "--raw", "-o", "json").stdout)
    config["contexts"][0]["context"]["namespace"] = namespace
    file = plane.folder / f"{namespace}.kubeconfig"
    file.write_text(json.dumps(config))
    environment = plane.kubectl_environment() | {"KUBECONFIG": str(file)}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "webhook.cli", *arguments]
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=ROOT, env=environment
        )
        return ran.stdout

    names = run("rightsize", "-n", namespace, "--sort-by", "workload", "-o", "name").split()
    assert names == ["pod/one", "pod/three", "pod/two"]
    assert run("explain", "pod/two").startswith(f"Pod {namespace}/two")


@pytest.mark.usefixtures("pods")
def test_a_pod_is_named_as_for_kubectl(plane: Plane, namespace: str) -> None:
    metadata = {"name": "serve", "labels": {"app": "serve"}}
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": {"containers": [{"name": "main", "image": "a"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "serve"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    plane.api.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
    path = f"/api/v1/namespaces/{namespace}/pods"
    eventually(lambda: len(plane.api.get(path)["items"]) == 6)

    assert f"Pod {namespace}/two" in rightslice(plane, "explain", f"{namespace}/two").stdout
    one = rightslice(plane, "explain", "deploy/serve", "-n", namespace)
    assert f"Pod {namespace}/serve-" in one.stdout
    assert "note: found 2 pods of deployment/serve, using pod/serve-" in one.stderr
    flags = ("--kubeconfig", str(plane.kubeconfig))
    command = [sys.executable, "-m", "webhook.cli", "undo", f"{namespace}/resourceclaim/large", *flags]
    undone = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=ROOT)
    assert undone.returncode == 2
    assert f"no resourceclaim/large in namespace '{namespace}' of this cluster" in undone.stderr


def test_a_changed_pod_is_explained(plane: Plane, namespace: str) -> None:
    record = {"policies": ["sizing"], "digest": "0123456789ab", "changed": ["resources"]}
    decision = {"need": "8Gi declared", "evidence": "declared", "resource": "nvidia.com/mig-1g.10gb"}
    original = {"main": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
    pod = make_pod("cut").namespace(namespace).requests("nvidia.com/mig-1g.10gb", "1")
    pod.annotate("rightslice.dev/decision", json.dumps(record | decision))
    pod.annotate("rightslice.dev/original-resources", json.dumps(original))
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod.build())
    output = rightslice(plane, "explain", "cut", "-n", namespace, "--policies", "policies").stdout
    assert "Rightslice changed resources" in output
    assert "sizing (policy digest 0123456789ab)" in output
    assert "main: nvidia.com/gpu 1" in output
    assert "it needs 8Gi declared, which nvidia.com/mig-1g.10gb covers" in output
    assert "denied" not in output


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

    ran = rightslice(plane, "explain", "replica", "-n", namespace, "--policies", "policies")

    assert "GPU-L102 on ConfigMap/serve (rightslice): denied a pod: it asks for 3" in ran.stdout, ran.stderr


@pytest.mark.usefixtures("nodes")
def test_a_manifest_is_checked_against_the_cluster(plane: Plane, namespace: str) -> None:
    limits = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "2"}}]}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/limitranges", limits)
    pod = json.dumps(make_pod().namespace(namespace).gpus(4).build())
    ran = rightslice(plane, "check", "-", "-o", "json", "--policies", "policies", "--fail-on", "never", stdin=pod)
    assert ran.returncode == 0, ran.stderr
    assert "LimitRange 'l'" in ran.stdout


@pytest.mark.usefixtures("nodes")
def test_a_manifest_is_checked_under_the_configuration_of_the_scheduler(
    plane: Plane, namespace: str, tmp_path: Path
) -> None:
    kind = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    profile = {"plugins": {"filter": {"enabled": [{"name": "Capacity"}]}}}
    (tmp_path / "scheduler.json").write_text(json.dumps(kind | {"profiles": [profile]}))
    sections = {"rightSizing": {}, "injection": {"tolerations": "auto"}}
    policy = policy_object("GPUPolicy", "sized", mode="enforce", **sections)
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    pod = json.dumps(make_pod().namespace(namespace).gpus(1).needs("8Gi").build())
    check = ["check", "-", "-o", "json", "--policies", str(tmp_path / "policy.json")]

    def keep_reason(*arguments: str) -> object:
        [checked] = json.loads(rightslice(plane, *check, *arguments, stdin=pod).stdout)["objects"]
        return checked.get("keepReason")

    assert keep_reason() == ""
    assert keep_reason("--scheduler-config", str(tmp_path / "scheduler.json")) == "UnmodeledConstraint"


def policy_object(kind: str, name: str, **spec: object) -> Json:
    return {"apiVersion": "rightslice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def policy_namespace(plane: Plane, namespace: str) -> Iterator[str]:
    """A namespace with policies: an object, a file, and one that is both."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", str(ROOT / "manifests" / "crds"))
    exceptions = EXCEPTIONS.format(namespace)
    eventually(lambda: is_served(plane, POLICIES) and is_served(plane, exceptions))
    enforced = {"match": {"namespaces": [namespace]}, "mode": "enforce"}
    gpu_limit = {"resource": "nvidia.com/gpu", "max": 1}
    objects = [
        policy_object("GPUPolicy", f"{namespace}-object", **enforced, limits={"perPod": [gpu_limit]}),
        policy_object("GPUPolicy", f"{namespace}-both", **enforced, limits={"perPod": [{**gpu_limit, "max": 0}]}),
    ]
    for each in objects:
        plane.api.create(POLICIES, each)
    file = json.dumps(policy_object("GPUPolicy", f"{namespace}-both", **enforced, security={"deny": ["mirrorPod"]}))
    data = {"metadata": {"name": "rightslice-policies"}, "data": {"guard.yaml": file}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/configmaps", data)
    yield namespace
    for each in objects:
        plane.api.delete(f"{POLICIES}/{each['metadata']['name']}")


@pytest.mark.usefixtures("nodes")
def test_the_clusters_own_policies_are_used(plane: Plane, policy_namespace: str) -> None:
    pod = json.dumps(make_pod("train").namespace(policy_namespace).gpus(2).build())
    cluster_flags = ("--policy-namespace", policy_namespace)

    def denied(*flags: str) -> set[tuple[str, str]]:
        ran = rightslice(plane, "check", "-", "-o", "json", *flags, stdin=pod)
        (found,) = json.loads(ran.stdout)["objects"]
        return {(each["code"], each["policy"]) for each in found["findings"] if each["mode"] == "enforce"}

    assert denied(*cluster_flags) == {("GPU-L103", f"{policy_namespace}-object")}
    assert f"{policy_namespace}-both" in {policy for _, policy in denied()}, "without a file, the object is used"
    assert not {policy for _, policy in denied("--policies", "policies") if policy.startswith(policy_namespace)}

    expiry = (datetime.now(UTC) + timedelta(days=1)).isoformat(timespec="seconds")
    match = {"namespaces": [policy_namespace]}
    policy = f"{policy_namespace}-object"
    text = exception_text(policyName=policy, codes=["GPU-L103"], match=match, expirationTime=expiry)
    exempt = {**json.loads(text), "metadata": {"name": "e"}}
    plane.api.create(EXCEPTIONS.format(policy_namespace), exempt)
    assert denied(*cluster_flags) == set()


LIMITS = {
    "limitranges": {"limits": [{"type": "Container", "max": {"nvidia.com/gpu": "4"}}]},
    "resourcequotas": {"hard": {"limits.nvidia.com/gpu": "8"}},
}


def test_lint_of_a_cluster_and_of_the_corrected_objects(plane: Plane, namespace: str) -> None:
    for plural, spec in LIMITS.items():
        plane.api.create(f"/api/v1/namespaces/{namespace}/{plural}", {"metadata": {"name": "gpus"}, "spec": spec})

    found = rightslice(plane, "lint", "-n", namespace, "-o", "json")
    findings = [(item["file"], [f["code"] for f in item["findings"]]) for item in json.loads(found.stdout)]
    assert found.returncode == 1, found.stderr
    assert findings == [
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
    gpu_limit = {"resource": "nvidia.com/gpu", "max": 0}
    policy = tmp_path / "p.yaml"
    policy.write_text(json.dumps(policy_object("GPUPolicy", "none", mode="enforce", limits={"perPod": [gpu_limit]})))
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
