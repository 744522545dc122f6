"""The kubelet's PodResources API over a real Unix socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.agent.kubelet import Kubelet, serve_kubelet
from webhook.agent import device_owners
from webhook.agent.device_owners import DeviceOwners, KubeletUnavailableError, PodResourcesClient

GPU = "nvidia.com/gpu"


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "kubelet.sock"


@pytest.fixture
async def client(socket: Path) -> AsyncIterator[PodResourcesClient]:
    async with PodResourcesClient(str(socket)) as connected:
        yield connected


async def wait_for_answer(client: PodResourcesClient) -> DeviceOwners:
    """Return the answer once the channel is connected again."""
    for _ in range(1200):
        try:
            return await client.device_owners()
        except KubeletUnavailableError:
            await asyncio.sleep(0.05)
    raise AssertionError("the kubelet did not answer within a minute")


async def test_each_device_has_its_pods(client: PodResourcesClient, socket: Path) -> None:
    kubelet = Kubelet()
    kubelet.pods = [
        ("team-a", "train", {GPU: ["GPU-0", "GPU-1"], "nvidia.com/mig-1g.10gb": ["MIG-1"]}),
        ("team-b", "serve", {"nvidia.com/gpu.shared": ["GPU-2::0"]}),
        ("team-c", "serve", {"nvidia.com/gpu.shared": ["GPU-2::1"]}),
        ("team-c", "web", {}),
    ]
    async with serve_kubelet(kubelet, socket):
        assert await client.device_owners() == {
            "GPU-0": ("team-a/train",),
            "GPU-1": ("team-a/train",),
            "MIG-1": ("team-a/train",),
            "GPU-2::0": ("team-b/serve",),
            "GPU-2::1": ("team-c/serve",),
        }


async def test_answer_larger_than_four_mebibytes_is_accepted(
    client: PodResourcesClient, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_owners, "CALL_SECONDS", 60.0)
    kubelet = Kubelet()
    kubelet.pods = [("n" * 60, f"pod-{i}", {GPU: [f"GPU-{i}-{j}" + "x" * 90 for j in range(16)]}) for i in range(3000)]
    async with serve_kubelet(kubelet, socket):
        assert len(await client.device_owners()) == 48_000


async def test_missing_kubelet_is_unavailable(client: PodResourcesClient) -> None:
    with pytest.raises(KubeletUnavailableError, match="UNAVAILABLE"):
        await client.device_owners()


async def test_restarted_kubelet_is_reconnected(client: PodResourcesClient, socket: Path) -> None:
    kubelet = Kubelet()
    kubelet.pods = [("team-a", "one", {GPU: ["GPU-0"]})]
    async with serve_kubelet(kubelet, socket):
        await client.device_owners()
    with pytest.raises(KubeletUnavailableError):
        await client.device_owners()
    kubelet.pods = [("team-a", "two", {GPU: ["GPU-0"]})]
    async with serve_kubelet(kubelet, socket):
        assert await wait_for_answer(client) == {"GPU-0": ("team-a/two",)}


async def test_rate_limited_kubelet_is_unavailable(client: PodResourcesClient, socket: Path) -> None:
    kubelet = Kubelet()
    kubelet.code = grpc.StatusCode.RESOURCE_EXHAUSTED
    async with serve_kubelet(kubelet, socket):
        with pytest.raises(KubeletUnavailableError, match="RESOURCE_EXHAUSTED: rejected"):
            await client.device_owners()
