"""The machines of the reference topologies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from webhook.placement.topology import NVLINK_RATES, GpuTopology, PciePath, parse_matrix_cell, topology_from_cells


@cache
def facts(shared: Path) -> dict[str, Any]:
    """The reference topologies as data."""
    data: dict[str, Any] = yaml.safe_load((shared / "reference" / "nvlink-topologies.yaml").read_text())
    return data


@cache
def machines(shared: Path) -> dict[str, GpuTopology]:
    """Every machine by its key. Links count wherever they end, as the reference's own cases do."""
    return {entry["key"]: machine(entry) for entry in facts(shared)["machines"]}


def machine(entry: dict[str, Any]) -> GpuTopology:
    """One machine; where its PCIe paths are listed, they stand beside the links."""
    cells = [[parse_matrix_cell(token) or (0, None) for token in row] for row in entry["topo"]]
    if paths := entry.get("pcie_class"):
        cells = [
            [(links, PciePath.__members__.get(path or "")) for (links, _), path in zip(row, told, strict=True)]
            for row, told in zip(cells, paths, strict=True)
        ]
    return topology_from_cells(cells, numa=entry["numa"], rate=NVLINK_RATES.get(entry["nvlink_generation"] or 0, 0))
