"""Call NVML, with None for what the machine does not support and one exception for each kind of failure; record XIDs.

The functions are those of `nvidia-ml-py`, which loads the driver's `libnvidia-ml.so.1`. They block, so they run in a
thread of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any, TypeVar

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
