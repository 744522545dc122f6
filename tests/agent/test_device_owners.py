"""Device ids of plugins, matched to the GPUs of NVML."""

from __future__ import annotations

import pytest

from webhook.agent.device_owners import with_device_owners
from webhook.model.gpu_node import GpuDevice, GPUNodeStatus, MigInstance

STATUS = GPUNodeStatus(
    gpus=(
        GpuDevice(0, uuid="GPU-0"),
        GpuDevice(1, uuid="GPU-1", mig=True, instances=(MigInstance("3g.40gb", 4, id=2, uuids=("MIG-2", "MIG-3")),)),
    )
)
POD = ("team/train",)


@pytest.mark.parametrize(
    ("case", "device", "whole", "instance"),
    [
        ("a whole GPU", "GPU-0", POD, ""),
        ("a share of a GPU", "GPU-0::3", POD, ""),
        ("a MIG device", "MIG-2", (), POD[0]),
        ("another compute instance of the MIG device", "MIG-3", (), POD[0]),
        ("a whole GPU on GKE", "nvidia0", POD, ""),
        ("a share on GKE", "nvidia0/vgpu1", POD, ""),
        ("a MIG instance on GKE", "nvidia1/gi2", (), POD[0]),
        ("a share of a MIG instance on GKE", "nvidia1/gi2/vgpu0", (), POD[0]),
        ("a device of another plugin", "mlx5_0", (), ""),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_device_owners(case: str, device: str, whole: tuple[str, ...], instance: str) -> None:
    first, second = with_device_owners(STATUS, {device: POD}).gpus

    assert first.pods == whole, case
    assert second.instances[0].pod == instance, case
    assert second.pods == ()


def test_all_owners_of_a_shared_gpu_are_listed_once() -> None:
    shares = {"GPU-0::0": ("b/two",), "GPU-0::1": ("a/one",), "GPU-0::2": ("b/two",)}

    assert with_device_owners(STATUS, shares).gpus[0].pods == ("a/one", "b/two")
