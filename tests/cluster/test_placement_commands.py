"""capacity, place and simulate on a live cluster: the output equals that of a snapshot, with list rights only."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import make_node, make_pod
from tests.cluster.accounts import RBAC, bind_account
from tests.cluster.client import Json
from tests.cluster.plane import Plane
from tests.cluster.polling import COMMAND_SECONDS, eventually
from tests.cluster.test_agent import GPUNODES, kind
from tests.conftest import ROOT
from tests.device_builders import allocated, partitionable_gpus, resource_claim
from webhook.cache.informers import DRA_PATH
from webhook.well_known import API_VERSION

__all__ = ["kind"]
NAME = "only-lists"
RULES = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},
    {"apiGroups": ["rightslice.dev"], "resources": ["gpunodes"], "verbs": ["list"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "resourceclaims"], "verbs": ["list"]},
]


def write_role(plane: Plane, rules: list[Json]) -> None:
    body: Json = {"metadata": {"name": NAME}, "rules": rules}
    if plane.api.exists(f"{RBAC}/clusterroles/{NAME}"):
        plane.api.replace(f"{RBAC}/clusterroles/{NAME}", body)
    else:
        plane.api.create(f"{RBAC}/clusterroles", body)


@pytest.fixture
def reader_kubeconfig(plane: Plane, namespace: str, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of an account that may list what placement needs, and nothing else."""
    write_role(plane, RULES)
    file = tmp_path / "reader.json"
    binding = bind_account(plane, namespace, NAME, file)
    yield file
    plane.api.delete(binding)
    plane.api.delete(f"{RBAC}/clusterroles/{NAME}")


def rightslice(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "webhook.cli", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False, cwd=ROOT
    )


@pytest.fixture
def train(plane: Plane, nodes: list[str], namespace: str) -> str:
    """Create a pod with two GPUs; return its node once it runs."""
    pod = make_pod("train").namespace(namespace).gpus(2)
    node_selector = {"kubernetes.io/hostname": "h100-1"}  # on other nodes nvidia.com/gpu is a slice or a share
    pod.spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}], nodeSelector=node_selector)
    path = f"/api/v1/namespaces/{namespace}/pods"
    plane.api.create(path, pod.build())
    return str(eventually(lambda: plane.api.get(f"{path}/train")["spec"].get("nodeName")))


def save_snapshot(plane: Plane, file: Path, kinds: str = "nodes,pods") -> str:
    """Save a snapshot of the cluster as documented; return its path."""
    file.write_text(plane.kubectl("get", kinds, "-A", "-o", "json").stdout)
    return str(file)


def test_capacity_equals_that_of_a_snapshot(plane: Plane, train: str, reader_kubeconfig: Path, tmp_path: Path) -> None:
    live = rightslice("capacity", "-o", "json", "--cluster", "live", "--kubeconfig", str(reader_kubeconfig))
    snapshot = rightslice("capacity", "-o", "json", "--cluster", save_snapshot(plane, tmp_path / "cluster.json"))
    assert (live.returncode, live.stderr) == (0, "")
    assert json.loads(live.stdout) == json.loads(snapshot.stdout)
    (row,) = [each for each in json.loads(live.stdout)["nodes"] if each["name"] == train]
    assert row["allocatedMilli"] >= 2000  # pods of other tests may run there


@pytest.fixture
def published_gpus(plane: Plane, namespace: str) -> Iterator[str]:
    """Create a node whose two GPUs are only in ResourceSlices, and a claim that has a part of one; return its name."""
    name = "published-gpus"
    plane.api.create("/api/v1/nodes", make_node(name, {}))
    slices = partitionable_gpus(name, 2)
    for each in slices:
        plane.api.create(f"{DRA_PATH}/resourceslices", each)
    claim = resource_claim("part", allocated(name, "gpu-1-mig-1g10gb-1-0"), namespace=namespace)
    path = f"{DRA_PATH}/namespaces/{namespace}/resourceclaims"
    created = plane.api.create(path, {key: value for key, value in claim.items() if key != "status"})
    plane.api.replace(f"{path}/part/status", created | {"status": claim["status"]})
    yield name
    plane.api.delete(f"{path}/part")
    for each in slices:
        plane.api.delete(f"{DRA_PATH}/resourceslices/{each['metadata']['name']}")
    plane.api.delete(f"/api/v1/nodes/{name}")


