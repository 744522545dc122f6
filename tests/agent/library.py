"""A scripted libnvidia-ml: the C functions as `pynvml` calls them, for a machine that a test describes and changes.

It replaces the library (`pynvml.nvmlLib`), so all of `pynvml` and of the agent runs: structs are filled through the
pointers that are passed, handles are opaque addresses, and errors are the library's return codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p, cast
from dataclasses import dataclass, field
from typing import Any

import pynvml

SWITCH = "switch"
MIB = 1024 * 1024

PROFILES = {
    # NVML's index: id, slices, memory in MiB, name; those of an A100 with 80 GB
    0: (19, 1, 9728, "MIG 1g.10gb"),
    1: (14, 2, 19968, "MIG 2g.20gb"),
    2: (9, 3, 40192, "MIG 3g.40gb"),
    3: (5, 4, 40192, "MIG 4g.40gb"),
    4: (0, 7, 80384, "MIG 7g.80gb"),
}


@dataclass
class InstanceState:
    """A GPU instance with one compute instance in it."""

    id: int
    profile: int
    start: int
    size: int

    @property
    def uuid(self) -> str:
        return f"MIG-{self.id}"


@dataclass
class Card:
    """One GPU. `links`: whether each is up, and its remote end: a bus id, SWITCH, or another word.

    A lost GPU has no handle; a silent one has a handle and does not answer.
    """

    pci: str
    name: str = "NVIDIA A100-SXM4-80GB"
    mib: int = 81920
    links: list[tuple[bool, str]] = field(default_factory=list)
    version: int = 4
    speed: int = 25_000
    mig: bool = False
    instances: list[InstanceState] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    action: int | None = 0
    ecc: int = 0
    remap_failed: bool = False
    fabric: tuple[int, bytes, int] | None = None
    lost: bool = False
    silent: bool = False
    root: bool = True

    @property
    def uuid(self) -> str:
        return f"GPU-{self.pci}"


@dataclass
class Library:
    """The library and its machine; `before` is called with the name of each called function."""

    cards: list[Card] = field(default_factory=list)
    levels: dict[tuple[int, int], int] = field(default_factory=dict)
    driver: str = "580.95.05"
    cuda: int = 13000
    loaded: bool = True
    replaced: bool = False
    initialized: bool = False
    calls: Counter[str] = field(default_factory=Counter)
    before: Callable[[str], None] = lambda _name: None

    def __getattr__(self, name: str) -> Callable[..., int]:
        script = type(self).__dict__.get(f"_{name}")
        if script is None:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls[name] += 1
            self.before(name)
            if self.replaced:
                return int(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
            if not self.loaded and name.startswith("nvmlInit"):
                return int(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
            if not (self.initialized and self.loaded) and not name.startswith("nvmlInit"):
                return int(pynvml.NVML_ERROR_UNINITIALIZED)
            return int(script(self, *arguments) or 0)

        return function

    # The functions. An argument that is passed by reference is `argument._obj`.

    def _nvmlInitWithFlags(self, _flags: Any) -> None:
        self.initialized = True

    def _nvmlShutdown(self) -> None:
        self.initialized = False

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> None:
        text.value = self.driver.encode()

    def _nvmlSystemGetCudaDriverVersion(self, number: Any) -> None:
        number._obj.value = self.cuda

    def _nvmlDeviceGetCount_v2(self, number: Any) -> None:
        number._obj.value = len(self.cards)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if self.cards[index.value].lost:
            return int(pynvml.NVML_ERROR_GPU_IS_LOST)
        _point(handle, 0x1000 * (index.value + 1))
        return 0

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> None:
        info._obj.busId = f"0000{self._card(handle).pci}".upper().encode()

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:
        card = self._card(handle)
        info._obj.total = card.mib * MIB
        return int(pynvml.NVML_ERROR_GPU_IS_LOST) if card.lost or card.silent else 0

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> None:
        address = _address(handle)
        card = self._card(handle)
        text.value = (card.instances[address % 0x1000 - 1].uuid if address % 0x1000 else card.uuid).encode()

    def _nvmlDeviceGetName(self, handle: Any, text: Any, _size: Any) -> None:
        text.value = self._card(handle).name.encode()

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, _counter: Any, count: Any) -> None:
        count._obj.value = self._card(handle).ecc if kind.value == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 10**9

    def _nvmlDeviceGetRemappedRows(self, handle: Any, one: Any, two: Any, pending: Any, failed: Any) -> None:
        failed._obj.value = self._card(handle).remap_failed

    def _nvmlDeviceGetFieldValues(self, handle: Any, _count: Any, values: Any) -> None:
        card, value = self._card(handle), values._obj[0]
        values_by_field = {pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: card.action}
        values_by_field[pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON] = card.speed if card.links else None
        found = values_by_field.get(value.fieldId)
        value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if found is None else 0
        value.value.uiVal = found or 0

    def _nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int:
        fabric = self._card(handle).fabric
        if fabric is None:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info._obj.state, uuid, info._obj.cliqueId = fabric
        info._obj.clusterUuid[:] = uuid
        return 0

    def _nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any, level: Any) -> int:
        pair = sorted((_address(one) // 0x1000 - 1, _address(other) // 0x1000 - 1))
        if (pair[0], pair[1]) not in self.levels:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        level._obj.value = self.levels[pair[0], pair[1]]
        return 0

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, state: Any) -> int:
        links = self._card(handle).links
        if link >= len(links):
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED if not links else pynvml.NVML_ERROR_INVALID_ARGUMENT)
        state._obj.value = links[link][0]
        return 0

    def _nvmlDeviceGetNvLinkVersion(self, handle: Any, _link: int, version: Any) -> None:
        version._obj.value = self._card(handle).version

    def _nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: int, info: Any) -> None:
        end = self._card(handle).links[link][1]
        info._obj.busId = (b"FFFFFFF:FF:FF" if end == SWITCH else f"0000{end}".upper().encode())[:31]

    def _nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int, kind: Any) -> None:
        end = self._card(handle).links[link][1]
        kinds = {SWITCH: pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH, "cpu": pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU}
        kind._obj.value = kinds.get(end, pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        current._obj.value = pending._obj.value = self._card(handle).mig

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> None:
        count._obj.value = 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, device: Any) -> int:
        devices = [None, *self._card(handle).instances]  # NVML's indexes have gaps
        if index.value >= len(devices) or devices[index.value] is None:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        _point(device, _address(handle) + index.value)
        return 0

    def _nvmlDeviceGetGpuInstanceId(self, device: Any, number: Any) -> None:
        number._obj.value = self._card(device).instances[_address(device) % 0x1000 - 1].id

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, index: int, info: Any) -> int:
        if index not in PROFILES:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        info._obj.id, info._obj.sliceCount, info._obj.memorySizeMB, name = PROFILES[index]
        info._obj.name = name.encode()
        return 0

    def _nvmlDeviceGetGpuInstances(self, handle: Any, profile: int, array: Any, count: Any) -> int:
        card = self._card(handle)
        if not card.root:
            return int(pynvml.NVML_ERROR_NO_PERMISSION)
        instances = [place for place, instance in enumerate(card.instances) if PROFILES[instance.profile][0] == profile]
        for index, place in enumerate(instances):
            c_void_p.from_buffer(array, index * 8).value = _address(handle) + 0x800 + place
        count._obj.value = len(instances)
        return 0

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> None:
        state = self._card(instance).instances[_address(instance) % 0x800]
        info._obj.id, info._obj.placement.start, info._obj.placement.size = state.id, state.start, state.size

    def _nvmlEventSetCreate(self, events: Any) -> None:
        _point(events, 0x10)

    def _nvmlEventSetFree(self, _events: Any) -> None:
        return None

    def _nvmlDeviceRegisterEvents(self, _handle: Any, _kinds: Any, _events: Any) -> None:
        return None

    def _nvmlEventSetWait_v2(self, _events: Any, event: Any, _timeout: Any) -> int:
        for index, card in enumerate(self.cards):
            if card.xids:
                _point_at(event._obj, "device", 0x1000 * (index + 1))
                event._obj.eventType = pynvml.nvmlEventTypeXidCriticalError
                event._obj.eventData = card.xids.pop(0)
                return 0
        return int(pynvml.NVML_ERROR_TIMEOUT)

    def _card(self, handle: Any) -> Card:
        return self.cards[_address(handle) // 0x1000 - 1]


def _address(handle: Any) -> int:
    return cast(handle, c_void_p).value or 0


def _point(reference: Any, address: int) -> None:
    """Set a handle that was passed by reference."""
    c_void_p.from_buffer(reference._obj).value = address


def _point_at(struct: Any, name: str, address: int) -> None:
    """Set a handle that is a field of a struct."""
    setattr(struct, name, cast(c_void_p(address), type(getattr(struct, name))))


@contextmanager
def install_library(library: Library) -> Iterator[Library]:
    """Make `pynvml` use this library instead of the driver's."""
    before = pynvml.nvmlLib
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml.nvmlLib = library
    try:
        yield library
    finally:
        pynvml.nvmlLib = before
        pynvml._nvmlGetFunctionPointer_cache.clear()
