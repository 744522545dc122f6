"""AdmissionReviews of the benchmarks match those of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.api_objects import LAST_APPLIED, as_applied, as_stored, review_bytes
from benchmarks.controller_pods import indexed, with_owner_reference
from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.recording_webhook import RecordingWebhook, register_recording_webhook
from webhook.model.defaulting import read_managed_amounts

NAMESPACE = "arriving"
SHM = {"name": "shm", "mountPath": "/dev/shm"}
MAIN: Json = {
    "name": "main",
    "image": "nvidia/cuda:12.4.1-base",
    "command": ["python"],
    "args": ["train.py"],
    "env": [{"name": "A", "value": "b"}, {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "envFrom": [{"configMapRef": {"name": "settings"}}],
    "ports": [{"containerPort": 8080}, {"containerPort": 9090, "name": "metrics", "protocol": "UDP"}],
    "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1Gi"}, "requests": {"cpu": "500m"}},
    "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 5},
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    "volumeMounts": [SHM],
}
SPEC: Json = {
    "containers": [MAIN],
    "initContainers": [{"name": "fetch", "image": "example/fetch", "volumeMounts": [SHM]}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
            }
        }
    },
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "nodeSelector": {"disk": "fast"},
    "serviceAccountName": "default",
    "hostNetwork": True,
    "imagePullSecrets": [{"name": "registry"}],
    "volumes": [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "settings", "configMap": {"name": "settings"}},
    ],
}
TEMPLATE: Json = {"metadata": {"labels": {"app": "train"}, "annotations": {"note": "1"}}, "spec": SPEC}
DEPLOYMENT: Json = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "serve", "namespace": NAMESPACE},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "train"}}, "template": TEMPLATE},
}
JOB: Json = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": NAMESPACE},
    "spec": {
        "completionMode": "Indexed",
        "completions": 1,
        "template": TEMPLATE | {"spec": SPEC | {"restartPolicy": "Never"}},
    },
}


@pytest.fixture(scope="module")
def recorder(plane: Plane) -> Iterator[RecordingWebhook]:
    """Our configurations on a real API server, calling a recorder."""
    with register_recording_webhook(plane, NAMESPACE) as found:
        yield found


def recorded_review(recorder: RecordingWebhook, kind: str, prefix: str) -> Json:
    """Return the first reviewed object of a kind whose name starts with a prefix."""

    def found() -> list[Json]:
        objects = [request["object"] for _, request in recorder.reviews if request["kind"]["kind"] == kind]
        return [item for item in objects if generate_name(item).startswith(prefix)]

    return eventually(found)[0]


def test_a_benchmark_review_has_the_fields_of_a_real_one(recorder: RecordingWebhook) -> None:
    real = next(item for _, item in recorder.reviews if item["kind"]["kind"] == "Pod")

    ours = json.loads(review_bytes(as_stored({"metadata": {"name": "probe"}, "spec": SPEC}, NAMESPACE)))["request"]

    assert ours.keys() == real.keys()
    equal_keys = ("kind", "resource", "requestKind", "requestResource", "name", "namespace", "operation", "oldObject")
    assert {key: ours[key] for key in equal_keys} == {key: real[key] for key in equal_keys}


def generate_name(data: Json) -> str:
    name: str = data["metadata"].get("generateName") or data["metadata"]["name"]
    return name


def token_of(pod: Json) -> str:
    suffix: str = pod["spec"]["volumes"][-1]["name"].removeprefix("kube-api-access-")
    return suffix


def with_our_identifiers(ours: Json, real: Json) -> Json:
    """Return the real pod with the benchmark's values of the fields that differ between any two pods."""
    text = json.dumps(real)
    for our_text, real_text in zip(differing_fields(ours), differing_fields(real), strict=True):
        text = text.replace(real_text, our_text)
    pod: Json = json.loads(text)
    return pod


def differing_fields(data: Json) -> list[str]:
    metadata = data["metadata"]
    [managed] = metadata["managedFields"]
    owners = [(owner["uid"], owner["name"].rpartition("-")[2]) for owner in metadata.get("ownerReferences", [])]
    return [managed["time"], managed["manager"], *(text for owner in owners for text in owner)]


