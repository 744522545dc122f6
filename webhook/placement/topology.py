"""A node's GPUs and the links between them, as one value.

NVLink (direct, bridged or through NVSwitch), PCIe levels and NUMA are one matrix of links and a few facts beside it.
Bandwidth is in MB/s and one direction; only its order inside one node matters. The multi-node domain of a node
(`nvidia.com/gpu.clique`) is a fact about many nodes, and stands in `nodes.gangs`: here it would make each domain a kind
of node of its own.

Source: `nvidia-smi topo -m`, NVML's topology levels, NVIDIA's link rates per generation.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import lru_cache

import msgspec

from webhook.model.products import MIG_MARK, SHARED_MARK, normalized_product, has_nvlink

MAX_GPUS = 16
"""GPUs of a node whose sets are told apart."""

NVLINK_RATES = {1: 20_000, 2: 25_000, 3: 25_000, 4: 26_562, 5: 53_125}
"""MB/s of one NVLink by generation."""

NVLINK_BRIDGE_RATE = 14_062
"""MB/s of one link of the bridges for RTX A6000, A40 and RTX 3090."""


class PciePath(IntEnum):
    """How far apart two GPUs are on PCIe; the nearer the higher."""

    SYS = 1
    NODE = 2
    PHB = 3
    PXB = 4
    PIX = 5
    BOARD = 6


PCIE_PATH_RATES = {PciePath.SYS: 6_000, PciePath.NODE: 8_000, PciePath.PHB: 10_000, PciePath.PXB: 11_000, PciePath.PIX: 12_000, PciePath.BOARD: 12_500}
"""MB/s of a PCIe path: gen 3 x16, below one NVLink of any kind; later generations keep the order."""


class TopologyConfidence(StrEnum):
    """Where a topology comes from."""

    MEASURED = "measured"
    """The node's own NVML, or its `nvidia-smi topo -m`."""

    ASSUMED = "assumed"
    """The product's usual board, from labels alone."""

    UNKNOWN = "unknown"
    """Labels do not tell: cards that may or may not be bridged, or a product that is not known."""


class GpuTopology(msgspec.Struct, frozen=True):
    """The GPUs of one node. Row i tells what GPU i sees; two equal values are one kind of node.

    Attributes:
        nvlinks: NVLinks that GPU i has up towards GPU j, shape (GPUs, GPUs); through NVSwitch, all it has up.
        buses: PCIe path from i to j, None where it is not known, shape (GPUs, GPUs).
        numa: NUMA node of each GPU, -1 where it is not known.
        rate: MB/s of one NVLink; 0 where there is none.
        nvswitch: True where the links end at switches, which NVIDIA's device plugin does not see.
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
        """How many."""
        return len(self.numa_nodes)

    @property
    def is_symmetric(self) -> bool:
        """Has each end of every pair links up where the other has some?"""
        return all(bool(self.nvlinks[i][j]) == bool(self.nvlinks[j][i]) for i in range(self.gpu_count) for j in range(i))

    def count_nvlinks(self, one: int, other: int) -> int:
        """NVLinks between two GPUs: what both ends have up."""
        return min(self.nvlinks[one][other], self.nvlinks[other][one])

    def bandwidth(self, one: int, other: int) -> int:
        """MB/s between two GPUs: over NVLink where both ends have it up, else over PCIe.

        A nearer PCIe path adds a few MB/s to a pair over NVLink, so that it decides between equal ones.
        """
        links, bus = self.count_nvlinks(one, other), self.pcie_paths[one][other]
        return links * self.nvlink_rate + (bus or 0) if links else PCIE_PATH_RATES[bus or PciePath.SYS]


def nvswitch_topology(gpus: int, links: int, generation: int) -> GpuTopology:
    """A board on which every GPU reaches every other one with so many links."""
    return GpuTopology(
        nvlinks=tuple(tuple(0 if i == j else links for j in range(gpus)) for i in range(gpus)),
        pcie_paths=tuple((None,) * gpus for _ in range(gpus)),
        numa_nodes=tuple(-1 for _ in range(gpus)),
        nvlink_rate=NVLINK_RATES[generation],
        nvswitch=True,
        confidence=TopologyConfidence.ASSUMED,
    )


def topology_without_links(gpus: int, confidence: TopologyConfidence = TopologyConfidence.ASSUMED) -> GpuTopology:
    """GPUs of which no link is known."""
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
    """The topology that labels alone let one expect.

    Args:
        product: `nvidia.com/gpu.product`; shares and MIG instances have no links at all.
        gpus: Physical GPUs of the node.

    Returns:
        The product's usual board, with confidence ASSUMED; without links, UNKNOWN, where bridges decide.
    """
    lower = product.lower()
    if MIG_MARK in lower or lower.endswith(SHARED_MARK) or has_nvlink(product) is False or gpus < 2:
        return topology_without_links(gpus)
    name = normalized_product(product)
    if has_nvlink(product) is None:
        return topology_without_links(gpus, TopologyConfidence.UNKNOWN)
    return _assumed_board(name, gpus)


def _assumed_board(name: str, gpus: int) -> GpuTopology:
    """The usual board of a product whose GPUs are all linked, or a part of it that a virtual machine sees."""
    if name.startswith(("tesla-v100-sxm2", "tesla-p100-sxm2")):
        return (
            _cube_mesh_topology(gpus) if name.startswith("tesla-v100") and gpus == len(_CUBE_MESH_LINKS) else topology_without_links(gpus, TopologyConfidence.UNKNOWN)
        )
    if name in _DIRECT_BOARDS and gpus == 4:
        return msgspec.structs.replace(nvswitch_topology(gpus, *_DIRECT_BOARDS[name]), nvswitch=False)
    if name.startswith(("a100-sxm4", "a800-sxm4")):
        direct = gpus == 4
        return msgspec.structs.replace(nvswitch_topology(gpus, 4 if direct else 12, 3), nvswitch=not direct)
    most, links, generation = _NVSWITCH_BOARDS.get(name, (0, 0, 1))
    return nvswitch_topology(gpus, links, generation) if gpus <= most else topology_without_links(gpus, TopologyConfidence.UNKNOWN)


def _cube_mesh_topology(gpus: int) -> GpuTopology:
    half = gpus // 2
    buses = tuple(
        tuple(None if i == j else PciePath.PHB if i // half == j // half else PciePath.SYS for j in range(gpus))
        for i in range(gpus)
    )
    numa = tuple(i // half for i in range(gpus))
    return GpuTopology(_CUBE_MESH_LINKS, buses, numa, NVLINK_RATES[2], confidence=TopologyConfidence.ASSUMED)
