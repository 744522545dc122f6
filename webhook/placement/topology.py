"""The GPUs of a node and the links between them: NVLink, PCIe paths and NUMA nodes.

A topology comes from a GPUNode report, from the output of `nvidia-smi topo -m`, or from the product's usual board.
Bandwidth is in MB/s and one direction; only its order within one node matters. The multi-node domain of a node
(`nvidia.com/gpu.clique`) is in `nodes.gangs`: here it would make each domain a kind of node of its own.

Source: `nvidia-smi topo -m`, NVML's topology levels, NVIDIA's link rates per generation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache

import msgspec

from webhook.errors import TopologyError, quote_text
from webhook.model.node_labels import MIG_MARK, SHARED_MARK, has_nvlink, normalized_product

MAX_ISLAND_GPUS = 64
"""Largest node searched for islands. Boards are connected throughout or in small groups, so the search ends soon."""


_ANSI_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_GPU_ROW = re.compile(r"\s*GPU\d+\s")
_NVLINK = re.compile(r"NV(\d{1,2})\Z")
_SELF = "X"
_NUMA_HEADER = "NUMA Affinity"


MAX_GPUS = 16
"""GPUs of a node up to which sets of GPUs are distinguished."""

NVLINK_RATES = {1: 20_000, 2: 25_000, 3: 25_000, 4: 26_562, 5: 53_125}
"""MB/s of one NVLink by generation."""

NVLINK_BRIDGE_RATE = 14_062
"""MB/s of one link of the bridges for RTX A6000, A40 and RTX 3090."""


class PciePath(IntEnum):
    """PCIe distance of two GPUs; the nearer, the higher."""

    SYS = 1
    NODE = 2
    PHB = 3
    PXB = 4
    PIX = 5
    BOARD = 6


PCIE_PATH_RATES = {
    PciePath.SYS: 6_000,
    PciePath.NODE: 8_000,
    PciePath.PHB: 10_000,
    PciePath.PXB: 11_000,
    PciePath.PIX: 12_000,
    PciePath.BOARD: 12_500,
}
"""MB/s of a PCIe path: gen 3 x16, below one NVLink of any kind; later generations keep the order."""


class TopologyConfidence(StrEnum):
    """Source of a topology."""

    MEASURED = "measured"
    """The node's own NVML, or its `nvidia-smi topo -m`."""

    ASSUMED = "assumed"
    """The product's usual board, from labels alone."""

    UNKNOWN = "unknown"
    """Labels do not say: cards that may be bridged, or an unknown product."""


