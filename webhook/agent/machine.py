"""One machine's GPUs, looked at again and again. What was seen once and is gone is told as lost.

Between two looks the driver may be reloaded, GPUs may be cut anew, reset, or fall off the bus. Links are kept: on
some machines NVML takes half a second for each pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pynvml

from webhook.agent import nvml
from webhook.agent.health import Health, judge
from webhook.agent.links import GENERATIONS, Ends, bus_id, ends_of, level, rows, speed
from webhook.agent.mig import MIB, in_mig_mode, instances
from webhook.agent.nvml import DriverAwayError, GpuTroubleError, asked, words
from webhook.agent.xids import Xids
from webhook.model.gpunodes import GpuDevice, GPUNodeStatus
from webhook.placement.topology import RATES

SYSFS = Path("/sys/bus/pci/devices")

LINK_SECONDS = 60.0
"""How long links count as they were."""

SLOW_SECONDS = 2.0
SLOW_LINK_SECONDS = 900.0
"""The same where reading them took longer than that."""

LOST = "lost: fallen off the bus, or waiting for a reset"
FABRIC = "the fabric manager has not finished"


class Machine:
    """The GPUs of this machine. Everything here blocks."""

    def __init__(self, clock: Callable[[], float], sysfs: Path = SYSFS) -> None:
        """Begin; NVML is asked at the first look.

        Args:
            clock: Seconds that only grow.
            sysfs: Where the kernel tells of PCI devices.
        """
        self._clock, self._sysfs = clock, sysfs
        self._begun = False
        self._known: dict[str, GpuDevice] = {}
        self._listed: tuple[str, ...] = ()
        self._xids = Xids()
        self._ends: dict[str, Ends] = {}
        self._levels: dict[tuple[str, str], str] = {}
        self._rate = 0
        self._most = 0
        self._links_end = float("-inf")

    def look(self) -> GPUNodeStatus:
        """What is there now; nobody holds anything in it yet.

        Raises:
            DriverReplacedError: only a new process can go on.
        """
        try:
            if not self._begun:
                nvml.begin()
                self._begun = True
            return self._look()
        except DriverAwayError as error:
            self._end()
            if isinstance(error, nvml.DriverReplacedError):
                raise
            sick = Health(False, False, ("the driver is not loaded",))
            gone = tuple(_judged(gpu, sick) for gpu in (*self._known.values(), *self._unnamed()))
            return GPUNodeStatus(gpus=_sorted(gone), message=f"no NVIDIA driver: {error}")

    def _end(self) -> None:
        if self._begun:
            self._xids.forget()
            nvml.end()
        self._begun = False
        self._listed = ()
        self._links_end = float("-inf")

    def _look(self) -> GPUNodeStatus:
        handles = self._handles()
        self._xids.take()
        if tuple(handles) != self._listed:
            self._listed = tuple(handles)
            self._xids.listen(handles.items())
            self._links_end = float("-inf")
        seen = {pci: self._gpu(self._known[pci], handle) for pci, handle in handles.items()}
        self._known |= {pci: gpu for pci, gpu in seen.items() if gpu is not None}
        there = {pci: handles[pci] for pci, gpu in seen.items() if gpu is not None}
        lost = [pci for pci in self._known if pci not in there]
        self._read_links({pci: handle for pci, handle in there.items() if not self._known[pci].mig})
        gpus = [*self._linked(there), *(self._lost(self._known[pci]) for pci in lost)]
        gpus += map(self._lost, self._unnamed())
        first = next(iter(there.values()), None)
        return self._status(first, _sorted(gpus), _one(map(_clique, there.values())))

    def _handles(self) -> dict[str, Any]:
        """Handles of the GPUs that answer at all, by bus id. From here on each of them is known by its number."""
        found = {}
        counted = asked(pynvml.nvmlDeviceGetCount) or 0
        self._most = max(self._most, counted)
        for index in range(counted):
            with suppress(GpuTroubleError):
                handle = asked(pynvml.nvmlDeviceGetHandleByIndex, index)
                pci = asked(pynvml.nvmlDeviceGetPciInfo, handle) if handle is not None else None
                if pci is not None:
                    found[bus_id(pci.busId)] = handle
                    self._meet(bus_id(pci.busId), index)
        return found

    def _meet(self, pci: str, index: int) -> None:
        """Number a GPU for good: as NVML does, or where another has that number, with the last that is left."""
        if pci in self._known:
            return
        left = [gpu.index for gpu in self._unnamed()]
        number = index if index in left else max(left, default=len(self._known))
        self._known[pci] = GpuDevice(index=number, numa=self._numa(pci), pci=pci)

    def _unnamed(self) -> list[GpuDevice]:
        """GPUs that NVML has counted, and that have never told who they are."""
        named = {gpu.index for gpu in self._known.values()}
        return [GpuDevice(index=number) for number in range(self._most) if number not in named]

    def _gpu(self, known: GpuDevice, handle: Any) -> GpuDevice | None:
        """One GPU without its links; None where it does not answer."""
        try:
            memory = asked(pynvml.nvmlDeviceGetMemoryInfo, handle)
            mib = memory.total // MIB if memory is not None else 0
            gpu = GpuDevice(
                index=known.index,
                uuid=words(asked(pynvml.nvmlDeviceGetUUID, handle)),
                numa=self._numa(known.pci),
                memory=mib,
                pci=known.pci,
                mig=in_mig_mode(handle),
                ecc_errors=_ecc_errors(handle),
            )
            return _cut(_judged(gpu, self._health(known.pci, handle)), handle)
        except GpuTroubleError:
            return None

    def _numa(self, pci: str) -> int:
        try:
            return int((self._sysfs / pci / "numa_node").read_text())
        except (OSError, ValueError):
            return -1

    def _health(self, pci: str, handle: Any) -> Health:
        rows = asked(pynvml.nvmlDeviceGetRemappedRows, handle)
        fabric = FABRIC if _fabric_state(handle) in _UNFINISHED else ""
        failed = rows is not None and bool(rows[3])
        return judge(self._xids.of(pci), action=_action(handle), remap_failed=failed, fabric=fabric)

    def _lost(self, known: GpuDevice) -> GpuDevice:
        """A GPU that does not answer: what was known of it, and that it is lost."""
        verdict = judge(self._xids.of(known.pci))
        gpu = _judged(known, Health(False, False, (*verdict.ailments, LOST)))
        return msgspec.structs.replace(gpu, links=())

    def _read_links(self, handles: Mapping[str, Any]) -> None:
        """Read links where they are due, of the GPUs that have any."""
        start = self._clock()
        if start < self._links_end and handles.keys() <= self._ends.keys():
            return
        pcis = frozenset(self._known)
        ends: dict[str, Ends] = {}
        for pci, handle in handles.items():
            with suppress(GpuTroubleError):
                ends[pci] = ends_of(handle, pcis)
        self._ends = ends
        self._read_levels(handles)
        self._rate = next((rate for handle in handles.values() if (rate := _speed(handle))), 0)
        end = self._clock()
        self._links_end = end + (SLOW_LINK_SECONDS if end - start > SLOW_SECONDS else LINK_SECONDS)

    def _read_levels(self, handles: Mapping[str, Any]) -> None:
        """PCIe paths, of pairs that are not known yet: boards do not change."""
        names = sorted(handles)
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                if (one, other) not in self._levels:
                    with suppress(GpuTroubleError):
                        self._levels[one, other] = level(handles[one], handles[other])

    def _linked(self, handles: Mapping[str, Any]) -> list[GpuDevice]:
        """The GPUs that answer, with their links."""
        index = {pci: self._known[pci].index for pci in handles}
        pcis = {index[pci]: pci for pci in handles}
        ends = {index[pci]: self._ends.get(pci, Ends({}, 0, 0, 0)) for pci in handles}
        levels = {
            (min(index[one], index[other]), max(index[one], index[other])): path
            for (one, other), path in self._levels.items()
            if one in index and other in index
        }
        links = rows(ends, pcis, levels)
        return [
            msgspec.structs.replace(self._known[pci], links=links[index[pci]], links_down=ends[index[pci]].down)
            for pci in handles
        ]

    def _status(self, first: Any, gpus: tuple[GpuDevice, ...], clique: str) -> GPUNodeStatus:
        """The whole; `first` is a GPU that answers, if any does."""
        version = max((ends.version for ends in self._ends.values()), default=0)
        generation = GENERATIONS.get(version, 0)
        usual = RATES.get(generation, 0)
        cuda = asked(pynvml.nvmlSystemGetCudaDriverVersion) or 0
        silent = sum(not gpu.uuid for gpu in gpus)
        return GPUNodeStatus(
            product=words(asked(pynvml.nvmlDeviceGetName, first)).replace(" ", "-") if first is not None else "",
            gpus=gpus,
            nvlink_generation=generation,
            nvlink_rate=self._rate if abs(self._rate - usual) > usual / 10 else 0,
            nvswitch=any(ends.switch for ends in self._ends.values()),
            clique=clique,
            driver=words(asked(pynvml.nvmlSystemGetDriverVersion)),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            message=f"{silent} of {len(gpus)} GPUs are {LOST}" if silent else "",
        )


_UNFINISHED = frozenset({pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED, pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS})


def _fabric(handle: Any) -> Any:
    """NVML's account of the fabric that a GPU is in; None before Hopper."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = pynvml.nvmlGpuFabricInfo_v2
    return info if asked(pynvml.nvmlDeviceGetGpuFabricInfoV, handle, pynvml.byref(info)) is not None else None


