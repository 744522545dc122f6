"""The machines of the reference topologies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from webhook.placement.topology import NVLINK_RATES, GpuTopology, PciePath, parse_matrix_cell, topology_from_cells


@cache
def reference_topologies(shared: Path) -> dict[str, Any]:
    """Return the reference topologies as data."""
    data: dict[str, Any] = yaml.safe_load((shared / "reference" / "nvlink-topologies.yaml").read_text())
    return data


@cache
def topologies_by_key(shared: Path) -> dict[str, GpuTopology]:
    """Return every topology by its key. Links count wherever they end, as in the reference's own cases."""
    return {entry["key"]: machine(entry) for entry in reference_topologies(shared)["machines"]}


def machine(entry: dict[str, Any]) -> GpuTopology:
    """Return the topology of one machine, with its PCIe paths if they are listed."""
    cells = [[parse_matrix_cell(token) or (0, None) for token in row] for row in entry["topo"]]
    if paths := entry.get("pcie_class"):
        cells = [
            [(links, PciePath.__members__.get(path or "")) for (links, _), path in zip(row, told, strict=True)]
            for row, told in zip(cells, paths, strict=True)
        ]
    return topology_from_cells(cells, numa=entry["numa"], rate=NVLINK_RATES.get(entry["nvlink_generation"] or 0, 0))