@pytest.mark.parametrize("workload", [DEPLOYMENT, JOB], ids=["a Deployment", "an indexed Job"])
def test_a_pod_of_a_workload_equals_the_benchmark_pod(plane: Plane, recorder: RecordingWebhook, workload: Json) -> None:
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(workload))

    real = recorded_review(recorder, "Pod", generate_name(workload))

    pod = with_owner_reference(workload["spec"]["template"], workload)
    ours = as_stored(indexed(pod, 0) if workload is JOB else pod, NAMESPACE, suffix=token_of(real))
    assert with_our_identifiers(ours, real) == ours


def test_a_pod_without_an_owner_equals_the_benchmark_pod(plane: Plane, recorder: RecordingWebhook) -> None:
    pod = {"metadata": {"name": "alone", "labels": {"app": "train"}}, "spec": SPEC}
    plane.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", {"apiVersion": "v1", "kind": "Pod", **pod})

    real = recorded_review(recorder, "Pod", "alone")

    ours = as_stored(pod, NAMESPACE, suffix=token_of(real))
    assert with_our_identifiers(ours, real) == ours


def test_a_workload_contains_the_benchmark_workload(plane: Plane, recorder: RecordingWebhook) -> None:
    """Benchmarks omit the fields of a Deployment outside its template, so their objects are slightly smaller."""
    workload = DEPLOYMENT | {"metadata": {"name": "applied", "namespace": NAMESPACE}}
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(workload))

    real = recorded_review(recorder, "Deployment", "applied")

    ours = as_applied(workload, [("spec", "template", "spec")])
    assert managed_head(real) == managed_head(ours)
    assert real["spec"]["template"] == ours["spec"]["template"]
    assert real["metadata"]["annotations"][LAST_APPLIED] == ours["metadata"]["annotations"][LAST_APPLIED]
    assert template_fields(real) == template_fields(ours)


def managed_head(data: Json) -> Json:
    """Return the managedFields entry of a workload without its time and fields."""
    [managed] = data["metadata"]["managedFields"]
    return {key: value for key, value in managed.items() if key not in ("time", "fieldsV1")}


def template_fields(data: Json) -> Any:
    """Return the managed fields of a workload's template."""
    return data["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:template"]


GIVES_GPUS = {"type": "Container", "max": {"nvidia.com/gpu": "4"}}
GIVES_CPU = {"type": "Container", "default": {"cpu": "1"}}


@pytest.mark.parametrize(
    ("resources", "written"),
    [
        pytest.param({}, set(), id="nothing"),
        pytest.param({"limits": {"nvidia.com/gpu": "4"}}, {"limits", "requests"}, id="limits"),
        pytest.param({"requests": {"nvidia.com/gpu": "4"}}, {"requests"}, id="requests"),
    ],
)
def test_managed_fields_list_the_amounts_that_the_client_wrote(
    plane: Plane, recorder: RecordingWebhook, resources: Json, written: set[str]
) -> None:
    """LimitRanger ran before, and its annotation may record only the LimitRange with CPU."""
    api, name = plane.api, f"ranged-{len(written)}"
    ranges = {"a-gpus": GIVES_GPUS, "b-cpu": GIVES_CPU}
    for key, item in ranges.items():
        body = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": key}, "spec": {"limits": [item]}}
        api.create(f"/api/v1/namespaces/{NAMESPACE}/limitranges", body)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    pod["spec"] = {"containers": [{"name": "main", "image": "example/main", "resources": resources}]}
    eventually(lambda: api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", pod))
    real = recorded_review(recorder, "Pod", name)
    for key in ranges:
        plane.kubectl("delete", "limitrange", key, "-n", NAMESPACE)

    assert real["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4", "cpu": "1"}
    assert set(read_managed_amounts(real["metadata"]) or ()) == {(side, "nvidia.com/gpu", "main") for side in written}
