"""Machines for the scripted library, built from recorded `nvidia-smi topo -m` outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.agent.library import SWITCH, Card, Library

LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
VERSIONS = {1: 1, 2: 2, 3: 4, 4: 6, 5: 7}
SPEEDS = {1: 20_000, 2: 25_000, 3: 25_000, 4: 26_562, 5: 53_125}


def pci(index: int) -> str:
    """Return the bus id of a GPU."""
    return f"0000:{index + 16:02x}:00.0"


def cards(count: int, **fields: Any) -> list[Card]:
    """Return several equal GPUs."""
    return [Card(pci(index), **fields) for index in range(count)]


def bridged(*pairs: tuple[int, int], count: int = 4, links: int = 12) -> Library:
    """Return a machine of PCIe cards with NVLink bridges between pairs."""
    library = Library(cards(count, name="NVIDIA A100-PCIE-80GB"))
    for one, other in pairs:
        library.cards[one].links += [(True, pci(other))] * links
        library.cards[other].links += [(True, pci(one))] * links
    return library


def machine(entry: dict[str, Any]) -> Library:
    """Return a recorded machine."""
    generation = entry["nvlink_generation"]
    found = cards(entry["gpus"], version=VERSIONS.get(generation, 0), speed=SPEEDS.get(generation, 0))
    paths = entry.get("pcie_class") or entry["topo"]
    library = Library(found)
    for one, row in enumerate(entry["topo"]):
        for other, token in enumerate(row):
            if (path := paths[one][other]) in LEVELS and one < other:
                library.levels[one, other] = LEVELS[path]
            if token.startswith("NV") and not entry["nvswitch"]:
                found[one].links += [(True, pci(other))] * int(token[2:])
        if entry["nvswitch"]:
            found[one].links += [(True, SWITCH)] * int(next(t for t in row if t.startswith("NV"))[2:])
    return library


def numa_of(folder: Path, nodes: list[int]) -> Path:
    """Return a sysfs folder with the NUMA nodes of GPUs."""
    for index, node in enumerate(nodes):
        device = folder / pci(index)
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return folder
