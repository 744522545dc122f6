"""Discover the GPUs of one machine, repeatedly. A GPU that disappears is reported as lost.

Between two discoveries the driver may be reloaded, and GPUs may be repartitioned, reset, or fall off the bus. Links are
cached, because NVML takes half a second per pair on some machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ctypes import byref, c_uint
from itertools import combinations
from math import ceil
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pynvml

from webhook.agent import nvml
from webhook.agent.gpu_health import GpuHealth, assess_gpu
from webhook.agent.nvml import (
    NVLINK_GENERATIONS,
    PCIE_PATHS,
    DriverUnavailableError,
    GpuQueryError,
    NvlinkEnds,
    XidEvents,
    call_nvml,
    normalize_bus_id,
    nvml_text,
    read_field,
    read_nvlink_ends,
)
from webhook.model.gpu_node import GpuDevice, GpuLink, GPUNodeStatus, MigInstance
from webhook.placement.topology import NVLINK_RATES

MIB = 1024 * 1024
MAX_INSTANCES = 32
SYSFS = Path("/sys/bus/pci/devices")

LINKS_VALID_SECONDS = 60.0
"""Validity of links that were read."""

SLOW_READ_SECONDS = 2.0
SLOW_LINKS_VALID_SECONDS = 900.0
"""Validity if reading them took longer than `SLOW_READ_SECONDS`."""

LOST_CONDITION = "lost: fallen off the bus, or waiting for a reset"
FABRIC_CONDITION = "the fabric manager has not finished"


class GpuDiscovery:
    """The GPUs of this machine. All methods block."""

    def __init__(self, clock: Callable[[], float], sysfs: Path = SYSFS) -> None:
        """Prepare; NVML is initialized at the first discovery.

        Args:
            clock: A monotonic clock, seconds.
            sysfs: The kernel's folder of PCI devices.
        """
        self._clock, self._sysfs = clock, sysfs
        self._initialized = False
        self._known: dict[str, GpuDevice] = {}
        self._listed: tuple[str, ...] = ()
        self._xids = XidEvents()
        self._ends: dict[str, NvlinkEnds] = {}
        self._pcie_paths: dict[tuple[str, str], str] = {}
        self._rate = 0
        self._max_count = 0
        self._links_valid_until = float("-inf")

    def discover(self) -> GPUNodeStatus:
        """Return the GPUs, without their pods.

        Raises:
            DriverReplacedError: The process must be restarted.
        """
        try:
            if not self._initialized:
                nvml.init_nvml()
                self._initialized = True
            return self._discover_gpus()
        except DriverUnavailableError as error:
            self._shut_down()
            if isinstance(error, nvml.DriverReplacedError):
                raise
            unhealthy = GpuHealth(False, False, ("the driver is not loaded",))
            gone = tuple(_with_health(gpu, unhealthy) for gpu in (*self._known.values(), *self._unidentified_gpus()))
            return GPUNodeStatus(gpus=_sort_by_index(gone), message=f"no NVIDIA driver: {error}")

    def _shut_down(self) -> None:
        if self._initialized:
            self._xids.reset()
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._initialized = False
        self._listed = ()
        self._links_valid_until = float("-inf")

    def _discover_gpus(self) -> GPUNodeStatus:
        handles = self._read_handles()
        self._xids.collect()
        if tuple(handles) != self._listed:
            self._listed = tuple(handles)
            self._xids.register(handles.items())
            self._links_valid_until = float("-inf")
        answered = {pci: self._read_gpu(self._known[pci], handle) for pci, handle in handles.items()}
        self._known |= {pci: gpu for pci, gpu in answered.items() if gpu is not None}
        present = {pci: handles[pci] for pci, gpu in answered.items() if gpu is not None}
        lost = [pci for pci in self._known if pci not in present]
        self._read_links({pci: handle for pci, handle in present.items() if not self._known[pci].mig})
        gpus = [*self._with_links(present), *(self._as_lost(self._known[pci]) for pci in lost)]
        gpus += map(self._as_lost, self._unidentified_gpus())
        first = next(iter(present.values()), None)
        cliques = set(map(_fabric_clique, present.values()))
        return self._build_status(first, _sort_by_index(gpus), cliques.pop() if len(cliques) == 1 else "")

    def _read_handles(self) -> dict[str, Any]:
        """Return the handles of the GPUs that answer, by bus id, and give new ones an index."""
        found = {}
        counted = call_nvml(pynvml.nvmlDeviceGetCount) or 0
        self._max_count = max(self._max_count, counted)
        for index in range(counted):
            with suppress(GpuQueryError):
                handle = call_nvml(pynvml.nvmlDeviceGetHandleByIndex, index)
                pci = call_nvml(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
                if pci is not None:
                    found[normalize_bus_id(pci.busId)] = handle
                    self._assign_index(normalize_bus_id(pci.busId), index)
        return found

    def _assign_index(self, pci: str, index: int) -> None:
        """Give a GPU a permanent index: NVML's, or the last free one if another GPU has that."""
        if pci in self._known:
            return
        left = [gpu.index for gpu in self._unidentified_gpus()]
        number = index if index in left else max(left, default=len(self._known))
        self._known[pci] = GpuDevice(index=number, numa_node=self._numa_node(pci), pci_bus_id=pci)

    def _unidentified_gpus(self) -> list[GpuDevice]:
        named = {gpu.index for gpu in self._known.values()}
        return [GpuDevice(index=number) for number in range(self._max_count) if number not in named]

    def _read_gpu(self, known: GpuDevice, handle: Any) -> GpuDevice | None:
        try:
            memory = call_nvml(pynvml.nvmlDeviceGetMemoryInfo, handle)
            uuid = nvml_text(call_nvml(pynvml.nvmlDeviceGetUUID, handle))
            mig_modes = call_nvml(pynvml.nvmlDeviceGetMigMode, handle)
            ecc_kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
            gpu = GpuDevice(
                index=known.index,
                uuid=uuid,
                numa_node=self._numa_node(known.pci_bus_id),
                memory_mib=memory.total // MIB if memory is not None else 0,
                pci_bus_id=known.pci_bus_id,
                mig=mig_modes is not None and mig_modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
                ecc_errors=call_nvml(pynvml.nvmlDeviceGetTotalEccErrors, handle, *ecc_kinds) or 0,
            )
            return _with_mig_instances(_with_health(gpu, self._assess(known.pci_bus_id, handle)), handle)
        except GpuQueryError:
            return None

    def _numa_node(self, pci: str) -> int:
        try:
            return int((self._sysfs / pci / "numa_node").read_text())
        except (OSError, ValueError):
            return -1

    def _assess(self, pci: str, handle: Any) -> GpuHealth:
        rows = call_nvml(pynvml.nvmlDeviceGetRemappedRows, handle)
        info = _fabric_info(handle)
        fabric = FABRIC_CONDITION if info is not None and info.state in _FABRIC_UNFINISHED else ""
        action = read_field(handle, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        failed = rows is not None and bool(rows[3])
        return assess_gpu(self._xids.seen_on(pci), action=action, remap_failed=failed, fabric=fabric)

    def _as_lost(self, known: GpuDevice) -> GpuDevice:
        """Return a GPU that does not answer as it was last known, marked as lost."""
        verdict = assess_gpu(self._xids.seen_on(known.pci_bus_id))
        gpu = _with_health(known, GpuHealth(False, False, (*verdict.conditions, LOST_CONDITION)))
        return msgspec.structs.replace(gpu, links=())

    def _read_links(self, handles: Mapping[str, Any]) -> None:
        start = self._clock()
        if start < self._links_valid_until and handles.keys() <= self._ends.keys():
            return
        pcis = frozenset(self._known)
        ends: dict[str, NvlinkEnds] = {}
        for pci, handle in handles.items():
            with suppress(GpuQueryError):
                ends[pci] = read_nvlink_ends(handle, pcis)
        self._ends = ends
        for one, other in combinations(sorted(handles), 2):
            if (one, other) not in self._pcie_paths:  # they never change
                with suppress(GpuQueryError):
                    level = call_nvml(pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[one], handles[other])
                    self._pcie_paths[one, other] = PCIE_PATHS.get(level, "") if level is not None else ""
        self._rate = 0
        for handle in handles.values():
            with suppress(GpuQueryError):  # the rate of one link and direction
                self._rate = self._rate or read_field(handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON)
        end = self._clock()
        self._links_valid_until = end + (
            SLOW_LINKS_VALID_SECONDS if end - start > SLOW_READ_SECONDS else LINKS_VALID_SECONDS
        )

    def _with_links(self, handles: Mapping[str, Any]) -> list[GpuDevice]:
        ends = {pci: self._ends.get(pci, NvlinkEnds({}, 0, 0, 0)) for pci in handles}

        def link(one: str, other: str) -> GpuLink:
            nvlinks = ends[one].gpus.get(other, 0) + (ends[one].switch if ends[other].switch else 0)
            path = self._pcie_paths.get((min(one, other), max(one, other)), "")
            return GpuLink(self._known[other].index, nvlinks, path)

        return [
            msgspec.structs.replace(
                self._known[pci],
                links=tuple(link(pci, other) for other in handles if other != pci),
                nvlinks_down=ends[pci].down,
            )
            for pci in handles
        ]

    def _build_status(self, first: Any, gpus: tuple[GpuDevice, ...], clique: str) -> GPUNodeStatus:
        version = max((ends.version for ends in self._ends.values()), default=0)
        generation = NVLINK_GENERATIONS.get(version, 0)
        usual = NVLINK_RATES.get(generation, 0)
        cuda = call_nvml(pynvml.nvmlSystemGetCudaDriverVersion) or 0
        silent = sum(not gpu.uuid for gpu in gpus)
        return GPUNodeStatus(
            product=nvml_text(call_nvml(pynvml.nvmlDeviceGetName, first)).replace(" ", "-")
            if first is not None
            else "",
            gpus=gpus,
            nvlink_generation=generation,
            nvlink_bandwidth=self._rate if abs(self._rate - usual) > usual / 10 else 0,
            nvswitch=any(ends.switch for ends in self._ends.values()),
            clique=clique,
            driver_version=nvml_text(call_nvml(pynvml.nvmlSystemGetDriverVersion)),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            message=f"{silent} of {len(gpus)} GPUs are {LOST_CONDITION}" if silent else "",
        )


_FABRIC_UNFINISHED = frozenset({pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS})


def _fabric_info(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = pynvml.nvmlGpuFabricInfo_v2
    return info if call_nvml(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.byref(info)) is not None else None


def _fabric_clique(handle: Any) -> str:
    with suppress(GpuQueryError):
        info = _fabric_info(handle)
        uuid = bytes(info.clusterUuid) if info is not None else b""
        if any(uuid) and info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS:
            return f"{UUID(bytes=uuid)}.{info.cliqueId}"
    return ""


def _with_mig_instances(gpu: GpuDevice, handle: Any) -> GpuDevice:
    """Return the GPU with its MIG instances; unhealthy if they cannot be read."""
    if not gpu.mig:
        return gpu
    try:
        return msgspec.structs.replace(gpu, instances=read_mig_instances(handle, gpu.memory_mib))
    except GpuQueryError as error:
        return _with_health(
            gpu, GpuHealth(False, gpu.nvlink_degraded, (*gpu.conditions, f"its MIG instances cannot be read: {error}"))
        )


def _with_health(gpu: GpuDevice, health: GpuHealth) -> GpuDevice:
    healthy, degraded, conditions = health
    return msgspec.structs.replace(gpu, healthy=healthy, nvlink_degraded=degraded, conditions=conditions)


def _sort_by_index(gpus: Any) -> tuple[GpuDevice, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def read_mig_instances(handle: Any, memory: int) -> tuple[MigInstance, ...]:
    """Read the GPU instances in order of placement.

    Args:
        memory: Memory of the whole GPU, MiB.

    Raises:
        GpuQueryError: They cannot be read, which requires root.
    """
    uuids = _uuids_by_instance(handle)
    found: dict[int, MigInstance] = {}
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        versions = (call_nvml(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handle, index, version) for version in (2, 1))
        profile = next(filter(None, versions), None)
        if profile is None:
            continue
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
