"""GPU products by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from webhook.model.node_labels import card_memory_mib, has_nvlink, normalized_product

NAMES = {
    "the prefix is removed": ("NVIDIA-H100-80GB-HBM3", "h100-80gb-hbm3"),
    "a share has the name of its card": ("NVIDIA-L4-SHARED", "l4"),
    "a MIG instance has the name of its card": ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "a100-sxm4-40gb"),
    "a shared MIG instance has the name of its card": ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "a100-sxm4-40gb"),
    "old drivers have no prefix": ("A100-SXM4-80GB", "a100-sxm4-80gb"),
    "Tesla is kept": ("NVIDIA-Tesla-T4", "tesla-t4"),
    "no name": ("", ""),
}

LINKS = {
    "an SXM board is linked": ("NVIDIA-A100-SXM4-80GB", True),
    "an unknown SXM board is linked": ("NVIDIA-Z900-SXM9", True),
    "an NVSwitch machine is linked": ("NVIDIA-H200", True),
    "the DGX-1 is linked": ("Tesla-V100-SXM2-32GB", True),
    "the L40S has no NVLink": ("NVIDIA-L40S", False),
    "A100 PCIe may have bridges": ("NVIDIA-A100-80GB-PCIe", None),
    "H100 NVL may have bridges between pairs": ("NVIDIA-H100-NVL", None),
    "an unknown product": ("NVIDIA-Z900", None),
    "a MIG instance is not linked": ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", False),
    "a share is not linked": ("NVIDIA-A100-SXM4-80GB-SHARED", False),
}


@pytest.mark.parametrize(("product", "want"), NAMES.values(), ids=NAMES)
def test_normalized_names(product: str, want: str) -> None:
    assert normalized_product(product) == want


@pytest.mark.parametrize(("product", "want"), LINKS.values(), ids=LINKS)
def test_nvlink_of_products(product: str, want: bool | None) -> None:
    assert has_nvlink(product) is want


def test_memory_is_the_lowest_known_total(shared: Path) -> None:
    listed = yaml.safe_load((shared / "reference" / "gpu-node-labels.yaml").read_text())["products"]
    assert {p["gfd"]: card_memory_mib(p["gfd"]) for p in listed} == {
        p["gfd"]: min(p["mem_mib"]) if p["mem_mib"] else None for p in listed
    }


def test_memory_is_never_read_from_a_name() -> None:
    assert card_memory_mib("NVIDIA-Z900-80GB") is None
    assert card_memory_mib("NVIDIA-GH200-480GB") == 97871
