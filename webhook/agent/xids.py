"""XIDs as the driver tells them: events, taken at each look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

import pynvml

from webhook.agent.nvml import DriverUnavailableError, GpuQueryError, call_nvml

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


def _handle_address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
