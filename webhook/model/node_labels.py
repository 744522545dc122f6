"""Node labels about GPUs: keys of GPU feature discovery and of the clouds, and their values as numbers.

Every label is untrusted text: an invalid value counts as absent. GKE's own device plugin uses `nvidia.com/gpu` for MIG
partitions and shares too, and distinguishes them by node labels only. EC2's labels have a catalog figure of memory
that lies above what NVML reports.

Source: k8s-device-plugin `internal/lm`; the GPU operator's state labels; GKE "About GPU sharing strategies"; well-known
labels of Karpenter and EKS Auto Mode; CoreWeave; AKS.

GPU products by name: memory of a whole card, and whether cards are linked by NVLink.

A fallback for missing node labels. Memory is never guessed from a name (`GH200-480GB` has 96 GB on the card, and an
`L20X` is no L20): a product that is not in the table has no known memory.

Source: totals and link listings as NVML and `nvidia-smi` print them; the lowest known total of each product.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from webhook.model.bounded_cache import request_cache
from webhook.well_known import GROUP

USABLE_PERCENT = 92
"""Usable part of a card's nominal memory at worst: ECC takes 6 percent, old drivers reserve up to 8."""

_GKE_PRODUCTS = {
    "nvidia-tesla-t4": "Tesla-T4",
    "nvidia-tesla-p4": "Tesla-P4",
    "nvidia-tesla-p100": "Tesla-P100-PCIE-16GB",
    "nvidia-tesla-v100": "Tesla-V100-SXM2-16GB",
    "nvidia-tesla-a100": "NVIDIA-A100-SXM4-40GB",
    "nvidia-a100-80gb": "NVIDIA-A100-SXM4-80GB",
    "nvidia-l4": "NVIDIA-L4",
    "nvidia-h100-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h100-mega-80gb": "NVIDIA-H100-80GB-HBM3",
    "nvidia-h200-141gb": "NVIDIA-H200",
    "nvidia-b200": "NVIDIA-B200",
    "nvidia-gb200": "NVIDIA-GB200",
    "nvidia-rtx-pro-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}
_SHORT_PRODUCTS = {
    "t4": "Tesla-T4",
    "a10": "NVIDIA-A10",
    "a10g": "NVIDIA-A10G",
    "l4": "NVIDIA-L4",
    "l40": "NVIDIA-L40",
    "l40s": "NVIDIA-L40S",
    "h200": "NVIDIA-H200",
    "b200": "NVIDIA-B200",
    "gb200": "NVIDIA-GB200",
    "gb300": "NVIDIA-GB300",
    "rtx-pro-server-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}
"""Short names that mean one product. A100, V100 and H100 do not: each has several sizes."""


class CloudGpuInfo(NamedTuple):
    """A node's GPUs according to cloud labels.

    Attributes:
        product: The product as GFD would name it, "" if the label does not name one product.
        memory_mib: Memory of a whole card that is safe to plan with, or None.
        partition: MIG profile of every `nvidia.com/gpu` of the node, "" if none.
        sharing: "time-slicing", "mps" or "".
        replicas: Clients that share one GPU, or None.
        gpus: Cards on the node, or None.
    """

    product: str = ""
    memory_mib: int | None = None
    partition: str = ""
    sharing: str = ""
    replicas: int | None = None
    gpus: int | None = None


NO_CLOUD_INFO = CloudGpuInfo()


Labels = Mapping[str, str]

PRODUCT_LABEL = "nvidia.com/gpu.product"
DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
MEMORY_LABEL = "nvidia.com/gpu.memory"
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
MPS_CAPABLE_LABEL = "nvidia.com/mps.capable"
STRATEGY_LABEL = "nvidia.com/mig.strategy"

CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""Nodes with the same value are connected by NVLink."""

ISLAND_LABEL = f"{GROUP}/nvlink-island-max"
"""Written by the node's agent: GPUs of the largest set in which NVLink connects every pair, free or not."""

GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
GKE_COUNT = "cloud.google.com/gke-accelerator-count"
GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_PARTIAL = (GKE_PARTITION, GKE_SHARING)
"""Labels of nodes of GKE whose GPUs are slices or shares."""

GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
EC2_PREFIXES = ("karpenter.k8s.aws/instance-gpu-", "eks.amazonaws.com/instance-gpu-")
COREWEAVE_MODEL = "gpu.nvidia.com/model"
AZURE_GPU = "karpenter.azure.com/sku-gpu-name"

MAX_MIB = 10_000_000
"""No card has ten terabytes: a larger `gpu.memory` is in bytes, as one old release wrote it."""

_MAX_DIGITS = 18


def parse_count(text: str | None) -> int | None:
    """Return a count from a label; None if it is invalid."""
    if not text or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def parse_memory_mib(text: str | None) -> int | None:
    """Return a memory label in MiB; None if it is absent, zero or invalid."""
    value = parse_count(text)
    if not value:
        return None
    return value if value <= MAX_MIB else value >> 20


def driver_version(labels: Labels) -> tuple[int, ...]:
    """Return the driver version, from today's labels before deprecated ones; () if unknown.

    >>> driver_version({"nvidia.com/cuda.driver-version.full": "580.95.05"})
    (580, 95, 5)
    """
    return (
        _parse_dotted_version(labels.get(DRIVER_LABEL, ""))
        or _version_from_labels(labels, "nvidia.com/cuda.driver-version.", ("major", "minor", "revision"))
        or _version_from_labels(labels, "nvidia.com/cuda.driver.", ("major", "minor", "rev"))
    )


def cuda_version(labels: Labels) -> tuple[int, ...]:
    """Return the highest CUDA version that the driver supports, (major, minor); () if unknown."""
    version = (
        _parse_dotted_version(labels.get("nvidia.com/cuda.runtime-version.full", ""))
        or _version_from_labels(labels, "nvidia.com/cuda.runtime-version.", ("major", "minor"))
        or _version_from_labels(labels, "nvidia.com/cuda.runtime.", ("major", "minor"))
    )
    return version[:2]


def compute_capability(labels: Labels) -> tuple[int, int] | None:
    """Return the compute capability, or None. The family label is useless: it mixes different architectures."""
    major = parse_count(labels.get("nvidia.com/gpu.compute.major"))
    minor = parse_count(labels.get("nvidia.com/gpu.compute.minor"))
    return None if major is None or minor is None else (major, minor)


def _parse_dotted_version(text: str) -> tuple[int, ...]:
    parts = [parse_count(part) for part in text.split(".", 4)]
    return tuple(part for part in parts if part is not None) if None not in parts else ()


def _version_from_labels(labels: Labels, prefix: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Return a version spread over several labels, up to the first missing or empty one."""
    version: tuple[int, ...] = ()
    for name in names:
        part = parse_count(labels.get(prefix + name))
        if part is None:
            break
        version = (*version, part)
    return version


def read_cloud_labels(labels: Labels) -> CloudGpuInfo:
    """Return what the cloud labels of a node say; `NO_CLOUD_INFO` if none names a GPU."""
    if GKE_ACCELERATOR in labels:
        return _read_gke_labels(labels)
    for prefix in EC2_PREFIXES:
        if f"{prefix}name" in labels:
            return _read_ec2_labels(labels, prefix)
    short = labels.get(COREWEAVE_MODEL) or labels.get(AZURE_GPU, "")
    product = _SHORT_PRODUCTS.get(short.lower(), "")
    return CloudGpuInfo(product, card_memory_mib(product)) if product else NO_CLOUD_INFO


def _read_gke_labels(labels: Labels) -> CloudGpuInfo:
    product = _GKE_PRODUCTS.get(labels[GKE_ACCELERATOR], "")
    strategy = labels.get(GKE_SHARING, "").lower().replace("_", "-")
    return CloudGpuInfo(
        product,
        card_memory_mib(product),
        labels.get(GKE_PARTITION, ""),
        {"time-sharing": "time-slicing", "mps": "mps"}.get(strategy, ""),
        parse_count(labels.get(GKE_CLIENTS)),
        parse_count(labels.get(GKE_COUNT)),
    )


def _read_ec2_labels(labels: Labels, prefix: str) -> CloudGpuInfo:
    if labels.get(f"{prefix}manufacturer", "nvidia").lower() != "nvidia":
        return NO_CLOUD_INFO
    product = _SHORT_PRODUCTS.get(labels[f"{prefix}name"].lower(), "")
    nominal = parse_memory_mib(labels.get(f"{prefix}memory"))
    memory = card_memory_mib(product) or (nominal * USABLE_PERCENT // 100 if nominal else None)
    return CloudGpuInfo(product, memory, gpus=parse_count(labels.get(f"{prefix}count")))


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


def without_shared_mark(product: str) -> str:
    """Return the label without the mark of shared GPUs, as it is written.

    >>> without_shared_mark("NVIDIA-L40S-SHARED"), without_shared_mark("NVIDIA-L40S")
    ('NVIDIA-L40S', 'NVIDIA-L40S')
    """
    return product[: -len(SHARED_MARK)] if product.lower().endswith(SHARED_MARK) else product


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
