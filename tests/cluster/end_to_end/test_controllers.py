"""Pods of controllers: warnings are shown when the workload is applied."""

from __future__ import annotations

import json

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.end_to_end.test_pods import GPU, SLICE, container_requests
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually


def workload(kind: str, team: str, **spec: object) -> Json:
    """Return a workload whose pods request a whole GPU and need 8 GiB of it."""
    pod = make_pod().needs("8Gi").gpus(1).label("app", "captioner").build()
    template = {"metadata": {key: pod["metadata"][key] for key in ("labels", "annotations")}, "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": "captioner", "namespace": team},
        "spec": {"template": template, **spec},
    }


SELECTOR = {"matchLabels": {"app": "captioner"}}


def pods_of(site: Installation, team: str, count: int, *, phase: str = "Running") -> list[Json]:
    """Return the pods of a namespace once exactly this many exist, all in one phase."""
    path = f"/api/v1/namespaces/{team}/pods"

    def all_in_phase(pods: list[Json]) -> bool:
        return len(pods) == count and all(pod["status"].get("phase") == phase for pod in pods)

    return eventually(lambda: site.plane.api.get(path)["items"], until=all_in_phase)


def test_a_deployment_is_warned_right_sized_scaled_and_updated(site: Installation, team: str) -> None:
    kubectl, namespace_flag = site.plane.kubectl, f"--namespace={team}"
    deployment = workload("Deployment", team, replicas=2, selector=SELECTOR)

    warnings = kubectl("apply", "-f", "-", stdin=json.dumps(deployment)).stderr
    assert (
        "Warning: [GPU-R101] spec.template.spec.containers[0].resources.limits['nvidia.com/gpu']: its pods" in warnings
    )
    assert [container_requests(pod) for pod in pods_of(site, team, 2)] == [{SLICE: "1"}] * 2

    kubectl("scale", "deployment/captioner", "--replicas=4", namespace_flag)
    assert [container_requests(pod) for pod in pods_of(site, team, 4)] == [{SLICE: "1"}] * 4

    kubectl("label", "pods", "--all", "reviewed=true", namespace_flag)
    kubectl("annotate", "pods", "--all", "example.com/note=updated", namespace_flag)

    kubectl("set", "image", "deployment/captioner", "main=example/app:2", namespace_flag)
    kubectl("rollout", "status", "deployment/captioner", "--timeout=5m", namespace_flag)
    pods = pods_of(site, team, 4)
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {"example/app:2"}
    assert [container_requests(pod) for pod in pods] == [{SLICE: "1"}] * 4
    stored = site.plane.api.get(f"/apis/apps/v1/namespaces/{team}/deployments/captioner")
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {GPU: "1"}, (
        "the workload itself is not changed"
    )


@pytest.mark.parametrize(
    ("kind", "spec", "phase", "resource"),
    [
        ("StatefulSet", {"replicas": 2, "selector": SELECTOR, "serviceName": "captioner"}, "Running", SLICE),
        ("ReplicaSet", {"replicas": 2, "selector": SELECTOR}, "Running", SLICE),
        ("Job", {"parallelism": 2, "completions": 2}, "Succeeded", SLICE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pods_of_controllers_are_right_sized_and_run(
    site: Installation, team: str, kind: str, spec: Json, phase: str, resource: str
) -> None:
    manifest = workload(kind, team, **spec)
    if kind == "Job":
        manifest["spec"]["template"]["spec"]["restartPolicy"] = "Never"

    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    assert [container_requests(pod) for pod in pods_of(site, team, 2, phase=phase)] == [{resource: "1"}] * 2


def test_pods_of_a_daemon_set_are_never_changed(site: Installation, team: str) -> None:
    manifest = workload("DaemonSet", team, selector=SELECTOR)
    manifest["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a100-mixed-1"}
    manifest["spec"]["template"]["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]

    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    assert [container_requests(pod) for pod in pods_of(site, team, 1)] == [{GPU: "1"}]
