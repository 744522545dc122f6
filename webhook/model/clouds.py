"""What cloud labels say of a node's GPUs where GPU feature discovery does not run.

GKE's own device plugin keeps the name `nvidia.com/gpu` for MIG partitions and for shares alike, and tells them
apart by node labels only. EC2's labels carry a catalogue figure of memory that lies above what NVML reports.

Source: GKE "About GPU sharing strategies", Karpenter's and EKS Auto Mode's well-known labels, CoreWeave, AKS.
"""

from __future__ import annotations

from typing import NamedTuple

from webhook.model.nodelabels import (
    AZURE_GPU,
    COREWEAVE_MODEL,
    EC2_PREFIXES,
    GKE_ACCELERATOR,
    GKE_CLIENTS,
    GKE_COUNT,
    GKE_PARTITION,
    GKE_SHARING,
    Labels,
    parse_memory_mib,
    parse_count,
)
from webhook.model.products import card_memory_mib

USABLE_PERCENT = 92
"""What is left of a card's nominal memory at worst: ECC takes 6 percent, old drivers reserve up to 8."""

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
"""Short names that mean one product. A100, V100 and H100 do not: each comes in several sizes."""


class CloudGpuInfo(NamedTuple):
    """What a cloud says of a node's GPUs.

    Attributes:
        product: The product as GFD would name it, "" if the label does not name one product.
        memory_mib: Memory of a whole card that is safe to plan with, or None.
        partition: MIG profile that every `nvidia.com/gpu` of the node is, "" if none.
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


def read_cloud_labels(labels: Labels) -> CloudGpuInfo:
    """Read the cloud labels of a node; `NO_CLOUD_INFO` where it has none that name a GPU."""
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
