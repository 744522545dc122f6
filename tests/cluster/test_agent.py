"""The agent as a process on a real control plane: its GPUNode, its pages, and a kubelet on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, monotonic_ns

import msgspec
import pytest

from tests.agent.kubelet import Kubelet
from tests.agent.kubelet import serve_kubelet as kubelet_on
from tests.agent.library import install_library
from tests.agent.recorded import bridged
from tests.builders import make_node
from tests.cluster.client import Json, RefusedError
from tests.cluster.nodes import NODES, add_nodes, remove_nodes
from tests.cluster.plane import Plane
from tests.cluster.polling import eventually
from tests.cluster.test_crds import is_served
from tests.conftest import ROOT
from webhook.agent.device_owners import with_device_owners
from webhook.agent.discovery import GpuDiscovery
from webhook.agent.gpunode_publisher import AgentLease, GpuNodePublisher
from webhook.documents.reader import read_documents
from webhook.kube.api import KubeClient
from webhook.model.gpu_node import GPUNode
from webhook.policy.crds import gpunode_crd
from webhook.well_known import AGENT_NAMESPACE

GPUNODES = "/apis/rightslice.dev/v1alpha1/gpunodes"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def kind(plane: Plane) -> None:
    """Create the CRD of GPUNode if it is missing."""
    if not plane.api.exists(f"{DEFINITIONS}/gpunodes.rightslice.dev"):
        plane.api.create(DEFINITIONS, gpunode_crd())
    eventually(lambda: is_served(plane, GPUNODES))


@pytest.fixture
def node(plane: Plane, kind: None) -> Iterator[str]:
    (name,) = add_nodes(plane, [make_node("agent-1", {}, cpu=8)])
    yield name
    if plane.api.exists(f"{GPUNODES}/{name}"):
        plane.api.delete(f"{GPUNODES}/{name}")
    remove_nodes(plane, [name])


@pytest.fixture
def agents_namespace(plane: Plane, kind: None) -> Iterator[None]:
    """The agents' namespace, which a dry run requires."""
    with plane.namespace_called(AGENT_NAMESPACE):
        yield


