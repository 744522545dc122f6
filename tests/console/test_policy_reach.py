"""A policy counts the pods with GPUs that it matches, and not a launcher without GPUs beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import make_node
from tests.console.conftest import demo_flags
from webhook.cli.console_inputs import ConsoleReader
from webhook.console.reading import ClusterReading

GPU_NODE = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
POLICY = """\
apiVersion: rightslice.dev/v1alpha1
kind: GPUPolicy
metadata: {name: every-pod}
spec:
  mode: enforce
  match: {namespaces: ["*"]}
  rightSizing: {}
"""


def pod(name: str, owner: str, gpus: int) -> dict[str, object]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {"cpu": "1"}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner, "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "a", "name": name, "ownerReferences": owners},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def reading(tmp_path: Path) -> ClusterReading:
    node = make_node("gpu-1", GPU_NODE, **{"nvidia.com/gpu": 8})
    pods = [pod("launcher", "train", 0), pod("worker-0", "train", 2), pod("worker-1", "train", 2), pod("web", "web", 0)]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    items = {"apiVersion": "v1", "kind": "List", "items": [node, namespace, *pods]}
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "all.json").write_text(json.dumps(items))
    (tmp_path / "policy.yaml").write_text(POLICY)
    flags = demo_flags(cluster=str(tmp_path / "cluster"), policies=[str(tmp_path / "policy.yaml")], prometheus="none")
    return ConsoleReader(flags).read()


def test_pods_without_gpus_are_not_counted(reading: ClusterReading) -> None:
    [policy] = reading.policies

    assert (policy.workloads, policy.pods) == (1, 2)
    assert [key for key, names in reading.state.policies_of.items() if "every-pod" in names] == [("a", "Job/train")]