def _fabric_state(handle: Any) -> int:
    info = _fabric(handle)
    return int(info.state) if info is not None else pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED


def _clique(handle: Any) -> str:
    """The domain, as the label `nvidia.com/gpu.clique` writes it; "" for none."""
    with suppress(GpuTroubleError):
        info = _fabric(handle)
        uuid = bytes(info.clusterUuid) if info is not None else b""
        if any(uuid) and info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and info.status == pynvml.NVML_SUCCESS:
            return f"{UUID(bytes=uuid)}.{info.cliqueId}"
    return ""


def _one(found: Any) -> str:
    """What all of them say; "" where they differ."""
    said = set(found)
    return said.pop() if len(said) == 1 else ""


def _action(handle: Any) -> int:
    """NVML's recovery action; 0 where there is none, or the driver does not say."""
    values = asked(pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values is not None and values[0].nvmlReturn == pynvml.NVML_SUCCESS else 0


def _ecc_errors(handle: Any) -> int:
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    return asked(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds) or 0


def _speed(handle: Any) -> int:
    with suppress(GpuTroubleError):
        return speed(handle)
    return 0


def _cut(gpu: GpuDevice, handle: Any) -> GpuDevice:
    """The GPU with its MIG instances. One whose instances cannot be read is not to be counted on."""
    if not gpu.mig:
        return gpu
    try:
        return msgspec.structs.replace(gpu, instances=instances(handle, gpu.memory))
    except GpuTroubleError as error:
        return _judged(gpu, Health(False, gpu.alone, (*gpu.ailments, f"its MIG instances cannot be read: {error}")))


def _judged(gpu: GpuDevice, health: Health) -> GpuDevice:
    healthy, alone, ailments = health
    return msgspec.structs.replace(gpu, healthy=healthy, alone=alone, ailments=ailments)


def _sorted(gpus: Any) -> tuple[GpuDevice, ...]:
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))
