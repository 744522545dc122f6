"""Call NVML, with None for what the machine does not support and one exception for each kind of failure; record XIDs,
and read NVLinks by their remote ends.

The functions are those of `nvidia-ml-py`, which loads the driver's `libnvidia-ml.so.1`. They block, so they run in a
thread of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any, NamedTuple, TypeVar

import pynvml

T = TypeVar("T")

MAX_EVENTS = 256
"""Limit per discovery: a failing GPU can repeat an event many times a second."""

_NOT_SUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""The card or the driver does not support it."""

_DRIVER_UNAVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Nothing works until NVML is initialized again."""


class DriverUnavailableError(Exception):
    """There is no driver, or not the one with which NVML was initialized."""


class DriverReplacedError(DriverUnavailableError):
    """The driver has another version than the loaded library; only a new process can load the new one."""


class GpuQueryError(Exception):
    """One GPU does not answer: it is lost, needs a reset, or the cause is unknown."""


def call_nvml(function: Callable[..., T], *arguments: Any) -> T | None:
    """Call an NVML function; return None if the card or driver does not support it.

    Raises:
        DriverUnavailableError: NVML does not work.
        GpuQueryError: This GPU does not answer.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NOT_SUPPORTED:
            return None
        if error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            raise DriverReplacedError(str(error)) from error
        if error.value in _DRIVER_UNAVAILABLE:
            raise DriverUnavailableError(str(error)) from error
        raise GpuQueryError(str(error)) from error


def init_nvml() -> None:
    """Initialize NVML.

    Raises:
        DriverUnavailableError: There is no driver, or no driver library.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        replaced = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise (DriverReplacedError if replaced else DriverUnavailableError)(str(error)) from error


def read_field(handle: Any, field: int) -> int:
    """Return an NVML field value; 0 if the driver does not report it."""
    values = call_nvml(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    return int(values[0].value.uiVal) if values is not None and values[0].nvmlReturn == pynvml.NVML_SUCCESS else 0


def nvml_text(value: str | bytes | None) -> str:
    """Return an NVML text as str; older bindings return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


class XidEvents:
    """The XIDs since NVML was initialized, by bus id."""

    def __init__(self) -> None:
        self._xids: defaultdict[str, set[int]] = defaultdict(set)
        self._pci_by_address: dict[int | None, str] = {}
        self._event_set: Any = None

    def register(self, devices: Iterable[tuple[str, Any]]) -> None:
        """Register for the XIDs of GPUs (bus id and handle), if the driver supports events."""
        self._event_set = self._event_set or call_nvml(pynvml.nvmlEventSetCreate)
        for pci, handle in devices:
            if self._pci_by_address.get(_handle_address(handle)) == pci:
                continue
            self._pci_by_address[_handle_address(handle)] = pci
            if self._event_set is not None:
                with suppress(GpuQueryError):  # the GPU's other calls fail too and report it
                    kinds = pynvml.nvmlEventTypeXidCriticalError
                    call_nvml(pynvml.nvmlDeviceRegisterEvents, handle, kinds, self._event_set)

    def collect(self) -> None:
        """Collect the events since the last call."""
        if self._event_set is None:
            return
        for _ in range(MAX_EVENTS):
            try:
                event = call_nvml(pynvml.nvmlEventSetWait, self._event_set, 0)
            except GpuQueryError:
                return  # a timeout: there is no further event
            if event is None:
                return
            pci = self._pci_by_address.get(_handle_address(event.device))
            if pci is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._xids[pci].add(int(event.eventData))

    def seen_on(self, pci: str) -> frozenset[int]:
        """Return the XIDs of one GPU."""
        return frozenset(self._xids[pci])

    def reset(self) -> None:
        """Forget all XIDs, because NVML is initialized again."""
        if self._event_set is not None:
            with suppress(DriverUnavailableError, GpuQueryError):
                call_nvml(pynvml.nvmlEventSetFree, self._event_set)
        self._xids.clear()
        self._pci_by_address.clear()
        self._event_set = None


def _handle_address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


PCIE_PATHS = {0: "BOARD", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's topology levels, as `nvidia-smi topo -m` prints them."""

NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}
"""NVLink generation by NVML's version number."""


class NvlinkEnds(NamedTuple):
    """The NVLinks of one GPU.

    Attributes:
        gpus: Number of active links by the bus id of the remote GPU.
        switch: Number of active links to NVSwitches.
        version: NVML's number of the NVLink version; 0 if there is none.
    """

    gpus: Mapping[str, int]
    switch: int
    down: int
    version: int


def read_nvlink_ends(handle: Any, pcis: frozenset[str]) -> NvlinkEnds:
    """Read the NVLinks of one GPU; `pcis` are the bus ids of all GPUs of the machine."""
    gpus: Counter[str] = Counter()
    switch = down = version = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = call_nvml(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            continue
        version = version or call_nvml(pynvml.nvmlDeviceGetNvLinkVersion, handle, link) or 0
        if not state:
            down += 1
            continue
        remote = _remote_gpu(handle, link, pcis)
        switch += remote == ""
        if remote:
            gpus[remote] += 1
    return NvlinkEnds(gpus, switch, down, version)


def _remote_gpu(handle: Any, link: int, pcis: frozenset[str]) -> str | None:
    """Return the bus id of the remote GPU, "" for a switch, None for anything else.

    In a virtual machine a switch may have no bus id, and older drivers do not report device types.
    """
    pci = call_nvml(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    name = normalize_bus_id(pci.busId) if pci is not None else ""
    if name in pcis:
        return name
    kind = call_nvml(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
    hidden = not name or name.startswith("fffffff")
    return "" if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH or hidden else None


def normalize_bus_id(raw: bytes | str) -> str:
    """Return a bus id as the kernel writes it: lower case, with a domain of four digits.

    >>> normalize_bus_id(b"00000000:3B:00.0")
    '0000:3b:00.0'
    """
    text = nvml_text(raw).lower()
    return text[4:] if len(text) == 16 and text.startswith("0000") else text