class AgentProcess:
    """A running agent."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self._port = process, port

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=30) as answer:
            return str(answer.read().decode())


@contextmanager
def agent(plane: Plane, node: str, socket: Path) -> Iterator[AgentProcess]:
    """`rightslice serve agent`, until the block ends."""
    flags = ["--node", node, "--kubeconfig", str(plane.kubeconfig), "--listen", "127.0.0.1:0", "--poll", "1"]
    command = [sys.executable, "-m", "webhook.cli", "serve", "agent", *flags, "--kubelet-socket", str(socket)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            line = next((line for line in process.stderr if '"serving"' in line), "")
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert port is not None, "the agent did not log its address"
            yield AgentProcess(process, int(port[1]))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert process.stderr is not None
            process.stderr.close()


def get_gpu_node(plane: Plane, name: str) -> Json:
    try:
        return plane.api.get(f"{GPUNODES}/{name}")
    except RefusedError as error:
        raise LookupError(name) from error


async def test_the_agent_is_ready_and_reports_why_it_has_no_gpus(plane: Plane, node: str, tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    async with kubelet_on(Kubelet(), socket):

        def run_agent() -> None:
            with agent(plane, node, socket) as process:
                eventually(lambda: get_gpu_node(plane, node)["status"]["message"])
                found = get_gpu_node(plane, node)
                assert found["status"]["message"].startswith("no NVIDIA driver")
                assert found["metadata"]["ownerReferences"][0]["name"] == node
                assert process.page("/healthz") == "ok\n"
                assert "[+]kubelet ok" in process.page("/readyz?verbose")
                assert 'rightslice_agent_gpunode_writes_total{result="success"}' in process.page("/metrics")
            assert process.process.returncode == 0

        await asyncio.to_thread(run_agent)


async def test_the_agent_renews_a_lease(plane: Plane, node: str, agents_namespace: None, tmp_path: Path) -> None:
    socket = tmp_path / "kubelet.sock"
    path = f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases/{node}"
    async with kubelet_on(Kubelet(), socket):

        def run_agent() -> None:
            with agent(plane, node, socket) as process:
                eventually(lambda: plane.api.exists(path))
                lease = plane.api.get(path)
                assert lease["metadata"]["ownerReferences"][0]["name"] == node
                age = datetime.now(UTC) - datetime.fromisoformat(lease["spec"]["renewTime"])
                assert age < timedelta(minutes=1)
                eventually(lambda: "[+]Lease ok" in process.page("/readyz?verbose"))

        await asyncio.to_thread(run_agent)


async def test_a_lease_is_created_again_with_a_new_node(plane: Plane, node: str, agents_namespace: None) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases/{node}"
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        heartbeat = AgentLease(api, node, partial(next, count(0.0, 3600.0)), lambda: datetime.now(UTC), Random(1))
        await heartbeat.renew()
        remove_nodes(plane, [node])
        add_nodes(plane, [make_node(node, {}, cpu=8)])
        eventually(lambda: not plane.api.exists(path))  # by the garbage collector
        await heartbeat.renew()

    owner = plane.api.get(path)["metadata"]["ownerReferences"][0]
    assert owner["uid"] == plane.api.get(f"{NODES}/{node}")["metadata"]["uid"]


async def test_a_status_is_stored_without_losing_a_field(plane: Plane, node: str) -> None:
    with install_library(bridged((0, 1), (2, 3))) as library:
        status = with_device_owners(GpuDiscovery(monotonic).discover(), {library.cards[0].uuid: ("team/a",)})
    async with await KubeClient.connect(str(plane.kubeconfig)) as api:
        publisher = GpuNodePublisher(api, node, monotonic, Random(1))
        assert await publisher.publish(status)
        assert not await publisher.publish(status)
        assert not await GpuNodePublisher(api, node, monotonic, Random(1)).publish(status)

    assert msgspec.convert(get_gpu_node(plane, node), GPUNode).status == status
    columns = plane.kubectl("get", "gpunodes", node).stdout
    assert "NVIDIA-A100-PCIE-80GB" in columns


def test_an_invalid_status_is_rejected(plane: Plane, node: str) -> None:
    body = {"apiVersion": "rightslice.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": node}}
    plane.api.create(GPUNODES, body)
    with pytest.raises(RefusedError, match="must be of type integer"):
        plane.api.patch(f"{GPUNODES}/{node}/status", {"status": {"gpus": [{"index": "none"}]}}, "merge")


def test_the_agent_manifests_are_accepted_without_warnings(plane: Plane, agents_namespace: None) -> None:
    folder = str(ROOT / "manifests" / "agent")

    done = plane.kubectl("apply", "--server-side", "--dry-run=server", "-k", folder)

    assert done.stderr == ""
    assert done.stdout.count("serverside-applied (server dry run)") == 10


def as_agent(plane: Plane, folder: Path, node: str) -> str:
    """Return the flag for a kubeconfig that impersonates a node's agent. kubectl has all flags for this since 1.35."""
    config = json.loads(plane.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] |= {
        "as": "system:serviceaccount:rightslice-agent:rightslice-agent",
        "as-groups": ["system:masters"],
        "as-user-extra": {"authentication.kubernetes.io/node-name": [node]},
    }
    file = folder / node
    file.write_text(json.dumps(config), encoding="utf-8")
    return f"--kubeconfig={file}"


def test_an_agent_writes_about_its_own_node_only(
    plane: Plane, node: str, agents_namespace: None, tmp_path: Path
) -> None:
    for name in (node, "another-node"):
        body = {"metadata": {"name": name}}
        plane.api.create(f"/apis/coordination.k8s.io/v1/namespaces/{AGENT_NAMESPACE}/leases", body)
    policy = [item for item in kustomize_build(plane) if item["kind"].startswith("ValidatingAdmissionPolicy")]
    for item, path in zip(policy, ("validatingadmissionpolicies", "validatingadmissionpolicybindings"), strict=True):
        plane.api.create(f"/apis/admissionregistration.k8s.io/v1/{path}", item)

    def label(impersonated: str, *target: str) -> bool:
        arguments = ["label", *(target or ("node", node)), f"try=t{monotonic_ns()}", "--overwrite"]
        done = plane.kubectl(*arguments, as_agent(plane, tmp_path, impersonated), check=False)
        assert done.returncode == 0 or "an agent may write only the objects of its own node" in done.stderr, done.stderr
        return done.returncode == 0

    try:
        eventually(lambda: not label("another"))
        assert label(node)
        assert label(node, "-n", AGENT_NAMESPACE, "lease", node)
        assert not label(node, "-n", AGENT_NAMESPACE, "lease", "another-node")
    finally:
        for path in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            plane.api.delete(f"/apis/admissionregistration.k8s.io/v1/{path}/rightslice-agent")


def kustomize_build(plane: Plane) -> list[Json]:
    """Return the objects that kustomize builds from the agent's manifests."""
    text = plane.kubectl("kustomize", str(ROOT / "manifests" / "agent")).stdout
    return [document.data for document in read_documents(text, "agent", aliases=True)]
