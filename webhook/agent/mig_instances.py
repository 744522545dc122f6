"""Read the MIG instances of one GPU and their placement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref, c_uint
from math import ceil
from typing import Any

import pynvml

from webhook.agent.nvml import GpuQueryError, call_nvml, nvml_text
from webhook.model.gpu_node import MigInstance

MIB = 1024 * 1024
MAX_INSTANCES = 32


def is_mig_enabled(handle: Any) -> bool:
    """Return True if MIG mode is enabled."""
    modes = call_nvml(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def read_mig_instances(handle: Any, memory: int) -> tuple[MigInstance, ...]:
    """Read the GPU instances in order of placement.

    Args:
        handle: The GPU, in MIG mode.
        memory: Memory of the whole GPU, MiB.

    Raises:
        GpuQueryError: They cannot be read, which requires root.
    """
    uuids = _uuids_by_instance(handle)
    found: dict[int, MigInstance] = {}
    for profile in _instance_profiles(handle):
        for info in _instances_of_profile(handle, profile):
            place = info.placement
            name = mig_profile_name(profile, memory)
            found[info.id] = MigInstance(name, place.start, size=place.size, id=info.id, uuids=uuids.get(info.id, ()))
    return tuple(sorted(found.values(), key=lambda one: (one.start, one.id)))


def mig_profile_name(profile: Any, memory: int) -> str:
    """Return the driver's name of a profile, or else the name by the driver's rule.

    >>> class Profile: name, sliceCount, memorySizeMB = b"", 3, 40192
    >>> mig_profile_name(Profile, 81920)
    '3g.40gb'
    """
    name = nvml_text(getattr(profile, "name", "")).removeprefix("MIG ")
    if name:
        return name
    eighths = ceil(8 * profile.memorySizeMB / memory)
    size = (eighths * ceil(memory / 1024) + 4) // 8  # halves go up
    return f"{profile.sliceCount}g.{size}gb"


def _instance_profiles(handle: Any) -> Iterator[Any]:
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = call_nvml(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, index, 2) or call_nvml(
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, index, 1
        )
        if profile is not None:
            yield profile


def _instances_of_profile(handle: Any, profile: Any) -> Iterator[Any]:
    array, count = (pynvml.c_nvmlGpuInstance_t * MAX_INSTANCES)(), c_uint()
    call_nvml(pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, array, byref(count))
    for index in range(count.value):
        info = call_nvml(pynvml.nvmlGpuInstanceGetInfo, array[index])
        if info is None:
            raise GpuQueryError("a MIG instance was deleted while it was read")
        yield info


def _uuids_by_instance(handle: Any) -> Mapping[int, tuple[str, ...]]:
    """Return the UUIDs of MIG devices by GPU instance; their indexes have gaps."""
    found: dict[int, tuple[str, ...]] = {}
    for index in range(call_nvml(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = call_nvml(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is None:
            continue
        instance = call_nvml(pynvml.nvmlDeviceGetGpuInstanceId, device)
        uuid = nvml_text(call_nvml(pynvml.nvmlDeviceGetUUID, device))
        if instance is not None and uuid:
            found[instance] = (*found.get(instance, ()), uuid)
    return found
