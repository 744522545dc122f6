"""NVML, asked so that what a machine does not have is None, and each kind of trouble is one exception.

The functions are those of `nvidia-ml-py`, which loads the driver's own `libnvidia-ml.so.1`. All of this blocks: it
runs in one thread beside the event loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any, TypeVar

import pynvml

MAX_EVENTS = 256
"""Of one look; a GPU in trouble can repeat one many times a second."""


class XidEvents:
    """The XIDs seen since NVML was initialised, by bus id."""

    def __init__(self) -> None:
        self._xids: defaultdict[str, set[int]] = defaultdict(set)
        self._pci_by_address: dict[int | None, str] = {}
        self._event_set: Any = None

    def register(self, devices: Iterable[tuple[str, Any]]) -> None:
        """Hear of these GPUs too (bus id and handle). Where the driver has no events, none are heard."""
        self._event_set = self._event_set or call_nvml(pynvml.nvmlEventSetCreate)
        for pci, handle in devices:
            if self._pci_by_address.get(_handle_address(handle)) != pci:
                self._pci_by_address[_handle_address(handle)] = pci
                self._register_device(handle)

    def collect(self) -> None:
        """Take what was told since the last time."""
        for _ in range(MAX_EVENTS):
            event = self._next_event()
            if event is None:
                return
            pci = self._pci_by_address.get(_handle_address(event.device))
            if pci is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._xids[pci].add(int(event.eventData))

    def seen_on(self, pci: str) -> frozenset[int]:
        """Those of one GPU."""
        return frozenset(self._xids[pci])

    def reset(self) -> None:
        """NVML begins anew: so does every GPU."""
        if self._event_set is not None:
            with suppress(DriverUnavailableError, GpuQueryError):
                call_nvml(pynvml.nvmlEventSetFree, self._event_set)
        self._xids.clear()
        self._pci_by_address.clear()
        self._event_set = None

    def _register_device(self, handle: Any) -> None:
        if self._event_set is None:
            return
        try:
            call_nvml(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._event_set)
        except GpuQueryError:
            return  # it is reported by all else that fails for it

    def _next_event(self) -> Any:
        if self._event_set is None:
            return None
        try:
            return call_nvml(pynvml.nvmlEventSetWait, self._event_set, 0)
        except GpuQueryError:
            return None  # a timeout: nothing more was told


T = TypeVar("T")

_NOT_SUPPORTED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""This card or this driver does not have it."""

_DRIVER_UNAVAILABLE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Nothing of NVML answers until it is initialised anew."""


class DriverUnavailableError(Exception):
    """There is no driver, or not the one that NVML was initialised with."""


class DriverReplacedError(DriverUnavailableError):
    """The driver is another version than the library that this process has loaded; only a new process loads another."""


class GpuQueryError(Exception):
    """One GPU does not answer as it should: it is lost, has to be reset, or nobody knows."""


def call_nvml(function: Callable[..., T], *arguments: Any) -> T | None:
    """Call a function of NVML; None where this card or driver does not have what it asks for.

    Raises:
        DriverAwayError: nothing answers.
        GpuTroubleError: this GPU does not.
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
    """Initialise NVML.

    Raises:
        DriverAwayError: there is no driver, or no library of it.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        replaced = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        raise (DriverReplacedError if replaced else DriverUnavailableError)(str(error)) from error


def shutdown_nvml() -> None:
    """Let go of NVML, in whatever state it is."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def nvml_text(value: str | bytes | None) -> str:
    """A text of NVML, which older bindings give as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _handle_address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
