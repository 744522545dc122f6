"""What `nvidia-smi topo -m` prints, read into a topology."""

from __future__ import annotations

import re
from collections.abc import Sequence

from webhook.errors import TopologyError, quote_text
from webhook.placement.topology import NVLINK_BRIDGE_RATE, MAX_GPUS, NVLINK_RATES, PciePath, GpuTopology

_ANSI_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_GPU_ROW = re.compile(r"\s*GPU\d+\s")
_NVLINK = re.compile(r"NV(\d{1,2})\Z")
_SELF = "X"
_NUMA_HEADER = "NUMA Affinity"

MatrixCell = tuple[int, PciePath | None]
"""NVLinks, and the PCIe path where it is told."""


def parse_topology_matrix(text: str, *, generation: int = 0, nvswitch: bool = False, bridged: bool = False) -> GpuTopology:
    """Read the text of `nvidia-smi topo -m`.

    Args:
        text: The text; rows of NICs, the legend and colours are left out.
        generation: Of NVLink, 1 to 5. The text does not tell; 0 counts as the slowest, which keeps the order.
        nvswitch: True where the links end at switches; the text does not tell this either.
        bridged: True for the bridges of RTX A6000, A40 and RTX 3090, which are slower than their generation.

    Raises:
        TopologyError: a row or a cell is not of this form; says the line, and what must stand there.
    """
    lines = [_ANSI_STYLE.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), -1)
    if start < 0:
        raise TopologyError("topo -m: must have a head that begins with GPU0, found none. Give the whole output")
    gpus = _count_header_gpus(lines[start].split())
    rows = [_parse_matrix_row(line.split(), i + 1, gpus) for i, line in enumerate(lines) if i > start and _GPU_ROW.match(line)]
    if len(rows) != gpus:
        must = f"must have a row for each of {gpus} GPUs, found {len(rows)}"
        raise TopologyError(f"topo -m: {must}. Give the whole output")
    numa = _numa_column_index(lines[start])
    return topology_from_cells(
        [cells for cells, _ in rows],
        numa=[_parse_numa_node(rest, numa) for _, rest in rows],
        rate=NVLINK_BRIDGE_RATE if bridged else NVLINK_RATES.get(generation, NVLINK_BRIDGE_RATE),
        nvswitch=nvswitch,
    )


def topology_from_cells(cells: Sequence[Sequence[MatrixCell]], *, numa: Sequence[int], rate: int, nvswitch: bool = False) -> GpuTopology:
    """A topology from its cells, shape (GPUs, GPUs)."""
    nvlinks = tuple(tuple(links for links, _ in row) for row in cells)
    linked = any(map(any, nvlinks))
    return GpuTopology(
        nvlinks=nvlinks,
        pcie_paths=tuple(tuple(bus for _, bus in row) for row in cells),
        numa_nodes=tuple(numa),
        nvlink_rate=rate if linked else 0,
        nvswitch=nvswitch and linked,
    )


def parse_matrix_cell(token: str) -> MatrixCell | None:
    """One cell: "X", "NV12", "PIX", ... None for anything else.

    >>> cell("NV2"), cell("SYS")
    ((2, None), (0, <Bus.SYS: 1>))
    """
    if token == _SELF:
        return 0, None
    match = _NVLINK.match(token)
    if match:
        return int(match[1]), None
    return (0, PciePath[token]) if token in PciePath.__members__ else None


def _count_header_gpus(head: Sequence[str]) -> int:
    gpus = 0
    while gpus < len(head) and head[gpus] == f"GPU{gpus}":
        gpus += 1
    if gpus > MAX_GPUS:
        raise TopologyError(f"topo -m: must have at most {MAX_GPUS} GPUs, found {gpus}")
    return gpus


def _parse_matrix_row(words: Sequence[str], line: int, gpus: int) -> tuple[list[MatrixCell], Sequence[str]]:
    """The cells of one GPU, and what stands after them."""
    found = [parse_matrix_cell(word) for word in words[1 : gpus + 1]]
    cells = [each for each in found if each is not None]
    if len(cells) == gpus:
        return cells, words[gpus + 1 :]
    wrong = words[1 + found.index(None)] if None in found else "the end of the line"
    must = f"must have {gpus} of X, NV#, PIX, PXB, PHB, NODE and SYS"
    raise TopologyError(f"topo -m: line {line}: {must}, found {quote_text(wrong)}. Give the output as it was printed")


def _numa_column_index(head: str) -> int:
    """The place of the NUMA column, from the end: -1 for the last; 0 where there is none."""
    _, found, after = head.partition(_NUMA_HEADER)
    return -1 - after.count("GPU NUMA") if found else 0


def _parse_numa_node(rest: Sequence[str], place: int) -> int:
    """A NUMA node; -1 where it is not told."""
    text = rest[place] if place and len(rest) >= -place else ""
    return int(text) if text.isascii() and text.isdigit() else -1
