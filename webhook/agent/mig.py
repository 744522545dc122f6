"""The MIG instances of one GPU, with where they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ctypes import byref, c_uint
from math import ceil
from typing import Any

import pynvml

from webhook.agent.nvml import GpuTroubleError, asked, words
from webhook.model.gpunodes import MigInstance

MIB = 1024 * 1024
MOST_INSTANCES = 32


def in_mig_mode(handle: Any) -> bool:
    """Is it cut, or may it be, now?"""
    modes = asked(pynvml.nvmlDeviceGetMigMode, handle)
    return modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE


def instances(handle: Any, memory: int) -> tuple[MigInstance, ...]:
    """The GPU instances, in order of place.

    Args:
        handle: The GPU, in MIG mode.
        memory: Of the whole GPU, MiB.

    Raises:
        GpuTroubleError: they cannot be read; it takes root.
    """
    uuids = _uuids(handle)
    found: dict[int, MigInstance] = {}
    for profile in _profiles(handle):
        for info in _of_profile(handle, profile):
            place = info.placement
            name = profile_name(profile, memory)
            found[info.id] = MigInstance(name, place.start, size=place.size, id=info.id, uuids=uuids.get(info.id, ()))
    return tuple(sorted(found.values(), key=lambda one: (one.start, one.id)))


def profile_name(profile: Any, memory: int) -> str:
    """The name of a profile: the driver's, or where it has none the one that its rule makes.

    >>> class Profile: name, sliceCount, memorySizeMB = b"", 3, 40192
    >>> profile_name(Profile, 81920)
    '3g.40gb'
    """
    given = words(getattr(profile, "name", "")).removeprefix("MIG ")
    if given:
        return given
    eighths = ceil(8 * profile.memorySizeMB / memory)
    size = (eighths * ceil(memory / 1024) + 4) // 8  # halves go up
    return f"{profile.sliceCount}g.{size}gb"


def _profiles(handle: Any) -> Iterator[Any]:
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        profile = asked(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, index, 2) or asked(
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, index, 1
        )
        if profile is not None:
            yield profile


def _of_profile(handle: Any, profile: Any) -> Iterator[Any]:
    array, count = (pynvml.c_nvmlGpuInstance_t * MOST_INSTANCES)(), c_uint()
    asked(pynvml.nvmlDeviceGetGpuInstances, handle, profile.id, array, byref(count))
    for index in range(count.value):
        info = asked(pynvml.nvmlGpuInstanceGetInfo, array[index])
        if info is None:
            raise GpuTroubleError("a MIG instance went while it was read")
        yield info


def _uuids(handle: Any) -> Mapping[int, tuple[str, ...]]:
    """UUIDs of MIG devices by GPU instance. Their numbers have holes."""
    found: dict[int, tuple[str, ...]] = {}
    for index in range(asked(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        device = asked(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if device is None:
            continue
        instance = asked(pynvml.nvmlDeviceGetGpuInstanceId, device)
        uuid = words(asked(pynvml.nvmlDeviceGetUUID, device))
        if instance is not None and uuid:
            found[instance] = (*found.get(instance, ()), uuid)
    return found
