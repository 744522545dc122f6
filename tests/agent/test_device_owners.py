"""Device ids of plugins, matched to the GPUs of NVML."""

from __future__ import annotations

import pytest

from webhook.agent.device_owners import with_device_owners
from webhook.model.gpu_node import GpuDevice, GPUNodeStatus, MigInstance

SEEN = GPUNodeStatus(
    gpus=(
        GpuDevice(0, uuid="GPU-0"),
        GpuDevice(1, uuid="GPU-1", mig=True, instances=(MigInstance("3g.40gb", 4, id=2, uuids=("MIG-2", "MIG-3")),)),
    )
)
POD = ("team/train",)


@pytest.mark.parametrize(
    ("sentence", "device", "whole", "instance"),
    [
        ("a whole GPU", "GPU-0", POD, ""),
        ("a share of one", "GPU-0::3", POD, ""),
        ("a MIG device", "MIG-2", (), POD[0]),
        ("another compute instance of it", "MIG-3", (), POD[0]),
        ("a whole GPU of GKE", "nvidia0", POD, ""),
        ("a share of GKE", "nvidia0/vgpu1", POD, ""),
        ("an instance of GKE", "nvidia1/gi2", (), POD[0]),
        ("a share of an instance of GKE", "nvidia1/gi2/vgpu0", (), POD[0]),
        ("a device of somebody else", "mlx5_0", (), ""),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_device_owners(sentence: str, device: str, whole: tuple[str, ...], instance: str) -> None:
    first, second = with_device_owners(SEEN, {device: POD}).gpus

    assert first.pods == whole, sentence
    assert second.instances[0].pod == instance, sentence
    assert second.pods == ()


def test_all_owners_of_a_shared_gpu_are_listed_once() -> None:
    shares = {"GPU-0::0": ("b/two",), "GPU-0::1": ("a/one",), "GPU-0::2": ("b/two",)}

    assert with_device_owners(SEEN, shares).gpus[0].pods == ("a/one", "b/two")
