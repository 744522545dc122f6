"""The control plane of the tests: it schedules, enforces quotas, deletes, and survives restarts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json, RefusedError
from tests.cluster.nodes import demo_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.conftest import ROOT
from webhook.documents.reader import read_documents

GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists"}


def example(name: str, namespace: str) -> Json:
    """Return an example pod in another namespace, with the toleration that GPU nodes require."""
    (document,) = read_documents((ROOT / "examples" / "pods" / name).read_bytes(), name, aliases=True)
    pod: Json = {**document.data, "metadata": {"name": document.data["metadata"]["name"], "namespace": namespace}}
    return {**pod, "spec": {**pod["spec"], "tolerations": [GPU_TOLERATION]}}


def running(plane: Plane, namespace: str, name: str) -> Json:
    """Return a pod once it runs; clients reconnect slowly to a restarted API server."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    return eventually(lambda: plane.api.get(path), until=lambda pod: pod["status"]["phase"] == "Running")


def test_the_plane_has_the_requested_version(plane: Plane) -> None:
    versions = plane.api.get("/version")
    output = plane.kubectl("version").stdout

    assert versions["gitVersion"].startswith(f"v1.{versions['minor']}.")
    assert f"Client Version: {versions['gitVersion']}" in output
    assert f"Server Version: {versions['gitVersion']}" in output


def test_the_nodes_equal_those_of_the_example_cluster(plane: Plane, nodes: list[str]) -> None:
    for wanted in demo_nodes():
        node = plane.api.get(f"/api/v1/nodes/{wanted['metadata']['name']}")

        assert node["metadata"]["labels"].items() >= wanted["metadata"]["labels"].items()
        assert node["status"]["allocatable"] == wanted["status"]["allocatable"]
        assert node["spec"].get("taints", []) == wanted.get("spec", {}).get("taints", [])


def test_an_example_pod_runs_on_a_node_with_enough_gpus(plane: Plane, nodes: list[str], namespace: str) -> None:
    pod = example("05-training-8-gpus.yaml", namespace)
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)

    node = running(plane, namespace, pod["metadata"]["name"])["spec"]["nodeName"]

    allocatable = plane.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]
    assert int(allocatable["nvidia.com/gpu"]) >= 8


def test_a_pod_that_requests_more_gpus_than_any_node_has_stays_pending(
    plane: Plane, nodes: list[str], namespace: str
) -> None:
    pod = make_pod().namespace(namespace).gpus(64).build()
    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
    path = f"/api/v1/namespaces/{namespace}/pods/pod"

    (condition,) = eventually(lambda: plane.api.get(path)["status"]["conditions"])

    assert condition["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in condition["message"]


def test_a_quota_is_counted_and_enforced(plane: Plane, namespace: str) -> None:
    quotas, pods = f"/api/v1/namespaces/{namespace}/resourcequotas", f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "2"}}})
    eventually(lambda: plane.api.get(f"{quotas}/gpus")["status"]["hard"])

    plane.api.create(pods, make_pod("first").namespace(namespace).gpus(2).build())

    eventually(lambda: plane.api.get(f"{quotas}/gpus")["status"]["used"] == {"requests.nvidia.com/gpu": "2"})
    with pytest.raises(RefusedError, match="exceeded quota: gpus") as refusal:
        plane.api.create(pods, make_pod("second").namespace(namespace).gpus(1).build())
    assert refusal.value.status == 403


def test_deleting_a_namespace_deletes_its_pods(plane: Plane, nodes: list[str]) -> None:
    name = plane.add_namespace("short-lived")
    pod = make_pod().namespace(name).build()
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    plane.api.create(f"/api/v1/namespaces/{name}/pods", pod)
    running(plane, name, "pod")

    plane.api.delete(f"/api/v1/namespaces/{name}")

    eventually(lambda: not plane.api.exists(f"/api/v1/namespaces/{name}"))


def test_a_deployment_gets_its_pods_and_a_job_ends(plane: Plane, nodes: list[str], namespace: str) -> None:
    plane.kubectl("create", "deployment", "web", "--image=example/web:1", "--replicas=3", f"--namespace={namespace}")
    plane.kubectl("create", "job", "once", "--image=example/once:1", f"--namespace={namespace}")

    plane.kubectl("rollout", "status", "deployment/web", "--timeout=110s", f"--namespace={namespace}")
    job = f"/apis/batch/v1/namespaces/{namespace}/jobs/once"
    eventually(lambda: plane.api.get(job)["status"].get("succeeded") == 1)


def test_objects_survive_a_restart_of_etcd(plane_to_disrupt: Plane, namespace: str) -> None:
    plane = plane_to_disrupt
    path = store_config_map(plane, namespace)

    plane.etcd.stop()
    eventually(lambda: not plane.api.is_ready())
    plane.etcd.start()

    eventually(plane.api.is_ready)
    assert plane.api.get(path)["data"] == {"key": "value"}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_objects_survive_a_restart_of_the_api_server(plane_to_disrupt: Plane, namespace: str, end: str) -> None:
    plane = plane_to_disrupt
    path = store_config_map(plane, namespace)

    getattr(plane.apiserver, end)()
    with pytest.raises(OSError, match="refused"):
        plane.api.get(path)
    plane.apiserver.start()

    assert plane.api.get(path)["data"] == {"key": "value"}


def store_config_map(plane: Plane, namespace: str) -> str:
    """Create a ConfigMap, and return its path."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    plane.api.create(maps, {"metadata": {"name": "kept"}, "data": {"key": "value"}})
    return f"{maps}/kept"


def test_the_controllers_continue_after_a_restart_of_the_api_server(
    plane_to_disrupt: Plane, nodes: list[str], namespace: str
) -> None:
    plane = plane_to_disrupt
    plane.apiserver.restart()

    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", make_pod().namespace(namespace).build())
    running(plane, namespace, "pod")
    plane.add_namespace(f"{namespace}-2")


def test_a_scheduler_ignores_a_configured_resource(plane: Plane, nodes: list[str], namespace: str) -> None:
    extender: dict[str, Any] = {
        "urlPrefix": "http://127.0.0.1:9",
        "managedResources": [{"name": "example.com/milli", "ignoredByScheduler": True}],
    }
    pod = make_pod().namespace(namespace).requests("example.com/milli", "250").build()

    with plane.scheduler_with(extenders=[extender]):
        plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        running(plane, namespace, "pod")


def test_created_and_rejected_pods_are_in_the_audit_log(plane: Plane, namespace: str) -> None:
    pod = make_pod("audited").namespace(namespace).build()

    plane.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)

    eventually(lambda: f"/namespaces/{namespace}/pods" in plane.audit_log.read_text(encoding="utf-8"))
