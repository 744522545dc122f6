"""Topologies from `nvidia-smi topo -m`, and from labels alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.placement.machines import topologies_by_key
from webhook.errors import TopologyError
from webhook.placement.nvlink import gpu_sets
from webhook.placement.topology import (
    NVLINK_BRIDGE_RATE,
    PCIE_PATH_RATES,
    GpuTopology,
    PciePath,
    TopologyConfidence,
    assumed_topology,
    nvswitch_topology,
    parse_topology_matrix,
    topology_without_links,
)

BRIDGED = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tSYS\tSYS\tPHB\t0-23\t0\t\tN/A
GPU1\tNV12\t X \tSYS\tSYS\tSYS\t24-47\t1\t\tN/A
GPU2\tSYS\tSYS\t X \tNV12\tSYS\t48-71\t2\t\tN/A
GPU3\tSYS\tSYS\tNV12\t X \tSYS\t72-95\t3\t\tN/A
NIC0\tPHB\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self
"""
PLAIN = "GPU0 GPU1\nGPU0 X PHB\nGPU1 PHB X\n"


def test_matrix_with_nics_legend_and_colors(shared: Path) -> None:
    bridged = replace(topologies_by_key(shared)["a100-pcie-4-bridged"], nvlink_rate=NVLINK_BRIDGE_RATE)

    assert parse_topology_matrix(BRIDGED) == bridged


def test_matrix_without_affinities_has_no_numa_nodes() -> None:
    topology = parse_topology_matrix(PLAIN)

    assert topology.numa_nodes == (-1, -1)
    assert topology.bandwidth(0, 1) == PCIE_PATH_RATES[PciePath.PHB]
    assert topology.nvlink_rate == 0


ERRORS = [
    ("no head", "hello\n", "must have a header line that starts with GPU0"),
    ("a row that is missing", "GPU0 GPU1\nGPU0 X PHB\n", "must have a row for each of 2 GPUs, found 1"),
    ("a cell of another kind", PLAIN.replace("GPU1 PHB", "GPU1 FAR"), "line 3: must have 2 of X, NV#, PIX"),
    ("a row that ends early", PLAIN.replace("X PHB", "X"), "line 2: .* found 'the end of the line'"),
    ("more GPUs than a node has", " ".join(f"GPU{i}" for i in range(17)), "must have at most 16 GPUs, found 17"),
]


@pytest.mark.parametrize(("sentence", "text", "message"), ERRORS, ids=[error[0] for error in ERRORS])
def test_invalid_matrix_is_rejected(sentence: str, text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        parse_topology_matrix(text)


def test_link_that_is_up_at_one_end_only() -> None:
    topology = GpuTopology(((0, 4), (3, 0)), topology_without_links(2).pcie_paths, (0, 0), nvlink_rate=25_000)

    assert topology.bandwidth(0, 1) == 75_000
    assert topology.is_symmetric
    assert not GpuTopology(
        ((0, 4), (0, 0)), topology_without_links(2).pcie_paths, (0, 0), nvlink_rate=25_000
    ).is_symmetric


LABELS = [
    ("an NVSwitch board", "NVIDIA-H100-80GB-HBM3", 8, "dgx-h100-8", TopologyConfidence.ASSUMED),
    ("a part of it in a virtual machine", "NVIDIA-H100-80GB-HBM3", 2, None, TopologyConfidence.ASSUMED),
    ("a board of four", "NVIDIA-H100-80GB-HBM3", 4, "hgx-h100-4", TopologyConfidence.ASSUMED),
    ("an A100 board of four", "NVIDIA-A100-SXM4-40GB", 4, "hgx-a100-4", TopologyConfidence.ASSUMED),
    ("an A100 board of eight", "NVIDIA-A100-SXM4-80GB", 8, "hgx-a100-8-2socket", TopologyConfidence.ASSUMED),
    ("a DGX-1", "Tesla-V100-SXM2-32GB", 8, "dgx1-v100", TopologyConfidence.ASSUMED),
    ("a DGX-2", "Tesla-V100-SXM3-32GB", 16, "dgx2-v100", TopologyConfidence.ASSUMED),
    ("a Blackwell tray", "NVIDIA-GB200", 4, "gb200-tray", TopologyConfidence.ASSUMED),
]


@pytest.mark.parametrize(("sentence", "product", "gpus", "key", "confidence"), LABELS, ids=[each[0] for each in LABELS])
def test_usual_topology_of_products(
    shared: Path, sentence: str, product: str, gpus: int, key: str | None, confidence: TopologyConfidence
) -> None:
    topology = assumed_topology(product, gpus)

    assert topology.confidence is confidence
    assert topology.gpu_count == gpus
    if key:
        assert topology.nvlinks == topologies_by_key(shared)[key].nvlinks
        assert topology.nvlink_rate == topologies_by_key(shared)[key].nvlink_rate


@pytest.mark.parametrize(
    "product", ["NVIDIA-A100-80GB-PCIe", "NVIDIA-H100-NVL", "Nobody-Knows", "Tesla-P100-SXM2-16GB"]
)
def test_unknown_where_bridges_decide(product: str) -> None:
    topology = assumed_topology(product, 4)

    assert topology.confidence is TopologyConfidence.UNKNOWN
    assert gpu_sets(topology).largest_island(0b1111) == 1


@pytest.mark.parametrize(
    "product", ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "NVIDIA-H100-80GB-HBM3-SHARED", "NVIDIA-L40S"]
)
def test_slices_shares_and_cards_without_nvlink_have_no_links(product: str) -> None:
    assert assumed_topology(product, 4).confidence is TopologyConfidence.ASSUMED
    assert assumed_topology(product, 4).nvlink_rate == 0


def test_more_gpus_than_the_usual_board() -> None:
    assert assumed_topology("NVIDIA-B200", 16).confidence is TopologyConfidence.UNKNOWN


def test_near_pcie_path_decides_only_between_equal_links() -> None:
    score_table = nvswitch_topology(3, 1, 3)
    near = GpuTopology(
        score_table.nvlinks, ((None, PciePath.PIX, None), (PciePath.PIX, None, None), (None,) * 3), (0, 0, 0), 25_000
    )

    assert 0 < near.bandwidth(0, 1) - near.bandwidth(0, 2) < 10
