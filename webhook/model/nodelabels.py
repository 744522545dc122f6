"""What single node labels say: keys of GPU feature discovery and of the clouds, and their values as numbers.

Every label is text that someone else wrote: a value that is no number counts as absent.

Source: k8s-device-plugin `internal/lm`, the GPU operator's state labels, and the clouds' own documents.
"""

from __future__ import annotations

from collections.abc import Mapping

Labels = Mapping[str, str]

PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
MPS_CAPABLE_LABEL = "nvidia.com/mps.capable"
STRATEGY_LABEL = "nvidia.com/mig.strategy"

CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""Nodes with the same value are joined by NVLink."""

ISLAND_LABEL = "rightslice.dev/nvlink-island-max"
"""Kept by the agent of the node: GPUs of the largest set in which NVLink joins every pair, free or not."""

GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
GKE_COUNT = "cloud.google.com/gke-accelerator-count"
GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
EC2_PREFIXES = ("karpenter.k8s.aws/instance-gpu-", "eks.amazonaws.com/instance-gpu-")
COREWEAVE_MODEL = "gpu.nvidia.com/model"
AZURE_GPU = "karpenter.azure.com/sku-gpu-name"

MAX_MIB = 10_000_000
"""Ten terabytes on one card do not exist: a larger `gpu.memory` is in bytes, as one old release wrote it."""

_MAX_DIGITS = 18


def parse_count(text: str | None) -> int | None:
    """A count as labels write it; None for everything else."""
    if not text or len(text) > _MAX_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def parse_memory_mib(text: str | None) -> int | None:
    """A memory label in MiB; None where it is absent, zero or no number."""
    value = parse_count(text)
    if not value:
        return None
    return value if value <= MAX_MIB else value >> 20


def driver_version(labels: Labels) -> tuple[int, ...]:
    """The driver version, today's labels before the deprecated ones; () if neither is there.

    >>> driver({"nvidia.com/cuda.driver-version.full": "580.95.05"})
    (580, 95, 5)
    """
    return (
        _parse_dotted_version(labels.get("nvidia.com/cuda.driver-version.full", ""))
        or _version_from_labels(labels, "nvidia.com/cuda.driver-version.", ("major", "minor", "revision"))
        or _version_from_labels(labels, "nvidia.com/cuda.driver.", ("major", "minor", "rev"))
    )


def cuda_version(labels: Labels) -> tuple[int, ...]:
    """The highest CUDA version that the driver supports, (major, minor); () if no label says it."""
    version = (
        _parse_dotted_version(labels.get("nvidia.com/cuda.runtime-version.full", ""))
        or _version_from_labels(labels, "nvidia.com/cuda.runtime-version.", ("major", "minor"))
        or _version_from_labels(labels, "nvidia.com/cuda.runtime.", ("major", "minor"))
    )
    return version[:2]


def compute_capability(labels: Labels) -> tuple[int, int] | None:
    """The compute capability, or None. The family label is of no use: it mixes unlike architectures."""
    major, minor = (
        parse_count(labels.get("nvidia.com/gpu.compute.major")),
        parse_count(labels.get("nvidia.com/gpu.compute.minor")),
    )
    return None if major is None or minor is None else (major, minor)


def _parse_dotted_version(text: str) -> tuple[int, ...]:
    parts = [parse_count(part) for part in text.split(".", 4)]
    return tuple(part for part in parts if part is not None) if None not in parts else ()


def _version_from_labels(labels: Labels, prefix: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of a version that is spread over labels, up to the first that is missing or empty."""
    version: tuple[int, ...] = ()
    for name in names:
        part = parse_count(labels.get(prefix + name))
        if part is None:
            break
        version = (*version, part)
    return version
