"""GPU products by name: memory of a whole card, and whether cards are linked by NVLink.

A fallback for missing node labels. Memory is never guessed from a name (`GH200-480GB` has 96 GB on the card, and an
`L20X` is no L20): a product that is not in the table has no known memory.

Source: totals and link listings as NVML and `nvidia-smi` print them; the lowest known total of each product.
"""

from __future__ import annotations

from functools import lru_cache

MIG_MARK = "-mig-"
SHARED_MARK = "-shared"

_MEMORY_MIB = {
    "tesla-k80": 11441,
    "tesla-m60": 8129,
    "tesla-p4": 7611,
    "tesla-p40": 22919,
    "tesla-p100-pcie-16gb": 16280,
    "tesla-p100-sxm2-16gb": 16280,
    "tesla-v100-sxm2-16gb": 16160,
    "tesla-v100-sxm2-32gb": 32510,
    "tesla-v100-sxm3-32gb": 32480,
    "tesla-v100-pcie-16gb": 16160,
    "tesla-v100s-pcie-32gb": 32510,
    "tesla-t4": 15109,
    "quadro-rtx-6000": 24220,
    "quadro-rtx-8000": 48601,
    "titan-rtx": 24220,
    "geforce-rtx-2080-ti": 11019,
    "geforce-rtx-3090": 24268,
    "geforce-rtx-4090": 24564,
    "geforce-rtx-5090": 32607,
    "a100-sxm4-40gb": 40536,
    "a100-pcie-40gb": 40536,
    "a100-sxm4-80gb": 81251,
    "a100-80gb-pcie": 81251,
    "a800-sxm4-80gb": 81920,
    "a800-80gb-pcie": 81920,
    "a800-sxm4-40gb": 40960,
    "a800-40gb-active": 40960,
    "a30": 24576,
    "a10": 22731,
    "a10g": 23028,
    "a16": 15356,
    "a2": 15356,
    "a40": 46068,
    "rtx-a6000": 46068,
    "rtx-a5000": 24564,
    "rtx-a4000": 16376,
    "l4": 23034,
    "l20": 46068,
    "l40": 46068,
    "l40s": 46068,
    "rtx-6000-ada-generation": 46068,
    "h100-80gb-hbm3": 81559,
    "h100-pcie": 81559,
    "h100-nvl": 95830,
    "h800": 81559,
    "h800-pcie": 81559,
    "h20": 97871,
    "h20-3e": 143771,
    "h200": 143771,
    "h200-nvl": 143771,
    "l20x": 143771,
    "gh200-480gb": 97871,
    "b200": 183359,
    "gb200": 189471,
    "b300-sxm6-ac": 275040,
    "gb300": 256703,
    "rtx-pro-6000-blackwell-server-edition": 97887,
    "rtx-pro-6000-blackwell-workstation-edition": 97887,
    "rtx-pro-6000-blackwell-max-q-workstation-edition": 97887,
}

_LINKED = {
    "h100-80gb-hbm3",
    "h800",
    "h20",
    "h20-3e",
    "h200",
    "b200",
    "gb200",
    "gb300",
    "gh200-480gb",
    "gh200-144g-hbm3e",
}
"""Products without SXM in their name whose cards are all connected by NVLink."""

_NOT_LINKED = {
    "tesla-k80",
    "tesla-m60",
    "tesla-p4",
    "tesla-p40",
    "tesla-p100-pcie-16gb",
    "tesla-v100-pcie-16gb",
    "tesla-v100s-pcie-32gb",
    "tesla-t4",
    "geforce-rtx-4090",
    "geforce-rtx-5090",
    "a10",
    "a10g",
    "a16",
    "a2",
    "rtx-a4000",
    "l2",
    "l4",
    "l20",
    "l40",
    "l40s",
    "rtx-6000-ada-generation",
    "rtx-pro-6000-blackwell-server-edition",
    "rtx-pro-6000-blackwell-workstation-edition",
    "rtx-pro-6000-blackwell-max-q-workstation-edition",
    "rtx-pro-5000-blackwell",
    "rtx-pro-4500-blackwell",
}
"""Products without NVLink."""


@lru_cache(maxsize=1024)
def normalized_product(product: str) -> str:
    """Return the product without suffixes for sharing, MIG and driver branches, in lower case.

    >>> normalized_product("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED"), normalized_product("A100-SXM4-80GB")
    ('a100-sxm4-80gb', 'a100-sxm4-80gb')
    """
    return card_product(product).removeprefix("nvidia-")


def card_product(product: str) -> str:
    """Return the label of the whole card, in lower case.

    >>> card_product("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb-SHARED")
    'nvidia-a100-sxm4-80gb'
    """
    return product.lower().removesuffix(SHARED_MARK).partition(MIG_MARK)[0]


def card_memory_mib(product: str) -> int | None:
    """Return the memory of a whole card in MiB, the lowest known total of this product; None if unknown."""
    return _MEMORY_MIB.get(normalized_product(product))


def has_nvlink(product: str) -> bool | None:
    """Return whether all cards of a node with this product are linked by NVLink.

    Args:
        product: A `nvidia.com/gpu.product` label. MIG instances and shares cannot use NVLink.

    Returns:
        True for SXM boards and NVSwitch machines; False for cards without NVLink; None for an unknown product, or if it
        depends on bridges between pairs of cards (A100 PCIe, H100 NVL, A40), which no label shows.
    """
    lower = product.lower()
    if MIG_MARK in lower or lower.endswith(SHARED_MARK):
        return False
    name = normalized_product(product)
    if name in _LINKED or "-sxm" in name:
        return True
    return False if name in _NOT_LINKED else None
