"""GPU products by name: memory of a whole card, and whether cards are linked by NVLink.

A fallback for missing node labels. Memory is never guessed from a name (`GH200-480GB` has 96 GB on the card, and an
`L20X` is no L20): a product that is not in the table has no known memory.

Source: totals and link listings as NVML and `nvidia-smi` print them; the lowest known total of each product.
"""

from __future__ import annotations

from webhook.model.bounded_cache import request_cache

MIG_MARK = "-mig-"
SHARED_MARK = "-shared"

_PRODUCTS: dict[str, tuple[int | None, bool | None]] = {
    "tesla-k80": (11441, False),
    "tesla-m60": (8129, False),
    "tesla-p4": (7611, False),
    "tesla-p40": (22919, False),
    "tesla-p100-pcie-16gb": (16280, False),
    "tesla-p100-sxm2-16gb": (16280, True),
    "tesla-v100-sxm2-16gb": (16160, True),
    "tesla-v100-sxm2-32gb": (32510, True),
    "tesla-v100-sxm3-32gb": (32480, True),
    "tesla-v100-pcie-16gb": (16160, False),
    "tesla-v100s-pcie-32gb": (32510, False),
    "tesla-t4": (15109, False),
    "quadro-rtx-6000": (24220, None),
    "quadro-rtx-8000": (48601, None),
    "titan-rtx": (24220, None),
    "geforce-rtx-2080-ti": (11019, None),
    "geforce-rtx-3090": (24268, None),
    "geforce-rtx-4090": (24564, False),
    "geforce-rtx-5090": (32607, False),
    "a100-sxm4-40gb": (40536, True),
    "a100-pcie-40gb": (40536, None),
    "a100-sxm4-80gb": (81251, True),
    "a100-80gb-pcie": (81251, None),
    "a800-sxm4-80gb": (81920, True),
    "a800-80gb-pcie": (81920, None),
    "a800-sxm4-40gb": (40960, True),
    "a800-40gb-active": (40960, None),
    "a30": (24576, None),
    "a10": (22731, False),
    "a10g": (23028, False),
    "a16": (15356, False),
    "a2": (15356, False),
    "a40": (46068, None),
    "rtx-a6000": (46068, None),
    "rtx-a5000": (24564, None),
    "rtx-a4000": (16376, False),
    "l2": (None, False),
    "l4": (23034, False),
    "l20": (46068, False),
    "l40": (46068, False),
    "l40s": (46068, False),
    "rtx-6000-ada-generation": (46068, False),
    "h100-80gb-hbm3": (81559, True),
    "h100-pcie": (81559, None),
    "h100-nvl": (95830, None),
    "h800": (81559, True),
    "h800-pcie": (81559, None),
    "h20": (97871, True),
    "h20-3e": (143771, True),
    "h200": (143771, True),
    "h200-nvl": (143771, None),
    "l20x": (143771, None),
    "gh200-480gb": (97871, True),
    "gh200-144g-hbm3e": (None, True),
    "b200": (183359, True),
    "gb200": (189471, True),
    "b300-sxm6-ac": (275040, True),
    "gb300": (256703, True),
    "rtx-pro-6000-blackwell-server-edition": (97887, False),
    "rtx-pro-6000-blackwell-workstation-edition": (97887, False),
    "rtx-pro-6000-blackwell-max-q-workstation-edition": (97887, False),
    "rtx-pro-5000-blackwell": (None, False),
    "rtx-pro-4500-blackwell": (None, False),
}
"""Memory in MiB, and whether all cards are connected by NVLink; None if unknown, or if it depends on bridges."""


@request_cache(1024)
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
    return _PRODUCTS.get(normalized_product(product), (None, None))[0]


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
    return True if "-sxm" in name else _PRODUCTS.get(name, (None, None))[1]
