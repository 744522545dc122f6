"""Pods of controllers: warnings are shown when the workload is applied."""

from __future__ import annotations

import json

import pytest

from tests.builders import make_pod
from tests.cluster.client import Json
from tests.cluster.end_to_end.test_pods import CARD, SLICE, container_requests
from tests.cluster.installation import Installation
from tests.cluster.polling import eventually


def workload(kind: str, team: str, **spec: object) -> Json:
    """A workload whose pods ask for a whole card and need 8 GiB of it."""
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
    """The pods of a namespace, once so many are in a phase and no others are there."""
    path = f"/api/v1/namespaces/{team}/pods"

    def all_there(pods: list[Json]) -> bool:
        return len(pods) == count and all(pod["status"].get("phase") == phase for pod in pods)

    return eventually(lambda: site.plane.api.get(path)["items"], until=all_there)


def test_a_deployment_is_warned_right_sized_scaled_and_updated(site: Installation, team: str) -> None:
    kubectl, where = site.plane.kubectl, f"--namespace={team}"
    deployment = workload("Deployment", team, replicas=2, selector=SELECTOR)

    said = kubectl("apply", "-f", "-", stdin=json.dumps(deployment)).stderr
    assert "Warning: [GPU-R101] spec.template.spec.containers[0].resources.limits['nvidia.com/gpu']: its pods" in said
    assert [container_requests(pod) for pod in pods_of(site, team, 2)] == [{SLICE: "1"}] * 2

    kubectl("scale", "deployment/captioner", "--replicas=4", where)
    assert [container_requests(pod) for pod in pods_of(site, team, 4)] == [{SLICE: "1"}] * 4

    kubectl("label", "pods", "--all", "seen=true", where)
    kubectl("annotate", "pods", "--all", "example.com/note=updated", where)

    kubectl("set", "image", "deployment/captioner", "main=example/app:2", where)
    kubectl("rollout", "status", "deployment/captioner", "--timeout=60s", where)
    after = pods_of(site, team, 4)
    assert {pod["spec"]["containers"][0]["image"] for pod in after} == {"example/app:2"}
    assert [container_requests(pod) for pod in after] == [{SLICE: "1"}] * 4
    stored = site.plane.api.get(f"/apis/apps/v1/namespaces/{team}/deployments/captioner")
    assert stored["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] == {CARD: "1"}, (
        "as it was before right-sizing"
    )


@pytest.mark.parametrize(
    ("kind", "spec", "phase", "gets"),
    [
        ("StatefulSet", {"replicas": 2, "selector": SELECTOR, "serviceName": "captioner"}, "Running", SLICE),
        ("ReplicaSet", {"replicas": 2, "selector": SELECTOR}, "Running", SLICE),
        ("Job", {"parallelism": 2, "completions": 2}, "Succeeded", SLICE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pods_of_controllers_are_right_sized_and_run(
    site: Installation, team: str, kind: str, spec: Json, phase: str, gets: str
) -> None:
    made = workload(kind, team, **spec)
    if kind == "Job":
        made["spec"]["template"]["spec"]["restartPolicy"] = "Never"

    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(made))

    assert [container_requests(pod) for pod in pods_of(site, team, 2, phase=phase)] == [{gets: "1"}] * 2


def test_pods_of_a_daemon_set_are_never_changed(site: Installation, team: str) -> None:
    made = workload("DaemonSet", team, selector=SELECTOR)
    made["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a100-mixed-1"}
    made["spec"]["template"]["spec"]["tolerations"] = [{"key": CARD, "operator": "Exists"}]

    site.plane.kubectl("apply", "-f", "-", stdin=json.dumps(made))

    assert [container_requests(pod) for pod in pods_of(site, team, 1)] == [{CARD: "1"}]
