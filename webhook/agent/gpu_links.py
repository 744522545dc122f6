"""Read the links between the GPUs of one machine: NVLinks by their remote ends, and PCIe paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pynvml

from webhook.agent.nvml import call_nvml, nvml_text

PCIE_PATHS = {0: "BOARD", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's topology levels, as `nvidia-smi topo -m` prints them."""

NVLINK_GENERATIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5}
"""NVLink generation by NVML's version number."""


class NvlinkEnds(NamedTuple):
    """The NVLinks of one GPU.

    Attributes:
        gpus: Number of active links by the bus id of the remote GPU.
        switch: Number of active links to NVSwitches.
        down: Number of inactive links.
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
