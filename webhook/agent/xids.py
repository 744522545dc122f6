"""XIDs as the driver tells them: events, taken at each look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from ctypes import c_void_p, cast
from typing import Any

import pynvml

from webhook.agent.nvml import DriverAwayError, GpuTroubleError, asked

MOST_EVENTS = 256
"""Of one look; a GPU in trouble can repeat one many times a second."""


class Xids:
    """The XIDs seen since NVML was initialised, by bus id."""

    def __init__(self) -> None:
        self._seen: defaultdict[str, set[int]] = defaultdict(set)
        self._names: dict[int | None, str] = {}
        self._set: Any = None

    def listen(self, devices: Iterable[tuple[str, Any]]) -> None:
        """Hear of these GPUs too (bus id and handle). Where the driver has no events, none are heard."""
        self._set = self._set or asked(pynvml.nvmlEventSetCreate)
        for pci, handle in devices:
            if self._names.get(_address(handle)) != pci:
                self._names[_address(handle)] = pci
                self._register(handle)

    def take(self) -> None:
        """Take what was told since the last time."""
        for _ in range(MOST_EVENTS):
            event = self._next()
            if event is None:
                return
            pci = self._names.get(_address(event.device))
            if pci is not None and event.eventType == pynvml.nvmlEventTypeXidCriticalError:
                self._seen[pci].add(int(event.eventData))

    def of(self, pci: str) -> frozenset[int]:
        """Those of one GPU."""
        return frozenset(self._seen[pci])

    def forget(self) -> None:
        """NVML begins anew: so does every GPU."""
        if self._set is not None:
            with suppress(DriverAwayError, GpuTroubleError):
                asked(pynvml.nvmlEventSetFree, self._set)
        self._seen.clear()
        self._names.clear()
        self._set = None

    def _register(self, handle: Any) -> None:
        if self._set is None:
            return
        try:
            asked(pynvml.nvmlDeviceRegisterEvents, handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except GpuTroubleError:
            return  # it is reported by all else that fails for it

    def _next(self) -> Any:
        if self._set is None:
            return None
        try:
            return asked(pynvml.nvmlEventSetWait, self._set, 0)
        except GpuTroubleError:
            return None  # a timeout: nothing more was told


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