class GpuTopology(msgspec.Struct, frozen=True):
    """The GPUs of one node. Row i is what GPU i reports; two equal values are one kind of node.

    Attributes:
        nvlinks: Active NVLinks from GPU i to GPU j, shape (GPUs, GPUs); through NVSwitch, all active links.
        pcie_paths: PCIe path from i to j, None if unknown, shape (GPUs, GPUs).
        numa_nodes: NUMA node of each GPU, -1 if unknown.
        nvlink_rate: MB/s of one NVLink; 0 without NVLink.
        nvswitch: True if the links end at switches, which NVIDIA's device plugin does not see.
        confidence: Where this comes from.
    """

    nvlinks: tuple[tuple[int, ...], ...]
    pcie_paths: tuple[tuple[PciePath | None, ...], ...]
    numa_nodes: tuple[int, ...]
    nvlink_rate: int = 0
    nvswitch: bool = False
    confidence: TopologyConfidence = TopologyConfidence.MEASURED

    @property
    def gpu_count(self) -> int:
        """Number of GPUs."""
        return len(self.numa_nodes)

    @property
    def is_symmetric(self) -> bool:
        """True if each GPU reports links to every GPU that reports links to it."""
        return all(
            bool(self.nvlinks[i][j]) == bool(self.nvlinks[j][i]) for i in range(self.gpu_count) for j in range(i)
        )

    @property
    def mean_nvlinks(self) -> int:
        """NVLinks between two GPUs on average, rounded up; 0 for fewer than two GPUs."""
        pairs = self.gpu_count * (self.gpu_count - 1)
        return -(-sum(map(sum, self.nvlinks)) // pairs) if pairs else 0

    def count_nvlinks(self, one: int, other: int) -> int:
        """Return the NVLinks between two GPUs that both ends report as active."""
        return min(self.nvlinks[one][other], self.nvlinks[other][one])

    def bandwidth(self, one: int, other: int) -> int:
        """Return MB/s between two GPUs: over NVLink if both ends have it up, otherwise over PCIe.

        A nearer PCIe path adds a few MB/s to a pair over NVLink, so that it decides between equal pairs.
        """
        links, pcie_path = self.count_nvlinks(one, other), self.pcie_paths[one][other]
        return links * self.nvlink_rate + (pcie_path or 0) if links else PCIE_PATH_RATES[pcie_path or PciePath.SYS]


def nvswitch_topology(gpus: int, links: int, generation: int) -> GpuTopology:
    """Return a board on which every GPU reaches every other one with `links` NVLinks."""
    return GpuTopology(
        nvlinks=tuple(tuple(0 if i == j else links for j in range(gpus)) for i in range(gpus)),
        pcie_paths=tuple((None,) * gpus for _ in range(gpus)),
        numa_nodes=tuple(-1 for _ in range(gpus)),
        nvlink_rate=NVLINK_RATES[generation],
        nvswitch=True,
        confidence=TopologyConfidence.ASSUMED,
    )


def topology_without_links(gpus: int, confidence: TopologyConfidence = TopologyConfidence.ASSUMED) -> GpuTopology:
    """Return GPUs without known links."""
    return GpuTopology(
        nvlinks=tuple((0,) * gpus for _ in range(gpus)),
        pcie_paths=tuple((None,) * gpus for _ in range(gpus)),
        numa_nodes=(-1,) * gpus,
        confidence=confidence,
    )


_CUBE_MESH_LINKS = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
"""NVLinks of the hybrid cube mesh: eight V100 SXM2, as in DGX-1 and AWS p3.16xlarge."""

_NVSWITCH_BOARDS = {
    "b200": (8, 18, 5),
    "b300-sxm6-ac": (8, 18, 5),
    "gb200": (4, 18, 5),
    "gb300": (4, 18, 5),
    "h20": (8, 18, 4),
    "h20-3e": (8, 18, 4),
    "h200": (8, 18, 4),
    "h800": (8, 18, 4),
    "h100-80gb-hbm3": (8, 18, 4),
    "tesla-v100-sxm3-32gb": (16, 6, 2),
}
"""Usual boards behind NVSwitch: GPUs, links of each, generation."""

_DIRECT_BOARDS = {"h100-80gb-hbm3": (6, 4), "h200": (6, 4), "gh200-480gb": (6, 4), "gh200-144g-hbm3e": (6, 4)}
"""Boards of four without a switch: links of each pair, generation."""


@lru_cache(maxsize=4096)
def assumed_topology(product: str, gpus: int) -> GpuTopology:
    """Return the usual topology of a product (label `nvidia.com/gpu.product`) with this many physical GPUs.

    The usual board has confidence ASSUMED; if bridges decide, there are no links and it is UNKNOWN. Shares and MIG
    instances have no links.
    """
    lower = product.lower()
    if MIG_MARK in lower or lower.endswith(SHARED_MARK) or has_nvlink(product) is False or gpus < 2:
        return topology_without_links(gpus)
    if has_nvlink(product) is None:
        return topology_without_links(gpus, TopologyConfidence.UNKNOWN)
    return _assumed_board(normalized_product(product), gpus)


def _assumed_board(name: str, gpus: int) -> GpuTopology:
    """Return the usual board of a product whose GPUs are all linked, or the part of it that a virtual machine sees."""
    if name.startswith(("tesla-v100-sxm2", "tesla-p100-sxm2")):
        if name.startswith("tesla-v100") and gpus == len(_CUBE_MESH_LINKS):
            return _cube_mesh_topology(gpus)
        return topology_without_links(gpus, TopologyConfidence.UNKNOWN)
    if name in _DIRECT_BOARDS and gpus == 4:
        return msgspec.structs.replace(nvswitch_topology(gpus, *_DIRECT_BOARDS[name]), nvswitch=False)
    if name.startswith(("a100-sxm4", "a800-sxm4")):
        direct = gpus == 4
        return msgspec.structs.replace(nvswitch_topology(gpus, 4 if direct else 12, 3), nvswitch=not direct)
    most, links, generation = _NVSWITCH_BOARDS.get(name, (0, 0, 1))
    if gpus > most:
        return topology_without_links(gpus, TopologyConfidence.UNKNOWN)
    return nvswitch_topology(gpus, links, generation)


def _cube_mesh_topology(gpus: int) -> GpuTopology:
    half = gpus // 2
    pcie_paths = tuple(
        tuple(None if i == j else PciePath.PHB if i // half == j // half else PciePath.SYS for j in range(gpus))
        for i in range(gpus)
    )
    numa = tuple(i // half for i in range(gpus))
    return GpuTopology(_CUBE_MESH_LINKS, pcie_paths, numa, NVLINK_RATES[2], confidence=TopologyConfidence.ASSUMED)


MatrixCell = tuple[int, PciePath | None]
"""NVLinks, and the PCIe path if the cell has one."""


def largest_island(nvlinks: Sequence[Sequence[int]]) -> int:
    """Return the size of the largest set of GPUs in which NVLink connects every pair; 1 without links, 0 without GPUs.

    `nvlinks` has the active links from each GPU to each; a pair is connected if both ends have one. Free and allocated
    GPUs count.
    """
    gpus = range(len(nvlinks))
    if len(gpus) > MAX_ISLAND_GPUS:
        return 0
    neighbors = [
        sum(1 << other for other in gpus if other != one and nvlinks[one][other] and nvlinks[other][one])
        for one in gpus
    ]
    return _largest_clique(0, (1 << len(gpus)) - 1, neighbors, 0)


def _largest_clique(size: int, candidates: int, neighbors: list[int], best: int) -> int:
    """Return the size of the largest clique that grows from one of `size` GPUs by candidates, if it beats `best`."""
    while candidates and size + candidates.bit_count() > best:
        one = candidates.bit_length() - 1
        candidates ^= 1 << one
        best = max(best, size + 1, _largest_clique(size + 1, candidates & neighbors[one], neighbors, best))
    return best


def parse_topology_matrix(text: str) -> GpuTopology:
    """Read the output of `nvidia-smi topo -m`; rows of NICs, the legend and colors are ignored.

    The output contains neither the NVLink generation nor switches: links count as the slowest, which keeps the order.

    Raises:
        TopologyError: a row or cell is invalid; names the line and what is expected.
    """
    lines = [_ANSI_STYLE.sub("", line) for line in text.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), -1)
    if start < 0:
        raise TopologyError(
            "topo -m: must have a header line that starts with GPU0, found none. "
            "Pass the complete output of nvidia-smi topo -m"
        )
    gpus = _count_header_gpus(lines[start].split())
    rows = [
        _parse_matrix_row(line.split(), i + 1, gpus)
        for i, line in enumerate(lines)
        if i > start and _GPU_ROW.match(line)
    ]
    if len(rows) != gpus:
        must = f"must have a row for each of {gpus} GPUs, found {len(rows)}"
        raise TopologyError(f"topo -m: {must}. Pass the complete output")
    _, has_numa, after = lines[start].partition(_NUMA_HEADER)
    numa_column = -1 - after.count("GPU NUMA") if has_numa else 0  # from the end; 0 if there is none
    return topology_from_cells(
        [cells for cells, _ in rows],
        numa=[_parse_numa_node(rest, numa_column) for _, rest in rows],
        rate=NVLINK_BRIDGE_RATE,
    )


def topology_from_cells(cells: Sequence[Sequence[MatrixCell]], *, numa: Sequence[int], rate: int) -> GpuTopology:
    """Return a topology from its cells, shape (GPUs, GPUs)."""
    nvlinks = tuple(tuple(links for links, _ in row) for row in cells)
    return GpuTopology(
        nvlinks=nvlinks,
        pcie_paths=tuple(tuple(pcie_path for _, pcie_path in row) for row in cells),
        numa_nodes=tuple(numa),
        nvlink_rate=rate if any(map(any, nvlinks)) else 0,
    )


def parse_matrix_cell(token: str) -> MatrixCell | None:
    """Parse one cell: "X", "NV12", "PIX", ...; None for anything else.

    >>> parse_matrix_cell("NV2"), parse_matrix_cell("SYS")
    ((2, None), (0, <PciePath.SYS: 1>))
    """
    if token == _SELF:
        return 0, None
    match = _NVLINK.match(token)
    if match:
        return int(match[1]), None
    return (0, PciePath[token]) if token in PciePath.__members__ else None


def _count_header_gpus(header: Sequence[str]) -> int:
    gpus = 0
    while gpus < len(header) and header[gpus] == f"GPU{gpus}":
        gpus += 1
    if gpus > MAX_GPUS:
        raise TopologyError(f"topo -m: must have at most {MAX_GPUS} GPUs, found {gpus}")
    return gpus


def _parse_matrix_row(words: Sequence[str], line: int, gpus: int) -> tuple[list[MatrixCell], Sequence[str]]:
    """Return the cells of one GPU, and the words after them."""
    found = [parse_matrix_cell(word) for word in words[1 : gpus + 1]]
    cells = [each for each in found if each is not None]
    if len(cells) == gpus:
        return cells, words[gpus + 1 :]
    wrong = words[1 + found.index(None)] if None in found else "the end of the line"
    must = f"must have {gpus} of X, NV#, PIX, PXB, PHB, NODE and SYS"
    raise TopologyError(f"topo -m: line {line}: {must}, found {quote_text(wrong)}. Pass the output unchanged")


def _parse_numa_node(rest: Sequence[str], column: int) -> int:
    """Return the NUMA node; -1 if unknown."""
    text = rest[column] if column and len(rest) >= -column else ""
    return int(text) if text.isascii() and text.isdigit() else -1
