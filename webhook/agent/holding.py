"""Who holds which GPU: devices as their plugins call them, matched to what NVML sees. Pure.

Ids are UUIDs of GPUs and MIG devices, "UUID::2" for a share of one; on GKE "nvidia0", "nvidia0/gi3", and
"nvidia0/vgpu1" or "nvidia0/gi3/vgpu1" for shares.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from webhook.model.gpunodes import GpuDevice, GPUNodeStatus, MigInstance

_GKE_DEVICE_ID = re.compile(r"nvidia(\d{1,3})(?:/gi(\d{1,3}))?(?:/vgpu\d{1,4})?\Z")

PodNames = tuple[str, ...]


def with_device_owners(status: GPUNodeStatus, holders: Mapping[str, PodNames]) -> GPUNodeStatus:
    """The status with the pods that hold each GPU and each MIG instance.

    Args:
        status: What NVML sees.
        holders: Pods by device id; ids of other devices are left out.
    """
    by_device: defaultdict[str, set[str]] = defaultdict(set)
    for device, pods in holders.items():
        by_device[device_of_id(device)].update(pods)
    gpus = tuple(_with_gpu_owners(gpu, by_device) for gpu in status.gpus)
    return msgspec.structs.replace(status, gpus=gpus)


def device_of_id(name: str) -> str:
    """The device that an id stands for, without the number of a share.

    >>> device_of("GPU-8f::3"), device_of("nvidia0/gi3/vgpu1"), device_of("nvidia1/vgpu0")
    ('GPU-8f', 'nvidia0/gi3', 'nvidia1')
    """
    gke = _GKE_DEVICE_ID.match(name)
    if gke:
        return f"nvidia{gke[1]}/gi{gke[2]}" if gke[2] else f"nvidia{gke[1]}"
    return name.partition("::")[0]


def _with_gpu_owners(gpu: GpuDevice, holders: Mapping[str, set[str]]) -> GpuDevice:
    whole = f"nvidia{gpu.index}"

    def instance(one: MigInstance) -> MigInstance:
        pods = _owners_of_ids(holders, (*one.uuids, f"{whole}/gi{one.id}"))
        return msgspec.structs.replace(one, pod=pods[0] if pods else "")

    cuts = tuple(instance(one) for one in gpu.instances)
    return msgspec.structs.replace(gpu, pods=_owners_of_ids(holders, (gpu.uuid, whole)), instances=cuts)


def _owners_of_ids(holders: Mapping[str, set[str]], names: Iterable[str]) -> PodNames:
    return tuple(sorted({pod for name in names for pod in holders.get(name, ())}))