def test_gpus_of_resource_slices_count(
    plane: Plane, published_gpus: str, reader_kubeconfig: Path, tmp_path: Path
) -> None:
    live = rightslice("capacity", "-o", "json", "--cluster", "live", "--kubeconfig", str(reader_kubeconfig))
    file = save_snapshot(plane, tmp_path / "cluster.json", "nodes,pods,resourceslices,resourceclaims")
    snapshot = rightslice("capacity", "-o", "json", "--cluster", file)
    assert (live.returncode, live.stderr) == (0, "")
    assert json.loads(live.stdout) == json.loads(snapshot.stdout)
    (row,) = [each for each in json.loads(live.stdout)["nodes"] if each["name"] == published_gpus]
    assert (row["gpus"], row["allocatedMilli"], row["fromSlices"]) == (2, 143, True)


def test_agent_reports_are_used(plane: Plane, kind: None, train: str, reader_kubeconfig: Path, namespace: str) -> None:
    gpus = [
        {"index": i, "uuid": f"GPU-{i}", "healthy": True, "links": [{"gpu": 1 - i, "nvlinks": 4}] if i < 2 else []}
        for i in range(8)
    ]
    gpus[0]["pods"] = gpus[3]["pods"] = [f"{namespace}/train"]
    plane.api.create(GPUNODES, {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": {"name": train}})
    plane.api.patch(f"{GPUNODES}/{train}/status", {"status": {"gpus": gpus, "nvlinkGeneration": 3}}, "merge")
    try:
        cluster_flags = ("--cluster", "live", "--kubeconfig", str(reader_kubeconfig))
        assert f"{namespace}/train" in rightslice("capacity", train, *cluster_flags).stdout
        rows = json.loads(rightslice("capacity", "-o", "json", *cluster_flags).stdout)["nodes"]
        assert [each["largestIsland"] for each in rows if each["name"] == train] == [1], "its NVLink peer is allocated"

        write_role(plane, RULES[:1])
        eventually(lambda: "which GPUs of a node are free is unknown" in rightslice("capacity", *cluster_flags).stderr)
    finally:
        plane.api.delete(f"{GPUNODES}/{train}")


def test_place_and_simulate_use_the_live_cluster(plane: Plane, train: str, namespace: str, tmp_path: Path) -> None:
    pod = make_pod("more").namespace(namespace).gpus(8)
    pod.spec(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}])
    file = tmp_path / "more.json"
    file.write_text(json.dumps(pod.build()))
    admin = ("--kubeconfig", str(plane.kubeconfig), "--policies", "policies")
    now = ("--now", "2026-06-01T00:00:00Z")

    place, simulate = ("place", "-f", str(file), "-o", "json"), ("simulate", "--pods", str(file), "-o", "json")

    def live_and_saved() -> tuple[list[Json], list[Json]]:
        """Return both commands' output for the cluster and its snapshot: equal unless another pod ended meanwhile."""
        from_cluster = [
            rightslice(*place, "--cluster", "live", *admin, *now),
            rightslice(*simulate, "--nodes", "live", *admin, *now),
        ]
        snapshot = save_snapshot(plane, tmp_path / "cluster.json", "nodes,namespaces,limitranges,resourcequotas,pods")
        snapshot_flags = ("--policies", "policies", *now)
        from_snapshot = [
            rightslice(*place, "--cluster", snapshot, *snapshot_flags),
            rightslice(*simulate, "--nodes", snapshot, *snapshot_flags),
        ]
        return [json.loads(each.stdout) for each in from_cluster], [json.loads(each.stdout) for each in from_snapshot]

    (placed, _), _ = eventually(live_and_saved, until=lambda outputs: outputs[0] == outputs[1])
    assert train in placed["pods"][0]["rejected"]


def test_an_unreachable_cluster_exits_with_3(tmp_path: Path) -> None:
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    for command in (["capacity", "--cluster"], ["simulate", "--pods", "policies", "--policies", "policies", "--nodes"]):
        assert rightslice(*command, "live", "--kubeconfig", str(file)).returncode == 3
