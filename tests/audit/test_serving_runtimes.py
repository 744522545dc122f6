"""InferenceServices of KServe, completed from the serving runtimes among the objects."""

from __future__ import annotations

from typing import Any

import yaml

from webhook.audit.object_files import SourceObject, parse_objects
from webhook.audit.serving_runtimes import with_serving_runtimes

SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: model, namespace: team}
spec:
  predictor:
    nodeSelector: {pool: gpu}
    model:
      runtime: vllm
      args: [--gpu-memory-utilization=0.5]
      env: [{name: MODE, value: own}]
      resources: {limits: {nvidia.com/gpu: 1}}
"""
RUNTIME = """
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: vllm, namespace: team}
spec:
  tolerations: [{operator: Exists}]
  nodeSelector: {zone: a}
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.9.2
      args: [--port=8080]
      env: [{name: MODE, value: runtime}, {name: HOME, value: /tmp}]
      resources: {limits: {cpu: 4, nvidia.com/gpu: 2}}
    - {name: metrics, image: "metrics:1"}
"""
CLUSTER_RUNTIME = RUNTIME.replace("ServingRuntime", "ClusterServingRuntime").replace(", namespace: team", "")


def predictor(text: str) -> dict[str, Any]:
    """Return the predictor of the first object of a file, completed."""
    first = with_serving_runtimes(list(parse_objects("file.yaml", text.encode())), "default")[0]
    assert isinstance(first, SourceObject)
    found: dict[str, Any] = first.data["spec"]["predictor"]
    return found


def test_a_predictor_is_merged_over_its_runtime() -> None:
    found = predictor(SERVICE + RUNTIME)

    assert found["model"]["image"] == "vllm/vllm-openai:v0.9.2"
    assert found["model"]["args"] == ["--port=8080", "--gpu-memory-utilization=0.5"]
    assert found["model"]["env"] == [{"name": "HOME", "value": "/tmp"}, {"name": "MODE", "value": "own"}]
    assert found["model"]["resources"]["limits"] == {"cpu": 4, "nvidia.com/gpu": 1}
    assert found["nodeSelector"] == {"zone": "a", "pool": "gpu"}
    assert found["tolerations"] == [{"operator": "Exists"}]
    assert [one["name"] for one in found["containers"]] == ["metrics"]


def test_a_runtime_of_the_cluster_counts_after_one_of_the_namespace() -> None:
    other = CLUSTER_RUNTIME.replace("v0.9.2", "v0.1.0")

    assert predictor(SERVICE + CLUSTER_RUNTIME)["model"]["image"] == "vllm/vllm-openai:v0.9.2"
    assert predictor(SERVICE + other + RUNTIME)["model"]["image"] == "vllm/vllm-openai:v0.9.2"


def test_a_predictor_stays_as_written_if_its_pods_are_not_known() -> None:
    written = yaml.safe_load(SERVICE)["spec"]["predictor"]
    unknown = {
        "no runtime": "",
        "of another namespace": RUNTIME.replace("namespace: team", "namespace: other"),
        "of another name": RUNTIME.replace("name: vllm,", "name: triton,"),
        "without the container": RUNTIME.replace("name: kserve-container", "name: main"),
        "several nodes": RUNTIME.replace("  tolerations", "  workerSpec: {}\n  tolerations"),
    }
    assert {name: predictor(SERVICE + text) for name, text in unknown.items()} == dict.fromkeys(unknown, written)
